"""Training with a core: its losses, the gradients that are cut, the numbers of
repetitions that steps draw or grow to."""

from typing import Any

import pytest
import torch

from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.run.tables import read_csv
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.loop_weights import is_unused
from dualpath_cli.training.step import losses_of
from tests.model.reference import random_tokens
from tests.model.small_models import SMALL, small
from tests.training.tiny_run import back_to_step, state, tables, weights

CORE: dict[str, Any] = {
    "n_layers": 3,
    "block": ["wide", "dual", "wide"],
    "core": [1, 1],
    "core_loops": 3,
    "injection": "linear",
    "core_combination": "router",
}
GROWING = {"loop_schedule": [[0, 1], [0.5, 3]]}
"""One repetition in steps 0 to 2 of six, then three."""
MANY = {"run": {"loop_losses": 0.5, "backprop_loops": 2, "train_loops": [1, 2, 3]}}


class Module:
    """What `losses_of` reads of a module."""

    device_mesh = None
    forced_loops: int | None = None

    def __init__(self, config: ModelConfig, loop_losses: float) -> None:
        self.config = config
        self.model = DualPathLM(config).double()
        generator = torch.Generator().manual_seed(0)
        for weight in self.model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.data = weight + 0.2 * noise
        self.run_settings = RunSettings(loop_losses=loop_losses)


@pytest.mark.parametrize("combination", ["final", "router"])
def test_earlier_repetitions_lose_what_the_model_of_fewer_loses(combination):
    """With `final`, the state of repetition r is what R = r reads out.

    The output of a routed core is a mixture, but its states are those of `final`.
    """
    config = small(**CORE | {"core_combination": combination})
    module = Module(config, loop_losses=0.7)
    tokens, targets = (random_tokens(SMALL, batch=2, length=6, seed=s) for s in (2, 3))
    losses = losses_of(module, tokens, targets)

    final = DualPathLM(small(**CORE | {"core_combination": "final"})).double()
    named = dict(module.model.named_parameters())
    with torch.no_grad():
        for name, weight in final.named_parameters():
            weight.copy_(named[name])
    earlier = [
        final(tokens, targets, intervention=Intervention(core_loops=r)) for r in (1, 2)
    ]
    last = module.model(tokens, targets).mean()
    expected = last + 0.7 * torch.stack(earlier).mean()
    torch.testing.assert_close(losses.loss, expected)
    torch.testing.assert_close(losses.nll.mean(), last)


def test_a_phase_of_one_repetition_trains_the_model_without_a_core(fit):
    """Its twin has no injection, no router of the core and one gain for each sublayer;
    losses and weights are equal bits, and nothing else moves."""
    # Without clipping: the norm of more gradients is summed in another order.
    optim = {"clip": 0, "decay": ["matrices", "norms", "gains", "biases"]}
    growing = fit(model=CORE, run=GROWING | {"save_every": 3}, optim=optim)
    alone = {name: CORE[name] for name in ("n_layers", "block")}
    twin = fit(model=alone, run={"name": "twin", "save_every": 3}, optim=optim)

    losses = [
        [row["loss"] for row in tables(run)["metrics.csv"]] for run in (growing, twin)
    ]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][3:] != losses[1][3:], "three repetitions"

    found, wanted = (state(run, 3, "model.") for run in (growing, twin))
    later = state(growing, 6, "model.")
    config = ModelConfig(**read_recipe(growing)["model"])
    untouched = 0
    for key, weight in found.items():
        name = key.removeprefix("model.")
        start = initial_value(name, weight.shape, config, seed=1)
        own = wanted.get(key, weight[:0])
        assert torch.equal(weight[: len(own)], own), name
        assert torch.equal(weight[len(own) :], start[len(own) :]), name
        if len(own) < len(weight):
            assert not torch.equal(weight[len(own) :], later[key][len(own) :]), name
        untouched += weight[len(own) :].numel()
    injection, router, gains = 16 * 32, 17 + 1, 2 * 2 + 2
    assert untouched == injection + router + gains


