"""A held state: the equations of a loop, or a core, that stops moving, and what a trace
records of it."""

from typing import Any

import pytest
import torch

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import Intervention
from tests.model import reference
from tests.model.reference import Stream, difference, random_tokens
from tests.model.small_models import (
    CORES,
    EXACT,
    OUTPUTS,
    SHOWS,
    SMALL,
    STEPS,
    UNEVEN,
    small,
    traced,
    with_weights,
)

TOKENS = random_tokens(SMALL, batch=2, length=5)
LOOPS: dict[str, dict[str, Any]] = {
    "router": {},
    "one-based": {"step_index": "one_based"},
    "loop blocks": {"block": "loop"},
    "last step only": {"combination": "final"},
    "mean": {"combination": "mean"},
    "uneven": UNEVEN,
    **STEPS,
}


def hold(monkeypatch: pytest.MonkeyPatch, states: str, step: int) -> None:
    """Lets the slow model's `states` after this step be the one of this step."""
    moving = getattr(reference, states)

    def held(*inputs: Any) -> list[Stream]:
        found = moving(*inputs)
        return [found[min(k, step - 1)] for k in range(len(found))]

    monkeypatch.setattr(reference, states, held)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("changes", LOOPS.values(), ids=LOOPS.keys())
def test_a_held_state_stays_while_the_router_goes_on(changes, step, monkeypatch):
    config = small(**changes)
    weights = reference.random_weights(config, seed=0)
    learned = reference.logits(weights, config, TOKENS)
    hold(monkeypatch, "deep_states", step)
    expected = reference.logits(weights, config, TOKENS)

    model = with_weights(config, weights)
    actual = model(TOKENS, intervention=Intervention(held=step))
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, learned) > SHOWS


@pytest.mark.parametrize("combination", ["router", "mean"])
def test_a_held_state_stays_in_one_compiled_graph(combination):
    model = with_weights(small(n_layers=1, combination=combination))
    change = Intervention(held=2)
    expected = model(TOKENS, intervention=change)
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    assert difference(model(TOKENS, intervention=change), expected) <= EXACT


@pytest.mark.parametrize(
    ("core", "step"),
    [
        (core, step)
        for core, changes in CORES.items()
        for step in (1, 2)
        if step != changes["core_loops"]  # which would hold nothing
    ],
)
def test_a_held_core_repeats_nothing_while_its_router_goes_on(core, step, monkeypatch):
    config = small(**CORES[core])
    weights = reference.random_weights(config, seed=0)
    hold(monkeypatch, "core_states", step)
    expected = reference.logits(weights, config, TOKENS)
    model = with_weights(config, weights)
    actual = model(TOKENS, intervention=Intervention(core_held=step))
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, model(TOKENS)) > SHOWS


@pytest.mark.parametrize(
    ("step", "step_index", "shows"),
    [
        (1, "one_based", False),
        (2, "one_based", True),
        (2, "zero_based", False),
        (3, "zero_based", True),
    ],
)
def test_the_router_tells_held_from_forced_by_the_index_of_a_step_alone(
    step, step_index, shows
):
    """The last state takes what remains in both."""
    config = small(loops=4, step_index=step_index)
    weights = reference.random_weights(config, seed=0)
    changes = [Intervention(held=step), Intervention(loops=step)]

    model = with_weights(config, weights)
    apart = difference(*(model(TOKENS, intervention=change) for change in changes))
    assert apart > SHOWS if shows else apart <= EXACT

    for name, weight in weights.items():
        if name.endswith("router.weight"):
            weight[:, -1] = 0
    blind = with_weights(config, weights)
    same = difference(*(blind(TOKENS, intervention=change) for change in changes))
    assert same <= EXACT


def test_a_trace_counts_the_steps_that_moved():
    routed = small(**CORES["routed"])
    model = with_weights(routed)
    core = traced(model, TOKENS, intervention=Intervention(core_held=2)).core
    (deep, *_) = traced(
        with_weights(small(loops=4)), TOKENS, intervention=Intervention(held=2)
    ).layers
    for trace, loops in ((core, 3), (deep, 4)):
        assert trace.loops_run == 2
        assert (trace.steps_taken == 2).all()
        assert trace.step_weights.shape == (2, 5, loops)
        assert (trace.step_weights[..., 2:] == 0).all()
        sums = trace.step_weights.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=EXACT, atol=0)


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({}, Intervention(held=3), "the model's loops have 3 steps: held must be"),
        ({"block": "wide"}, Intervention(held=1), "the model has only wide blocks"),
        ({}, Intervention(core_held=1), "the model has no core to repeat"),
        (
            CORES["joined input"],
            Intervention(core_held=3),
            "the core is repeated 3 times: core_held must",
        ),
    ],
)
def test_a_model_that_has_no_later_step_holds_nothing(changes, intervention, reason):
    problem = intervention.problem(small(**changes))
    assert problem is not None
    assert problem.startswith(reason)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held": 1, "loops": 2}, "held=1 keeps the trained number"),
        ({"core_held": 1, "core_loops": 2}, "core_held=1 keeps the trained number"),
        ({"held": 1, "halting": 0.5}, "held=1 excludes halting"),
        ({"core_held": 1, "skip": 0.5}, "core_held=1 excludes halting"),
        ({"held": 1, "kv_slots": 1}, "held=1 excludes halting"),
        ({"core_held": 1, "layers": (0,)}, "core_held=1 repeats all layers"),
        ({"held": 0}, "held must be a whole number"),
    ],
)
def test_fields_that_a_held_state_excludes_are_refused(fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Intervention(**fields)


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({}, Intervention(held=2)),
        ({}, Intervention(held=1, layers=(1,))),
        (CORES["routed"], Intervention(core_held=2)),
    ],
)
def test_only_later_steps_of_the_named_layers_are_not_run(changes, change):
    """Each sublayer of a step is called as often as the trace says."""
    model = with_weights(small(**changes))
    calls = {}
    for number, block in enumerate(model.blocks):
        calls[number] = 0

        def count(*_: Any, number: int = number) -> None:
            calls[number] += 1

        if block.kind != "wide":
            block.deep.sublayer.register_forward_hook(count)
    trace = traced(model, TOKENS, intervention=change)
    ran = dict.fromkeys(calls, 0)
    for layer in trace.layers:
        ran[layer.layer] += layer.loops_run or 0
    assert calls == ran
    learned = traced(model, TOKENS)
    assert sum(ran.values()) < sum(layer.loops_run or 0 for layer in learned.layers)
    assert torch.equal(
        forward(model, TOKENS, intervention=change),
        model(TOKENS, intervention=change),
    )
