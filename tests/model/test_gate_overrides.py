"""Constant and shuffled gates, also of a class of tokens, agree with a naive float64 reference."""

import itertools

import pytest
import torch
from torch import Tensor

from dualpath_cli.model import Intervention
from dualpath_cli.model.layer_pass import shuffled_positions
from dualpath_cli.spec.config import GATE_OUTPUTS, ModelConfig
from tests.model import reference
from tests.model.reference import Weights, difference, random_tokens
from tests.model.small_models import OUTPUTS, SHOWS, SMALL, small, traced, with_weights

TOKENS = random_tokens(SMALL, batch=2, length=5)
LONG = random_tokens(SMALL, batch=3, length=16)
SHUFFLE = Intervention(gates="shuffled")
GATES = ("gate_deep", "gate_wide")


@pytest.mark.parametrize("kind", GATE_OUTPUTS)
@pytest.mark.parametrize("gates", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0, 1.0)])
def test_constant_gates_replace_those_of_every_dual_block(gates, kind, monkeypatch):
    config = small(gate=kind, block=["loop", "dual"], loops=2)
    weights = reference.random_weights(config, seed=0)
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: gates)
    model, change = with_weights(config, weights), Intervention(gates=gates)
    expected = reference.logits(weights, config, TOKENS)
    assert difference(model(TOKENS, intervention=change), expected) <= OUTPUTS
    loop, dual = traced(model, TOKENS, intervention=change).layers
    assert loop.gate_deep is None
    assert (dual.gate_deep == gates[0]).all()
    assert (dual.gate_wide == gates[1]).all()


def test_shuffling_one_layer_keeps_its_marginals_and_the_gates_before_it():
    model = with_weights(small(n_layers=3))
    before = traced(model, LONG).layers
    after = traced(model, LONG, intervention=Intervention(gates="shuffled", layers=(1,))).layers
    for gate in GATES:
        learned, shuffled = ([getattr(layer, gate) for layer in run] for run in (before, after))
        assert torch.equal(learned[0], shuffled[0])
        assert torch.equal(learned[1].sort(-1).values, shuffled[1].sort(-1).values)
        assert (learned[1] != shuffled[1]).any(-1).all()
        assert not torch.equal(learned[2].sort(-1).values, shuffled[2].sort(-1).values)


def test_the_seed_gives_each_layer_gate_and_sequence_another_permutation():
    order, again, other = (shuffled_positions(LONG, None, 2, seed) for seed in (0, 0, 1))
    assert torch.equal(order.sort(-1).values, torch.arange(16).expand(2, 3, 2, 16))
    assert len(order.flatten(0, 2).unique(dim=0)) == 2 * 3 * 2
    assert torch.equal(order, again)
    assert (order != other).any(-1).all()


def test_the_two_gates_are_shuffled_independently():
    """Over many sequences every pair of sources is as likely as any other, for each position."""
    draw = torch.Generator().manual_seed(0)
    sequences = torch.randint(2**40, (4000, 4), generator=draw)
    (order_B2T,) = shuffled_positions(sequences, None, n_layers=1, seed=0)
    for position in range(4):
        pairs = order_B2T[:, 0, position] * 4 + order_B2T[:, 1, position]
        counts = pairs.bincount(minlength=16).double()
        expected = 4000 / 16
        # chi-squared with 15 degrees of freedom: 37.7 is its 99.9 % quantile
        assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_shuffled_logits_are_those_of_the_equations_under_the_shuffled_gates(monkeypatch):
    weights = reference.random_weights(SMALL, seed=0)
    tokens = LONG[:1, :8]
    model = with_weights(SMALL, weights)
    actual = model(tokens, intervention=SHUFFLE)
    used = iter(
        (layer.gate_deep[0, t], layer.gate_wide[0, t])
        for layer in traced(model, tokens, intervention=SHUFFLE).layers
        for t in range(tokens.shape[1])
    )
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: next(used))
    assert difference(actual, reference.logits(weights, SMALL, tokens)) <= OUTPUTS
    assert difference(actual, model(tokens)) > SHOWS


def test_shuffling_mixes_no_padding_in_and_leaves_it_untouched():
    model = with_weights(small(n_layers=1))
    mask = torch.ones_like(LONG, dtype=torch.bool)
    mask[1, 7:] = False
    (before,) = traced(model, LONG).layers
    (after,) = traced(model, LONG, intervention=SHUFFLE, token_mask=mask).layers
    for gate in GATES:
        learned, shuffled = getattr(before, gate), getattr(after, gate)
        assert torch.equal(learned[1, 7:], shuffled[1, 7:])
        assert torch.equal(learned[1, :7].sort().values, shuffled[1, :7].sort().values)
        assert not torch.equal(learned[1, :7], shuffled[1, :7])


def test_only_the_tokens_of_the_class_are_overridden(monkeypatch):
    weights = reference.random_weights(SMALL, seed=0)
    mask = torch.tensor([[True, False, False, True, False], [False, False, True, True, True]])
    learned = reference.gates
    calls = itertools.count()

    def gates(w: Weights, c: ModelConfig, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        call = next(calls)
        position, sequence = call % 5, call // (5 * SMALL.n_layers)
        return (0.0, 1.0) if mask[sequence, position] else learned(w, c, x)

    monkeypatch.setattr(reference, "gates", gates)
    expected = reference.logits(weights, SMALL, TOKENS)
    model, wide = with_weights(SMALL, weights), Intervention(gates=(0.0, 1.0), tokens="some")
    actual = model(TOKENS, intervention=wide, token_mask=mask)
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, model(TOKENS)) > SHOWS
