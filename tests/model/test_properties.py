"""What must hold of any dual-path model, whatever its weights, and of every model at the start."""

from collections.abc import Callable

import pytest
import torch

from dualpath_cli.model import DualPathLM
from tests.model import reference
from tests.model.reference import Weights, difference, random_tokens
from tests.model.small_models import (
    EXACT,
    SMALL,
    TOKENS,
    medium,
    small,
    streams,
    with_weights,
)  # fmt: skip


@pytest.mark.parametrize("block", ["dual", "loop", "wide"])
def test_each_block_at_the_start_returns_its_input_to_one_percent_but_not_exactly(block):
    config = medium(block=block)
    for x, y in streams(DualPathLM(config, seed=0), random_tokens(config, 2, 32)):
        assert 1e-5 < ((y - x).norm() / x.norm()).item() < 1e-2


def keep(weights: Weights) -> Weights:
    return weights


def filled(values: dict[str, float | list[float]]) -> Callable[[Weights], Weights]:
    """Edits weights: those whose names end so get these values."""

    def edit(weights: Weights) -> Weights:
        edited = dict(weights)
        for name in weights:
            for end, value in values.items():
                if name.endswith(end):
                    filling = torch.tensor(value, dtype=torch.float64)
                    edited[name] = filling.expand_as(weights[name])
        return edited

    return edit


def routed_by(bias: float) -> Callable[[Weights], Weights]:
    """Edits weights: every router decides by this bias alone."""
    return filled({"router.weight": 0.0, "router.bias": bias})


def first_gains(weights: Weights) -> Weights:
    return {k: w[:1] if k.endswith("gains") else w for k, w in routed_by(1000)(weights).items()}


def deep_as_wide(weights: Weights) -> Weights:
    names = {name: name.replace("deep.gains", "wide.gain") for name in weights}
    return {names[name].replace("deep", "wide"): weight for name, weight in weights.items()}


def gate_of_difference(weights: Weights) -> Weights:
    return {k: w[:1] - w[1:] if ".gate.proj." in k else w for k, w in weights.items()}


ONE, TWO = {"loops": 1}, {"loops": 2}
EQUAL_MODELS = {
    "a router that never stops returns the last step": (
        ({}, routed_by(-1000)), ({"combination": "final"}, keep)
    ),
    "a router that stops at once returns the first step": (
        ({}, routed_by(1000)), (ONE, first_gains)
    ),
    "an undecided router of two steps returns their mean": (
        (TWO, routed_by(0)), (TWO | {"combination": "mean"}, keep)
    ),
    "one step is the last step": ((ONE, keep), (ONE | {"combination": "final"}, keep)),
    "one step is the mean": ((ONE, keep), (ONE | {"combination": "mean"}, keep)),
    "a loop block of one step is a wide block": (
        (ONE | {"block": "loop"}, keep),
        ({"block": "wide", "d_ffn_wide": SMALL.d_ffn}, deep_as_wide),
    ),
    "an open and a shut gate leave the deep path": (
        ({}, filled({"gate.proj.bias": [1000.0, -1000.0]})), ({"block": "loop"}, keep)
    ),
    "a shut and an open gate leave the wide path": (
        ({}, filled({"gate.proj.bias": [-1000.0, 1000.0]})), ({"block": "wide"}, keep)
    ),
    "a softmax of two logits is the convex gate of their difference": (
        ({"gate": "softmax"}, keep), ({"gate": "convex"}, gate_of_difference)
    ),
    "two gates at the start are fixed gates": (
        ({}, filled({"gate.proj.weight": 0.0, "gate.proj.bias": 0.0})), ({"gate": "fixed"}, keep)
    ),
    # A rotation keeps the RMS: only learned norm weights tell the two orders apart.
    "scales and shifts of zero are none": (
        ({"step_conditioning": "film"}, filled({".film": 0.0})), ({}, keep)
    ),
    "query and key norms of one are the same before and after rotating": (
        ({}, filled({"q_norm.weight": 1.0, "k_norm.weight": 1.0})),
        ({"qk_norm": "before_rope"}, filled({"q_norm.weight": 1.0, "k_norm.weight": 1.0})),
    ),
}  # fmt: skip
"""Two models of equal outputs: changes of SMALL and edits of the first one's random weights."""


@pytest.mark.parametrize(("one", "other"), EQUAL_MODELS.values(), ids=EQUAL_MODELS.keys())
def test_two_models_are_equal(one, other):
    weights = reference.random_weights(small(**one[0]), seed=0)
    first, second = (
        with_weights(small(**changes), edit(weights))(TOKENS) for changes, edit in (one, other)
    )
    assert difference(second, first) <= EXACT


def test_scales_and_shifts_start_as_none_and_move_by_themselves():
    """Loss, shared gradients and their first update are bit for bit those without."""
    plain, film = (DualPathLM(small(step_conditioning=kind), seed=0) for kind in ("none", "film"))
    losses, gradients = [], {}
    for model in (plain, film):
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(TOKENS, TOKENS.roll(-1, 1)).mean()
        loss.backward()
        gradients |= {name: p.grad.abs().max() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss)
    assert losses[0] == losses[1]
    shared = dict(film.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, shared[name]), name
        assert torch.equal(parameter.grad, shared[name].grad), name
    assert all(size > 0 for name, size in gradients.items() if name.endswith("film"))
