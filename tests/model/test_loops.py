"""Forced loops and halting, in all layers or some, agree with a naive float64
reference."""

import itertools

import pytest
import torch
from torch import Tensor

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import Intervention
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.spec.config import ModelConfig
from tests.model import decoding_reference, reference
from tests.model.reference import Stream, Weights, difference, random_tokens
from tests.model.small_models import (
    CORES,
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
TARGETS = random_tokens(SMALL, batch=2, length=5, seed=1)
LONG = random_tokens(SMALL, batch=3, length=16)

VARIANTS = {
    "zero-based": {},
    "one-based": {"step_index": "one_based"},
    "loop blocks": {"block": "loop"},
    "mixed blocks": {"block": ["wide", "dual", "loop"], "n_layers": 3},
    "loops by layer": UNEVEN,
    "scale and shift a step": {"step_conditioning": "film"},
}
FORCED = VARIANTS | {
    "two loops": {"loops": 2},
    "one-based, two loops": {"loops": 2, "step_index": "one_based"},
    "last step only": {"combination": "final"},
    "mean of the steps": {"combination": "mean"},
    "mean, trained with one": {"combination": "mean", "loops": 1},
    **STEPS,
}
HALTED = VARIANTS | {
    "five loops": {"loops": 5},
    "core, routed": CORES["routed"],
    "core, routed alone": CORES["routed"] | {"block": "wide"},
    "core, not routed": CORES["added input"],
    **STEPS,
}
learned_path = reference.deep_path


@pytest.mark.parametrize("forced", [1, 2, 6])
@pytest.mark.parametrize("changes", FORCED.values(), ids=FORCED.keys())
def test_forced_loops_follow_the_protocol(changes, forced, monkeypatch):
    config = small(**changes)
    weights = reference.random_weights(config, seed=0)
    learned = reference.logits(weights, config, TOKENS)
    monkeypatch.setattr(
        reference, "deep_path", lambda w, c, x: learned_path(w, c, x, loops=forced)
    )
    expected = reference.logits(weights, config, TOKENS)
    actual = with_weights(config, weights)(
        TOKENS, intervention=Intervention(loops=forced)
    )
    assert difference(actual, expected) <= OUTPUTS
    if forced != config.same_loops:
        assert difference(actual, learned) > SHOWS


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("changes", HALTED.values(), ids=HALTED.keys())
def test_halting_follows_the_protocol(changes, threshold):
    config, change = small(**changes), Intervention(halting=threshold)
    weights = reference.random_weights(config, seed=1)
    expected = decoding_reference.batch_logits(weights, config, TOKENS, change, [5])
    model = with_weights(config, weights)
    actual = forward(model, TOKENS, intervention=change)
    assert difference(actual, expected) <= OUTPUTS
    if threshold >= 0.2:
        assert difference(actual, model(TOKENS)) > SHOWS


def test_a_loop_runs_as_long_as_a_token_needs_and_padding_needs_none():
    model = with_weights(small(n_layers=1, loops=5))
    tokens, targets = LONG.clone(), random_tokens(SMALL, batch=3, length=16, seed=1)
    tokens[:, 7:], targets[:, 7:] = 0, IGNORE
    for threshold in (0.1, 0.3, 0.5, 0.7, 1.0):
        halting = {"intervention": Intervention(halting=threshold)}
        masked = halting | {"token_mask": targets != IGNORE}
        alone = tokens[:, :7], targets[:, :7]
        torch.testing.assert_close(
            forward(model, tokens, targets, **masked)[:, :7],
            forward(model, *alone, **halting),
        )
        (padded,) = traced(model, tokens, targets, **masked).layers
        (bare,) = traced(model, *alone, **halting).layers
        assert padded.loops_run == bare.loops_run == bare.steps_taken.max()
        torch.testing.assert_close(
            padded.step_weights.sum(-1), torch.ones(tokens.shape).double()
        )


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 2), (0, 1, 2), None])
def test_only_the_named_layers_change_or_all(layers, monkeypatch):
    config = small(n_layers=3)
    weights = reference.random_weights(config, seed=0)
    learned_gates = reference.gates
    changed = range(3) if layers is None else layers
    # Called once a layer, and once a token of a layer, sequence after sequence.
    paths, gates = itertools.count(), itertools.count()

    def deep_path(w: Weights, c: ModelConfig, x: Stream) -> Stream:
        return learned_path(w, c, x, loops=2 if next(paths) % 3 in changed else None)

    def overridden(
        w: Weights, c: ModelConfig, x: Tensor
    ) -> tuple[Tensor | float, Tensor | float]:
        chosen = next(gates) // TOKENS.shape[1] % 3 in changed
        return (1.0, 0.25) if chosen else learned_gates(w, c, x)

    monkeypatch.setattr(reference, "deep_path", deep_path)
    monkeypatch.setattr(reference, "gates", overridden)
    expected = reference.logits(weights, config, TOKENS)
    change = Intervention(loops=2, gates=(1.0, 0.25), layers=layers)
    assert (
        difference(with_weights(config, weights)(TOKENS, intervention=change), expected)
        <= OUTPUTS
    )
