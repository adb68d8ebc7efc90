"""Halting, single layers and classes of tokens agree with a naive float64 reference."""

import itertools

import pytest
import torch
from torch import Tensor

from dualpath_cli.model import Intervention
from dualpath_cli.model.loss import IGNORE
from tests.model import reference
from tests.model.reference import Stream, Weights, difference, random_tokens
from tests.model.test_intervention import (
    LONG,
    OUTPUTS,
    SHOWS,
    TINY,
    TOKENS,
    forced_deep_path,
    model_with,
    traced,
    with_changes,
)

# Halting


def halting_deep_path(weights: Weights, config, x: Stream, threshold: float) -> Stream:
    """h_deep of every token, each stopping by itself; a stopped one keeps its state."""
    h, out = list(x), [torch.zeros_like(state) for state in x]
    remaining, going = [1.0] * len(x), [True] * len(x)
    for k in range(1, config.loops + 1):
        gain = reference.softplus(weights["gains"][k - 1])
        new = reference.sublayer(reference.below(weights, "sublayer"), config, h, gain)
        h = [new[t] if going[t] else h[t] for t in range(len(x))]
        for t in range(len(x)):
            if not going[t]:
                continue
            q = reference.halting(weights, config, h[t], k) if k < config.loops else 1.0
            left = remaining[t] * (1 - q)
            if left <= threshold:
                out[t] = out[t] + remaining[t] * h[t]
                going[t] = False
            else:
                out[t] = out[t] + remaining[t] * q * h[t]
                remaining[t] = left
    return out


VARIANTS = {
    "zero-based": {},
    "one-based": {"step_index": "one_based"},
    "five loops": {"loops": 5},
    "loop blocks": {"block": "loop"},
    "mixed blocks": {"block": ["wide", "dual", "loop"], "n_layers": 3},
}


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.2, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_halting_follows_the_protocol(changes, threshold, monkeypatch):
    config = with_changes(**changes)
    weights = reference.random_weights(config, seed=0)
    monkeypatch.setattr(
        reference, "deep_path", lambda w, c, x: halting_deep_path(w, c, x, threshold)
    )
    expected = reference.logits(weights, config, TOKENS)
    model = model_with(config, weights)
    actual = model(TOKENS, intervention=Intervention(halting=threshold))
    assert difference(actual, expected) <= OUTPUTS
    if threshold >= 0.2:
        assert difference(actual, model(TOKENS)) > SHOWS


def test_a_threshold_of_one_is_a_single_loop():
    model = model_with(TINY)
    halted, trace = traced(model, TOKENS, intervention=Intervention(halting=1.0))
    assert torch.equal(halted, model(TOKENS, intervention=Intervention(loops=1)))
    assert [layer.loops_run for layer in trace.layers] == [1, 1]


def test_a_threshold_of_zero_changes_nothing_while_no_mass_is_zero():
    model = model_with(TINY)
    assert torch.equal(model(TOKENS, intervention=Intervention(halting=0.0)), model(TOKENS))


def test_steps_share_all_weight_and_higher_thresholds_run_fewer():
    model = model_with(with_changes(n_layers=1, loops=5))
    few = LONG[2:3, :3]
    before = None
    ran = []
    for threshold in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        _, trace = traced(model, few, intervention=Intervention(halting=threshold))
        (layer,) = trace.layers
        assert layer.step_weights.shape == (*few.shape, 5)
        torch.testing.assert_close(layer.step_weights.sum(-1), torch.ones(few.shape).double())
        if before is not None:
            # Of tokens that see themselves alone: others see states that halted earlier, too.
            assert (layer.expected_loops <= before)[:, 0].all()
        before = layer.expected_loops
        # The loop ran as long as the last token needed, and no longer.
        used = (layer.step_weights > 0).any(0).any(0).nonzero().max().item() + 1
        assert layer.loops_run == used
        ran.append(layer.loops_run)
    assert (ran[0], ran[-1]) == (5, 1)
    assert len(set(ran)) > 2


def test_padding_neither_keeps_a_loop_running_nor_changes_a_loss():
    model = model_with(with_changes(n_layers=1, loops=5))
    tokens, targets = LONG.clone(), random_tokens(TINY, batch=3, length=16, seed=1)
    tokens[:, 7:], targets[:, 7:] = 0, IGNORE
    for threshold in (0.1, 0.3, 0.5, 0.7):
        halting = Intervention(halting=threshold)
        mask = targets != IGNORE
        padded, trace = traced(
            model, tokens, targets=targets, intervention=halting, token_mask=mask
        )
        alone, bare = traced(model, tokens[:, :7], targets=targets[:, :7], intervention=halting)
        torch.testing.assert_close(padded[:, :7], alone)
        assert trace.layers[0].loops_run == bare.layers[0].loops_run
        weights = trace.layers[0].step_weights
        torch.testing.assert_close(weights.sum(-1), torch.ones(tokens.shape).double())


