"""A schedule in place of the threshold of an exit: tokens take the steps that it
plans."""

import pytest
import torch

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.early_exit import Schedule
from dualpath_cli.model import DualPathLM, Intervention
from dualpath_cli.model.routing import RoutingTrace
from tests.model.reference import difference
from tests.model.small_models import (
    CORES,
    EXACT,
    OUTPUTS,
    SHOWS,
    TOKENS,
    small,
    traced,
    with_weights,
)

MODELS = {"deep paths": {"loops": 4}, "core": CORES["routed"]}
models = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())


def steps_of(trace: RoutingTrace) -> Schedule:
    """The steps that tokens took; at least one, also of a layer that a token left."""
    layers = {
        (layer.layer, layer.repetition): layer.steps_taken.clamp(min=1)
        for layer in trace.layers
        if layer.steps_taken is not None
    }
    core = None if trace.core is None else trace.core.steps_taken
    return Schedule(layers, core)


def blind(model: DualPathLM, schedule: Schedule) -> torch.Tensor:
    change = Intervention(halting=0.3, blind="all")
    return forward(model, TOKENS, intervention=change, schedule=schedule)


@models
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
def test_a_schedule_of_the_steps_that_an_exit_took_is_the_exit(changes, threshold):
    model = with_weights(small(**changes))
    exit_ = Intervention(halting=threshold)
    schedule = steps_of(traced(model, TOKENS, intervention=exit_))
    steps = torch.cat([*schedule.layers.values()])
    assert len(steps.unique()) > 1, "or all tokens are alike"
    expected = forward(model, TOKENS, intervention=exit_)
    assert difference(blind(model, schedule), expected) <= EXACT


@models
@pytest.mark.parametrize("step", [1, 2])
def test_a_schedule_of_equal_steps_holds_the_state_after_them(changes, step):
    model = with_weights(small(**changes))
    steps = torch.full_like(TOKENS, step)
    applications = model.config.applications()
    has_core = model.config.core is not None
    schedule = Schedule(dict.fromkeys(applications, steps), steps if has_core else None)
    # With two steps in all, nothing is left to hold.
    held = step if step < model.config.most_loops else None
    change = Intervention(held=held, core_held=step if has_core else None)
    expected = forward(model, TOKENS, intervention=change)
    assert difference(blind(model, schedule), expected) <= OUTPUTS
    assert difference(expected, model(TOKENS)) > SHOWS


def test_a_blind_exit_needs_a_schedule_of_the_whole_text():
    model = with_weights(small())
    change = Intervention(halting=0.3, blind="position")
    with pytest.raises(ValueError, match="blind=position: schedule must say"):
        forward(model, TOKENS, intervention=change)
    with pytest.raises(ValueError, match="takes the forward of"):
        model(TOKENS, intervention=change)
    with pytest.raises(ValueError, match="needs halting"):
        Intervention(blind="all")
    with pytest.raises(ValueError, match="exclude kv_slots"):
        Intervention(blind="all", halting=0.3, kv_slots=1)
