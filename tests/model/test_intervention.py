"""Interventions agree with a naive float64 reference, and change nothing but what they name."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM, Intervention, RoutingTrace
from dualpath_cli.model.gates import shuffled_positions
from dualpath_cli.model.loss import IGNORE
from tests.model import reference
from tests.model.reference import Stream, Weights, difference, random_tokens

OUTPUTS = 1e-10
"""Largest difference of float64 logits allowed, relative to the largest logit."""
SHOWS = 1e-4
"""Least difference that an intervention makes, on the same scale."""

TINY = ModelConfig(
    vocab_size=13,
    n_layers=2,
    d_model=12,
    n_heads=2,
    n_kv_heads=2,
    max_seq_len=16,
    loops=3,
    d_ffn=17,
    d_ffn_wide=31,
    ffn_multiple_of=4,
)
TOKENS = random_tokens(TINY, batch=2, length=5)


def with_changes(**changes) -> ModelConfig:
    return dataclasses.replace(TINY, **changes)


def model_with(config: ModelConfig, weights: Weights | None = None) -> DualPathLM:
    weights = weights or reference.random_weights(config, seed=0)
    return reference.load(DualPathLM(config).double(), weights)


def traced(model: DualPathLM, tokens: Tensor, **arguments) -> tuple[Tensor, RoutingTrace]:
    trace = RoutingTrace()
    return model(tokens, trace=trace, **arguments), trace


# Loops


def forced_step_weights(
    weights: Weights, config: ModelConfig, h: list[Tensor], forced: int
) -> list[Tensor]:
    """Weights of the `forced` states of one token, the rules one after the other."""
    trained = config.loops
    one = torch.ones((), dtype=torch.float64)
    if config.combination == "final":
        return [0 * one] * (forced - 1) + [one]
    if config.combination == "mean":
        return [one / forced] * forced
    out, remaining = [], one
    for k in range(1, forced):
        numerator = k - 1 if config.step_index == "zero_based" else k
        if forced <= trained:
            index = numerator / max(1, forced - 1)
        else:
            index = min(1.0, numerator / max(1, trained - 1))
        features = torch.cat([h[k - 1], torch.tensor([index], dtype=torch.float64)])
        q = reference.sigmoid(weights["router.weight"][0] @ features + weights["router.bias"][0])
        out.append(remaining * q)
        remaining = remaining * (1 - q)
    return [*out, remaining]


def forced_deep_path(weights: Weights, config: ModelConfig, x: Stream, forced: int) -> Stream:
    """h_deep of every token after `forced` steps; gains beyond the trained ones repeat the last."""
    steps, h = [], x
    for k in range(1, forced + 1):
        gain = weights["gains"][k - 1] if k <= config.loops else weights["gains"][-1]
        sublayer = reference.below(weights, "sublayer")
        h = reference.sublayer(sublayer, config, h, reference.softplus(gain))
        steps.append(h)
    out = []
    for states in zip(*steps, strict=True):
        shares = forced_step_weights(weights, config, list(states), forced)
        out.append(sum(share * state for share, state in zip(shares, states, strict=True)))
    return out


VARIANTS = {
    "zero-based": {},
    "one-based": {"step_index": "one_based"},
    "two loops": {"loops": 2},
    "one-based, two loops": {"loops": 2, "step_index": "one_based"},
    "last step only": {"combination": "final"},
    "mean of the steps": {"combination": "mean"},
    "mean, trained with one": {"combination": "mean", "loops": 1},
    "loop blocks": {"block": "loop"},
    "mixed blocks": {"block": ["wide", "dual", "loop"], "n_layers": 3},
}


@pytest.mark.parametrize("forced", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_forced_loops_follow_the_protocol(changes, forced, monkeypatch):
    config = with_changes(**changes)
    weights = reference.random_weights(config, seed=0)
    learned = reference.logits(weights, config, TOKENS)
    monkeypatch.setattr(
        reference, "deep_path", lambda w, config, x: forced_deep_path(w, config, x, forced)
    )
    expected = reference.logits(weights, config, TOKENS)
    actual = model_with(config, weights)(TOKENS, intervention=Intervention(loops=forced))
    assert difference(actual, expected) <= OUTPUTS
    if forced != config.loops:
        assert difference(actual, learned) > SHOWS


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_forcing_the_trained_loops_changes_no_bit(changes):
    config = with_changes(**changes)
    model = model_with(config).float()
    targets = random_tokens(config, batch=2, length=5, seed=1)
    forced = model(TOKENS, targets, intervention=Intervention(loops=config.loops))
    assert torch.equal(forced, model(TOKENS, targets))


@pytest.mark.parametrize("forced", [1, 2, 5])
def test_forced_steps_share_all_of_the_weight(forced):
    _, trace = traced(model_with(TINY), TOKENS, intervention=Intervention(loops=forced))
    for layer in trace.layers:
        assert layer.step_weights.shape == (*TOKENS.shape, forced)
        torch.testing.assert_close(layer.step_weights.sum(-1), torch.ones(2, 5).double())


# Gates


@pytest.mark.parametrize("kind", ["two_gates", "convex", "softmax", "fixed"])
@pytest.mark.parametrize("gates", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0, 1.0)])
def test_constant_gates_replace_those_of_every_dual_block(gates, kind, monkeypatch):
    config = with_changes(gate=kind, block=["loop", "dual"], loops=2)
    weights = reference.random_weights(config, seed=0)
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: gates)
    expected = reference.logits(weights, config, TOKENS)
    actual, trace = traced(
        model_with(config, weights), TOKENS, intervention=Intervention(gates=gates)
    )
    assert difference(actual, expected) <= OUTPUTS
    assert trace.layers[0].gate_deep is None
    assert (trace.layers[1].gate_deep == gates[0]).all()
    assert (trace.layers[1].gate_wide == gates[1]).all()


def test_loops_and_gates_are_overridden_together(monkeypatch):
    weights = reference.random_weights(TINY, seed=0)
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: (1.0, 0.5))
    monkeypatch.setattr(reference, "deep_path", lambda w, c, x: forced_deep_path(w, c, x, 5))
    expected = reference.logits(weights, TINY, TOKENS)
    both = Intervention(loops=5, gates=(1.0, 0.5))
    actual = model_with(TINY, weights)(TOKENS, intervention=both)
    assert difference(actual, expected) <= OUTPUTS


SHUFFLE = Intervention(gates="shuffled")
LONG = random_tokens(TINY, batch=3, length=16)
ONE_LAYER = with_changes(n_layers=1)


def test_shuffling_keeps_the_marginal_distribution_of_gates_in_each_sequence():
    model = model_with(ONE_LAYER)
    _, before = traced(model, LONG)
    _, after = traced(model, LONG, intervention=SHUFFLE)
    for gate in ("gate_deep", "gate_wide"):
        learned, shuffled = getattr(before.layers[0], gate), getattr(after.layers[0], gate)
        assert torch.equal(learned.sort(-1).values, shuffled.sort(-1).values)
        assert (learned != shuffled).any(-1).all()


def test_each_layer_gate_and_sequence_gets_a_permutation_of_its_own():
    order = shuffled_positions(LONG, None, n_layers=2, seed=0)
    assert torch.equal(order.sort(-1).values, torch.arange(16).expand(2, 3, 2, 16))
    assert len(order.flatten(0, 2).unique(dim=0)) == 2 * 3 * 2


def test_the_seed_decides_the_permutations():
    first, again, other = (shuffled_positions(LONG, None, 2, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first != other).any(-1).all()


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
    weights = reference.random_weights(TINY, seed=0)
    tokens = LONG[:1, :8]
    actual, trace = traced(model_with(TINY, weights), tokens, intervention=SHUFFLE)
    used = iter(
        (layer.gate_deep[0, t], layer.gate_wide[0, t])
        for layer in trace.layers
        for t in range(tokens.shape[1])
    )
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: next(used))
    assert difference(actual, reference.logits(weights, TINY, tokens)) <= OUTPUTS
    assert difference(actual, model_with(TINY, weights)(tokens)) > SHOWS


def test_shuffling_mixes_no_padding_in_and_leaves_it_untouched():
    model = model_with(ONE_LAYER)
    mask = torch.ones_like(LONG, dtype=torch.bool)
    mask[1, 7:] = False
    _, before = traced(model, LONG)
    _, after = traced(model, LONG, intervention=SHUFFLE, token_mask=mask)
    for gate in ("gate_deep", "gate_wide"):
        learned, shuffled = getattr(before.layers[0], gate), getattr(after.layers[0], gate)
        assert torch.equal(learned[1, 7:], shuffled[1, 7:])
        assert torch.equal(learned[1, :7].sort().values, shuffled[1, :7].sort().values)
        assert not torch.equal(learned[1, :7], shuffled[1, :7])


def test_a_shuffled_loss_does_not_depend_on_batch_and_padding():
    model = model_with(TINY)
    tokens, targets = LONG.clone(), random_tokens(TINY, batch=3, length=16, seed=1)
    tokens[1, 7:], targets[1, 7:] = 0, IGNORE
    mask = targets != IGNORE
    together = model(tokens, targets, intervention=SHUFFLE, token_mask=mask)
    alone = model(tokens[1:2, :7], targets[1:2, :7], intervention=SHUFFLE)
    torch.testing.assert_close(together[1, :7], alone[0])


def test_one_token_has_nothing_to_shuffle_with():
    model = model_with(TINY)
    assert torch.equal(model(TOKENS[:, :1], intervention=SHUFFLE), model(TOKENS[:, :1]))


# No intervention


def test_no_intervention_and_an_empty_one_are_the_same_to_the_bit():
    model = model_with(TINY).float()
    assert torch.equal(model(TOKENS, intervention=Intervention()), model(TOKENS))


def test_an_intervention_leaves_nothing_behind():
    model = model_with(TINY)
    before = model(TOKENS)
    for intervention in (Intervention(loops=5), Intervention(gates=(1.0, 1.0)), SHUFFLE):
        model(TOKENS, intervention=intervention)
    assert torch.equal(model(TOKENS), before)


def test_all_layers_of_a_kind_share_one_graph():
    model = model_with(with_changes(n_layers=4, block=["dual", "loop", "dual", "loop"])).float()
    eager = model(TOKENS)
    counter = CompileCounter()
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    assert torch.equal(model(TOKENS), eager)
    assert counter.frame_count == 2


# What makes no sense


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({"block": "loop"}, Intervention(gates=(1.0, 0.0)), "no dual block"),
        ({"block": "wide"}, SHUFFLE, "no dual block"),
        ({"block": "wide"}, Intervention(loops=2), "only wide blocks"),
        ({"loops": 1}, Intervention(loops=2), "no router"),
    ],
)
def test_what_a_model_does_not_have_cannot_be_overridden(changes, intervention, reason):
    with pytest.raises(ValueError, match=f"^{intervention.name}: the model .*{reason}"):
        model_with(with_changes(**changes))(TOKENS, intervention=intervention)


@pytest.mark.parametrize(
    "fields",
    [
        {"loops": 0},
        {"loops": 1.5},
        {"loops": True},
        {"gates": (1.0,)},
        {"gates": (1.0, 1.5)},
        {"gates": (1.0, float("nan"))},
        {"gates": [1.0, 0.0]},
        {"gates": "shuffle"},
        {"seed": -1},
    ],
)
def test_fields_that_mean_nothing_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Intervention(**fields)


def test_each_intervention_has_a_short_name_of_its_own():
    names = {
        "learned": Intervention(),
        "K=3": Intervention(loops=3),
        "gates=1,0": Intervention(gates=(1.0, 0.0)),
        "gates=0.5,0.5": Intervention(gates=(0.5, 0.5)),
        "shuffled": SHUFFLE,
        "shuffled:7": Intervention(gates="shuffled", seed=7),
        "K=2 shuffled": Intervention(loops=2, gates="shuffled"),
    }
    assert {intervention.name: intervention for intervention in names.values()} == names
    assert len(set(names.values())) == len(names)  # hashable, and all different