# Single layers


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_only_the_named_layers_change(layers, monkeypatch):
    config = with_changes(n_layers=3)
    weights = reference.random_weights(config, seed=0)
    learned_path, learned_gates = reference.deep_path, reference.gates
    # Called once a layer, and once a token of a layer, sequence after sequence.
    paths, gates = itertools.count(), itertools.count()

    def deep_path(w: Weights, c, x: Stream) -> Stream:
        chosen = next(paths) % 3 in layers
        return forced_deep_path(w, c, x, 2) if chosen else learned_path(w, c, x)

    def overridden(w: Weights, c, x: Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
        chosen = next(gates) // TOKENS.shape[1] % 3 in layers
        return (1.0, 0.25) if chosen else learned_gates(w, c, x)

    monkeypatch.setattr(reference, "deep_path", deep_path)
    monkeypatch.setattr(reference, "gates", overridden)
    expected = reference.logits(weights, config, TOKENS)
    change = Intervention(loops=2, gates=(1.0, 0.25), layers=layers)
    assert difference(model_with(config, weights)(TOKENS, intervention=change), expected) <= OUTPUTS


def test_shuffling_one_layer_leaves_the_gates_before_it_as_they_are():
    model = model_with(with_changes(n_layers=3))
    _, before = traced(model, LONG)
    _, after = traced(model, LONG, intervention=Intervention(gates="shuffled", layers=(1,)))
    learned, shuffled = before.layers[1].gate_deep, after.layers[1].gate_deep
    assert torch.equal(before.layers[0].gate_deep, after.layers[0].gate_deep)
    assert not torch.equal(learned, shuffled)
    assert torch.equal(learned.sort(-1).values, shuffled.sort(-1).values)
    assert not torch.equal(
        before.layers[2].gate_deep.sort(-1).values, after.layers[2].gate_deep.sort(-1).values
    )


# Classes of tokens


def test_only_the_tokens_of_the_class_are_overridden(monkeypatch):
    weights = reference.random_weights(TINY, seed=0)
    mask = torch.tensor([[True, False, False, True, False], [False, False, True, True, True]])
    learned = reference.gates
    calls = itertools.count()

    def gates(w: Weights, c, x: Tensor):
        call = next(calls)
        position, sequence = call % 5, call // (5 * TINY.n_layers)
        return (0.0, 1.0) if mask[sequence, position] else learned(w, c, x)

    monkeypatch.setattr(reference, "gates", gates)
    expected = reference.logits(weights, TINY, TOKENS)
    wide = Intervention(gates=(0.0, 1.0), tokens="some")
    model = model_with(TINY, weights)
    actual = model(TOKENS, intervention=wide, token_mask=mask)
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, model(TOKENS)) > SHOWS


def test_all_tokens_are_a_class_and_no_tokens_are_one():
    model = model_with(TINY)
    wide, some = (Intervention(gates=(0.0, 1.0), tokens=name) for name in (None, "some"))
    every = torch.ones(TOKENS.shape, dtype=torch.bool)
    both = model(TOKENS, intervention=some, token_mask=every)
    assert torch.equal(both, model(TOKENS, intervention=wide))
    assert torch.equal(model(TOKENS, intervention=some, token_mask=~every), model(TOKENS))


def test_a_class_of_tokens_needs_to_be_told_which_they_are():
    wide = Intervention(gates=(0.0, 1.0), tokens="some")
    with pytest.raises(ValueError, match="token_mask must say which"):
        model_with(TINY)(TOKENS, intervention=wide)


# What makes no sense


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({"block": "wide"}, Intervention(halting=0.1), "the model has only wide blocks"),
        ({"combination": "mean"}, Intervention(halting=0.1), "the model has no router"),
        ({"loops": 1}, Intervention(halting=0.1), "the model has no router"),
        ({}, Intervention(loops=1, layers=(0, 2)), "the model has no layer 2: they go up to 1"),
        (
            {"block": ["wide", "loop"]},
            Intervention(loops=1, layers=(0,)),
            "that part of the model has only wide blocks",
        ),
        (
            {"block": ["dual", "loop"]},
            Intervention(gates=(1.0, 0.0), layers=(1,)),
            "that part of the model has no dual block",
        ),
    ],
)
def test_what_a_model_does_not_have_cannot_be_overridden(changes, intervention, reason):
    assert intervention.problem(with_changes(**changes)).startswith(reason)
    with pytest.raises(ValueError, match=f"^{intervention.name}: {reason}"):
        model_with(with_changes(**changes))(TOKENS, intervention=intervention)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"halting": -0.1}, "halting"),
        ({"halting": 1.5}, "halting"),
        ({"halting": float("nan")}, "halting"),
        ({"layers": ()}, "layers"),
        ({"layers": [0]}, "layers"),
        ({"layers": (1, 0)}, "layers"),
        ({"layers": (0, 0)}, "layers"),
        ({"layers": (-1,)}, "layers"),
        ({"tokens": "some"}, "tokens"),
        ({"tokens": "some", "gates": "shuffled"}, "tokens"),
        ({"tokens": "some", "gates": (0.0, 1.0), "loops": 2}, "tokens"),
        ({"tokens": "some", "gates": (0.0, 1.0), "halting": 0.5}, "tokens"),
    ],
)
def test_fields_that_mean_nothing_are_refused(fields, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        Intervention(**fields)


def test_each_intervention_has_a_short_name_of_its_own():
    names = {
        "halting=0.1": Intervention(halting=0.1),
        "K=6 halting=0.1": Intervention(loops=6, halting=0.1),
        "K=2 layers=0,3": Intervention(loops=2, layers=(0, 3)),
        "gates=0,1 tokens=arithmetic": Intervention(gates=(0.0, 1.0), tokens="arithmetic"),
        "gates=0,1 layers=1 tokens=x": Intervention(gates=(0.0, 1.0), layers=(1,), tokens="x"),
    }
    assert {intervention.name: intervention for intervention in names.values()} == names
