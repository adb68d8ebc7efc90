"""The balance of experts by biases: what moves them, how far, and what stays as it is."""

import pytest
import torch

from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.training.balance import ExpertLoads, numbers
from dualpath_cli.training.module import build_optimizer
from tests.model.small_models import EXPERTS, same_weights, small, with_weights

RATE = 1e-3  # which float32 would round
LOADS = [torch.tensor([5, 1, 0, 2]), torch.tensor([1, 3, 2, 2])]
"""Of two micro-batches: 6, 4, 2 and 4 of 16, the mean 4."""


def balanced(balance: str) -> DualPathLM:
    return with_weights(small(**EXPERTS, balance=balance, balance_rate=RATE))


def after_step(balance: str, made: bool) -> tuple[DualPathLM, ExpertLoads]:
    model, loads = balanced(balance), ExpertLoads()
    for load in LOADS:
        loads.add({0: load})
    loads.end_step(model, made)
    return model, loads


def test_biases_move_by_the_sign_of_the_load_of_a_whole_step():
    before = dict(balanced("bias").named_parameters())
    for name, parameter in after_step("bias", made=True)[0].named_parameters():
        moved = parameter - before[name]
        if name == "blocks.0.wide.sublayer.ffn.balance_bias":
            expected = torch.tensor([-RATE, 0, RATE, 0], dtype=torch.float64)
            torch.testing.assert_close(moved, expected, rtol=0, atol=1e-15)
        else:
            assert not moved.any(), name


def test_a_step_that_is_left_out_counts_for_nothing():
    model, loads = after_step("bias", made=False)
    assert same_weights(model, balanced("bias"))
    assert not loads.report()
    loads.add({0: LOADS[0]})
    loads.end_step(model, made=True)
    assert loads.report()["load_max_0"] == 2.5


def test_without_biases_loads_are_counted_and_nothing_moves():
    model, loads = after_step("loss", made=True)
    assert same_weights(model, balanced("loss"))
    assert loads.report()["load_max_0"] == 1.5
    assert not loads.report()  # of the steps since


@pytest.mark.parametrize(
    ("load", "expected"), [([3, 3, 3], (1, 1, 0)), ([0, 8, 0, 0], (4, 0, 3)), ([7], (1, 1, 0))]
)
def test_the_numbers_of_a_load(load, expected):
    assert numbers(torch.tensor(load)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimizers_leave_biases_alone(name):
    model = balanced("bias")
    optimizer = build_optimizer(
        model.named_parameters(), OptimSettings(name=name), 10, model.config
    )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = {name for name, p in model.named_parameters() if id(p) not in held}
    assert left_out
    assert all(name.endswith("ffn.balance_bias") for name in left_out)