def test_a_run_of_drawn_repetitions_goes_on_as_if_it_had_never_stopped(fit):
    run = fit(model=CORE, **MANY)
    losses, last = tables(run), weights(run)
    back_to_step(run, 2)
    assert tables(fit(model=CORE, **MANY)) == losses
    for name, weight in weights(run).items():
        assert torch.equal(weight, last[name]), name


def test_routing_has_a_row_of_each_layer_with_the_gains_of_each_repetition(fit):
    run = fit(model=CORE)
    rows = read_csv(run / "routing.csv")
    assert [row["layer"] for row in rows] == ["0", "1", "2"] * 2
    core = rows[-2]
    assert 1 < float(core["expected_core_loops"]) < 3
    gains = weights(run)["model.blocks.1.deep.gains"]
    columns = ["gain_deep_1", "gain_deep_2"]
    columns += [f"{name}_r{r}" for r in (2, 3) for name in columns[:2]]
    written = torch.tensor([float(core[name]) for name in columns])
    torch.testing.assert_close(
        written, torch.nn.functional.softplus(gains), rtol=1e-4, atol=0
    )
    assert rows[-1]["gain_wide"]
    assert not rows[-1]["gain_wide_r2"], "it is applied once"


UNTIED = {"loops": 3, "untied_steps": True}


def test_own_sublayers_of_steps_move_when_the_schedule_reaches_them(fit):
    run = fit(model=UNTIED, run=GROWING | {"save_every": 3})
    third, last = (state(run, step, "model.") for step in (3, 6))
    config = ModelConfig(**read_recipe(run)["model"])
    for key, weight in third.items():
        name = key.removeprefix("model.")
        start = initial_value(name, weight.shape, config, seed=1)
        if is_unused(name, config, 1):
            assert torch.equal(weight, start), name
            assert not torch.equal(weight, last[key]), name
    assert any(is_unused(key.removeprefix("model."), config, 1) for key in third)


@pytest.mark.parametrize(
    ("model", "run", "said"),
    [
        (
            CORE | {"injection": "none"},
            {"backprop_loops": 2},
            "run.backprop_loops=2 of 3 repetitions leaves all weights before the core "
            "without a gradient; choose model.injection: add or linear",
        ),
        (
            {"block": "loop", "loops": 3},
            {"backprop_loops": 1},
            "run.backprop_loops=1 of 3 steps leaves all weights before layer 0",
        ),
        (UNTIED, {"backprop_loops": 1}, "model.untied_steps gives each step its own"),
        (CORE, {"backprop_loops": 3}, "has no effect, as no step runs a longer loop"),
        ({"block": "wide"}, {"backprop_loops": 1}, "has no effect, as no step runs"),
        (
            CORE,
            {"backprop_loops": 2, "train_loops": [1, 2]},
            "has no effect, as no step runs a longer loop",
        ),
        (
            CORE | {"loops": 4, "injection": "none"},
            {"backprop_loops": 3, "train_loops": [3, 9]},
            "run.backprop_loops=3 of 9 repetitions leaves all weights before the core",
        ),
        ({}, {"loop_losses": 0.5}, "run.loop_losses=0.5 has no effect without a core"),
        (CORE | {"core": [2, 1]}, {}, "core=[2, 1] must be [FIRST, LAST]"),
        ({"core_loops": 2}, {}, "model.core_loops=2 has no effect without model.core"),
        (
            CORE | {"core_loops": 1},
            {"train_loops": [1, 2]},
            "run.train_loops has 2: the core was trained with R = 1",
        ),
        (
            CORE,
            {"loop_schedule": [[0, 1], [0.5, 2]]},
            "but validation uses model.core_loops=3",
        ),
    ],
)
def test_what_cannot_train_is_one_line(model, run, said, refused):
    assert said in refused(model=model, run=run)


def test_steps_may_draw_more_repetitions_than_the_models(fit):
    run = fit(model=CORE, run={"train_loops": [1, 9], "backprop_loops": 3})
    assert len(tables(run)["metrics.csv"]) == 6
