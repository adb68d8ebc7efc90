"""What forward writes down when asked: nothing else changes, and read-outs mean what they say."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dualpath_cli.model import Intervention, RoutingTrace
from dualpath_cli.model.routing import LayerTrace
from tests.model import reference
from tests.model.small_models import (
    ALL_KINDS,
    EXACT,
    SMALL,
    TOKENS,
    small,
    streams,
    traced,
    with_weights,
)


def test_recording_changes_nothing():
    model = with_weights(small(**ALL_KINDS))
    assert torch.equal(model(TOKENS, trace=RoutingTrace()), model(TOKENS))


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
    for updates in (dual.update_deep, dual.update_wide, loop.update_deep, wide.update_wide):
        assert (updates > 0).all()
    assert loop.update_wide is loop.cosine is loop.deep_share is None
    assert wide.update_deep is wide.cosine is wide.deep_share is None
    assert ((dual.deep_share > 0) & (dual.deep_share < 1)).all()


MODEL = with_weights(SMALL)


@settings(max_examples=25)
@given(st.floats(0, 1), st.floats(0, 1))
def test_the_deep_share_follows_the_gates(g_d, g_w):
    assume(g_d + g_w > 1e-6)
    tokens = TOKENS[:1, :4]
    trace = RoutingTrace()
    MODEL(tokens, trace=trace, intervention=Intervention(gates=(g_d, g_w)))
    for layer in trace.layers:
        odds = g_d * layer.update_deep, g_w * layer.update_wide
        error = layer.deep_share - odds[0] / (odds[0] + odds[1])
        assert error.abs().max() <= EXACT
    MODEL(tokens, trace=(only_deep := RoutingTrace()), intervention=Intervention(gates=(1, 0)))
    assert all((layer.deep_share == 1).all() for layer in only_deep.layers)


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
    """Sizes and cosines of the steps between h_0 .. h_K of one token, number by number."""
    updates = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(states)]
    sizes = [math.hypot(*u) / math.hypot(*h) for u, h in zip(updates, states, strict=False)]
    cosines = [
        math.fsum(a * b for a, b in zip(u, v, strict=True)) / (math.hypot(*u) * math.hypot(*v))
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
                assert trace.step_sizes[row, t].tolist() == pytest.approx(sizes, rel=1e-9)
                assert trace.step_cosines[row, t, 0].isnan()
                assert trace.step_cosines[row, t, 1:].tolist() == pytest.approx(cosines, abs=1e-9)


def test_a_step_that_a_token_does_not_take_does_nothing():
    change = Intervention(halting=0.7)
    for layer in traced(with_weights(small(loops=4)), TOKENS, intervention=change).layers:
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
