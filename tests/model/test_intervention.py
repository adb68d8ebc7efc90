"""An intervention changes what it says and leaves nothing behind; what a trace
records."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import (
    AuxiliaryLoss,
    DualPathLM,
    Intervention,
    RoutingTrace,
)
from dualpath_cli.model.draws import shuffled_positions
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.spec.config import GATE_OUTPUTS, ModelConfig
from tests.model import reference
from tests.model.reference import Weights, difference, random_tokens
from tests.model.small_models import (
    ALL_KINDS,
    EXPERTS,
    OUTPUTS,
    SHOWS,
    SMALL,
    TARGETS,
    TOKENS,
    small,
    streams,
    traced,
    with_weights,
)

SHUFFLE = Intervention(gates="shuffled")


def test_an_intervention_leaves_nothing_behind_and_an_empty_one_changes_nothing():
    model = with_weights(small(**ALL_KINDS))
    before = model(TOKENS)
    for intervention in (
        Intervention(loops=5),
        Intervention(gates=(1.0, 1.0)),
        SHUFFLE,
    ):
        model(TOKENS, intervention=intervention)
    for options in ({}, {"intervention": Intervention()}, {"trace": RoutingTrace()}):
        assert torch.equal(model(TOKENS, **options), before)


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        ({"n_layers": 4, "block": ["dual", "loop", "dual", "loop"]}, 2),
        (EXPERTS | {"n_layers": 3, "balance": "loss"}, 1),  # whatever the loads are
    ],
)
def test_all_layers_of_a_kind_share_one_graph(changes, graphs):
    model = with_weights(small(**changes)).float()
    eager = [model(tokens) for tokens in (TOKENS, TARGETS)]
    counter = CompileCounter()
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    for tokens, expected in zip((TOKENS, TARGETS), eager, strict=True):
        assert torch.equal(model(tokens, auxiliary=AuxiliaryLoss()), expected)
    assert counter.frame_count == graphs


CORE = {"core": [0, 1], "core_loops": 3, "core_combination": "router"}
CONSTANT = Intervention(gates=(1.0, 0.0))
HALTING = Intervention(halting=0.1)


@pytest.mark.parametrize(
    ("changes", "intervention", "reason"),
    [
        ({"block": "loop"}, CONSTANT, "the model has no dual block"),
        ({"block": "wide"}, SHUFFLE, "the model has no dual block"),
        ({"block": "wide"}, Intervention(loops=2), "the model has only wide blocks"),
        ({"block": "wide"}, HALTING, "the model has only wide blocks"),
        (
            {"loops": 1},
            Intervention(loops=2),
            "the model was trained with one loop, so it has no router",
        ),
        ({"combination": "mean"}, HALTING, "the model has no router"),
        ({"combination": "final"}, HALTING, "the model has no router"),
        ({}, Intervention(experts=1), "the model has no experts"),
        (
            EXPERTS,
            Intervention(experts=5),
            "a layer has only 4 experts: force 4 or fewer, not 5",
        ),
        (
            EXPERTS | {"n_experts": [4, 0]},
            Intervention(experts="random", layers=(1,)),
            "that part of the model has no experts",
        ),
        (
            {"block": "wide"},
            Intervention(kv_slots=1),
            "the model has only wide blocks, so it",
        ),
        (
            {"block": "loop"},
            Intervention(skip=0.1),
            "the model has no dual block, so it has no",
        ),
        ({"loops": 1}, HALTING, "the model has no router"),
        (
            {"loops": [1, 3]},
            Intervention(halting=0.1, layers=(0,)),
            "that part of the model has no router",
        ),
        (
            {},
            Intervention(loops=1, layers=(0, 2)),
            "the model has no layer 2: its layers are 0 to 1",
        ),
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
    assert intervention.problem(small(**changes)).startswith(reason)
    with pytest.raises(ValueError, match=f"^{intervention.name}: {reason}"):
        with_weights(small(**changes))(TOKENS, intervention=intervention)


def test_a_class_of_tokens_needs_to_be_told_which_they_are():
    wide = Intervention(gates=(0.0, 1.0), tokens="some")
    with pytest.raises(ValueError, match="token_mask must say which"):
        with_weights(SMALL)(TOKENS, intervention=wide)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loops", 0),
        ("loops", 1.5),
        ("loops", True),
        ("gates", (1.0,)),
        ("gates", (1.0, 1.5)),
        ("gates", (1.0, float("nan"))),
        ("gates", [1.0, 0.0]),
        ("gates", "shuffle"),
        ("seed", -1),
        ("halting", -0.1),
        ("halting", 1.5),
        ("halting", float("nan")),
        ("skip", 1.5),
        ("kv_slots", 0),
        ("layers", ()),
        ("layers", [0]),
        ("layers", (1, 0)),
        ("layers", (0, 0)),
        ("layers", (-1,)),
    ],
)
def test_fields_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=f"^{field}"):
        Intervention(**{field: value})


CLASS = {"tokens": "some", "gates": (0.0, 1.0)}


@pytest.mark.parametrize(
    "fields",
    [
        CLASS | {"gates": None},
        CLASS | {"gates": "shuffled"},
        CLASS | {"loops": 2},
        CLASS | {"halting": 0.5},
        {"kv_slots": 1, "gates": "shuffled"},
    ],
)
def test_fields_that_exclude_each_other_are_refused(fields):
    """A class of tokens needs constant gates; slots exclude shuffled ones."""
    with pytest.raises(
        ValueError,
        match=r"^(tokens|kv_slots).* (needs constant gates|excludes shuffled)",
    ):
        Intervention(**fields)


# Constant and shuffled gates, also of a class of tokens, beside a naive float64
# reference

FEW = random_tokens(SMALL, batch=2, length=5)
LONG = random_tokens(SMALL, batch=3, length=16)
GATES = ("gate_deep", "gate_wide")


@pytest.mark.parametrize("kind", GATE_OUTPUTS)
@pytest.mark.parametrize("gates", [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0, 1.0)])
def test_constant_gates_replace_those_of_every_dual_block(gates, kind, monkeypatch):
    config = small(gate=kind, block=["loop", "dual"], loops=2)
    weights = reference.random_weights(config, seed=0)
    monkeypatch.setattr(reference, "gates", lambda weights, config, x: gates)
    model, change = with_weights(config, weights), Intervention(gates=gates)
    expected = reference.logits(weights, config, FEW)
    assert difference(model(FEW, intervention=change), expected) <= OUTPUTS
    loop, dual = traced(model, FEW, intervention=change).layers
    assert loop.gate_deep is None
    assert (dual.gate_deep == gates[0]).all()
    assert (dual.gate_wide == gates[1]).all()


def test_shuffling_one_layer_keeps_its_marginals_and_the_gates_before_it():
    model = with_weights(small(n_layers=3))
    before = traced(model, LONG).layers
    after = traced(
        model, LONG, intervention=Intervention(gates="shuffled", layers=(1,))
    ).layers
    for gate in GATES:
        learned, shuffled = (
            [getattr(layer, gate) for layer in run] for run in (before, after)
        )
        assert torch.equal(learned[0], shuffled[0])
        assert torch.equal(learned[1].sort(-1).values, shuffled[1].sort(-1).values)
        assert (learned[1] != shuffled[1]).any(-1).all()
        assert not torch.equal(learned[2].sort(-1).values, shuffled[2].sort(-1).values)


def test_the_seed_gives_each_layer_gate_and_sequence_another_permutation():
    order, again, other = (
        shuffled_positions(LONG, None, 2, seed) for seed in (0, 0, 1)
    )
    assert torch.equal(order.sort(-1).values, torch.arange(16).expand(2, 3, 2, 16))
    assert len(order.flatten(0, 2).unique(dim=0)) == 2 * 3 * 2
    assert torch.equal(order, again)
    assert (order != other).any(-1).all()


def test_the_two_gates_are_shuffled_independently():
    """Over many sequences every pair of sources is as likely as any other, for each
    position."""
    draw = torch.Generator().manual_seed(0)
    sequences = torch.randint(2**40, (4000, 4), generator=draw)
    (order_B2T,) = shuffled_positions(sequences, None, 1, seed=0)
    for position in range(4):
        pairs = order_B2T[:, 0, position] * 4 + order_B2T[:, 1, position]
        counts = pairs.bincount(minlength=16).double()
        expected = 4000 / 16
        # chi-squared with 15 degrees of freedom: 37.7 is its 99.9 % quantile
        assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_shuffled_logits_are_those_of_the_equations_under_the_shuffled_gates(
    monkeypatch,
):
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
    mask = torch.tensor(
        [[True, False, False, True, False], [False, False, True, True, True]]
    )
    learned = reference.gates
    calls = itertools.count()

    def gates(
        w: Weights, c: ModelConfig, x: Tensor
    ) -> tuple[Tensor | float, Tensor | float]:
        call = next(calls)
        position, sequence = call % 5, call // (5 * SMALL.n_layers)
        return (0.0, 1.0) if mask[sequence, position] else learned(w, c, x)

    monkeypatch.setattr(reference, "gates", gates)
    expected = reference.logits(weights, SMALL, FEW)
    model, wide = (
        with_weights(SMALL, weights),
        Intervention(gates=(0.0, 1.0), tokens="some"),
    )
    actual = model(FEW, intervention=wide, token_mask=mask)
    assert difference(actual, expected) <= OUTPUTS
    assert difference(actual, model(FEW)) > SHOWS


# What a trace records


def test_nothing_is_recorded_unless_asked_for(monkeypatch):
    def record(*arguments):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(LayerTrace, "record_updates", record)
    model = with_weights(small(**ALL_KINDS))
    model(TOKENS)
    with pytest.raises(AssertionError, match="nobody asked"):
        model(TOKENS, trace=RoutingTrace())


def test_a_block_records_the_choices_that_it_has():
    config = small(**ALL_KINDS)
    dual, loop, wide = traced(with_weights(config), TOKENS).layers
    assert dual.gate_deep.shape == dual.gate_wide.shape == (2, 8)
    assert dual.step_weights.shape == loop.step_weights.shape == (2, 8, config.loops)
    assert loop.gate_deep is loop.gate_wide is wide.gate_deep is wide.gate_wide is None
    assert wide.step_weights is None
    for updates in (
        dual.update_deep,
        dual.update_wide,
        loop.update_deep,
        wide.update_wide,
    ):
        assert (updates > 0).all()
    assert loop.update_wide is loop.cosine is loop.deep_share is None
    assert wide.update_deep is wide.cosine is wide.deep_share is None
    assert ((dual.deep_share > 0) & (dual.deep_share < 1)).all()


def test_updates_of_nothing_share_alike_and_point_nowhere():
    x = torch.ones(1, 1, 4)
    layer = LayerTrace(gate_deep=torch.ones(1, 1), gate_wide=torch.ones(1, 1))
    for deep, share in ((x, 0.5), (x + 1, 1.0)):
        layer.record_updates(x, deep, x)
        assert (layer.deep_share.item(), layer.cosine.item()) == (share, 0)


def test_updates_are_summed_in_float32_where_the_stream_is_bfloat16():
    x = torch.full((1, 1, 4096), 1.0, dtype=torch.bfloat16)
    layer = LayerTrace()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer.record_updates(x, x + 1, x + 2)
    assert layer.update_deep.dtype == layer.cosine.dtype == torch.float32
    assert layer.update_deep.item() == pytest.approx(64, rel=1e-6)
    assert layer.update_wide.item() == pytest.approx(128, rel=1e-6)
    assert layer.cosine.item() == pytest.approx(1, rel=1e-6)
    # Next to 1 a bfloat16 cannot hold what is added here.
    layer.record_updates(x, x.float() + 1e-4, x.float() - 1e-4)
    assert layer.update_deep.item() == pytest.approx(64e-4, rel=1e-3)
    assert layer.cosine.item() == pytest.approx(-1, rel=1e-5)


def updates_by_hand(states: list[list[float]]) -> tuple[list[float], list[float]]:
    """Sizes and cosines of the steps between h_0 .. h_K of one token, number by
    number."""
    updates = [
        [b - a for a, b in zip(*pair, strict=True)]
        for pair in itertools.pairwise(states)
    ]
    sizes = [
        math.hypot(*u) / math.hypot(*h) for u, h in zip(updates, states, strict=False)
    ]
    cosines = [
        math.fsum(a * b for a, b in zip(u, v, strict=True))
        / (math.hypot(*u) * math.hypot(*v))
        for u, v in itertools.pairwise(updates)
    ]
    return sizes, cosines


@pytest.mark.parametrize("loops", [1, 2, 3, 5])
def test_what_a_step_does_follows_from_the_states_of_the_slow_model(loops):
    """Of the trained number of loops, of fewer and of more."""
    config = small(**ALL_KINDS)
    model, weights = with_weights(config), reference.random_weights(config, seed=0)
    for layer in (0, 1):  # the last one is wide
        change = Intervention(loops=loops, layers=(layer,))
        trace = traced(model, TOKENS, intervention=change).layers[layer]
        own = reference.below(weights, f"blocks.{layer}.deep")
        for row, stream in enumerate(streams(model, TOKENS)[layer][0]):
            slow = reference.deep_states(own, config, list(stream), loops)
            for t in range(len(stream)):
                states = [stream[t].tolist(), *(h[t].tolist() for h in slow)]
                sizes, cosines = updates_by_hand(states)
                assert trace.step_sizes[row, t].tolist() == pytest.approx(
                    sizes, rel=1e-9
                )
                assert trace.step_cosines[row, t, 0].isnan()
                assert trace.step_cosines[row, t, 1:].tolist() == pytest.approx(
                    cosines, abs=1e-9
                )


def test_a_step_that_a_token_does_not_take_does_nothing():
    change = Intervention(halting=0.7)
    for layer in traced(
        with_weights(small(loops=4)), TOKENS, intervention=change
    ).layers:
        taken = torch.arange(4) < layer.steps_taken[..., None]
        assert not taken.all()
        assert ((layer.step_sizes > 0) == taken).all()
        assert ((layer.step_cosines[..., 1:] != 0) == taken[..., 1:]).all()
        assert layer.step_cosines[..., 0].isnan().all()


def test_small_steps_are_measured_in_float32_where_the_stream_is_bfloat16():
    """As an untrained model's are, a thousandth of the state."""
    x = torch.full((1, 1, 64), 1.0)
    layer = LayerTrace()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = [torch.ones(1, 1, 1)]
        layer.record_steps(x.bfloat16(), [x * 1.001, x * 1.0], weights, loops=2)
    assert layer.step_sizes.flatten().tolist() == pytest.approx([1e-3, 1e-3], rel=2e-3)
    assert layer.step_cosines[0, 0, 1].item() == pytest.approx(-1, abs=1e-5)


