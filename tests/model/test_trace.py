"""What forward writes down when asked: nothing else changes, and read-outs mean what they say."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dualpath_cli.model import Intervention, RoutingTrace
from dualpath_cli.model.routing import LayerTrace
from tests.model.small_models import ALL_KINDS, EXACT, SMALL, TOKENS, small, traced, with_weights


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