def of_core(**changes) -> DualPathLM:
    """A model with a core, whose loops and gates matter."""
    config = small(**CORE, gain_init=0.0, init_std=0.3, **changes)
    return DualPathLM(config, seed=0).double()


@pytest.mark.parametrize("combination", ["router", "final"])
def test_a_core_halts_with_or_without_routers_in_its_layers(combination):
    model = of_core(combination=combination)
    # Each token keeps at most all of the mass after the first repetition.
    halted = forward(model, TOKENS, intervention=Intervention(halting=1.0))
    alone = {"loops": 1} if combination == "router" else {}
    once = forward(model, TOKENS, intervention=Intervention(core_loops=1, **alone))
    torch.testing.assert_close(halted, once, rtol=0, atol=0)


def test_in_chosen_layers_only_loops_halt_and_only_their_slots_are_fewer():
    model, trace = of_core(), RoutingTrace()
    in_first = Intervention(halting=1.0, layers=(0,))
    forward(model, TOKENS, trace=trace, intervention=in_first)
    assert (trace.core.steps_taken == 3).all()
    loops = {(layer.layer, layer.loops_run) for layer in trace.layers}
    assert loops == {(0, 1), (1, 3)}

    cache = Cache(model.config)
    fewer = Intervention(kv_slots=1, layers=(0,))
    forward(model, TOKENS, cache=cache, intervention=fewer)
    slots = [[len(one.deep) for one in caches] for caches in cache.layers]
    assert slots == [[1], [3, 3, 3]]
