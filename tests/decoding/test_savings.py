"""What decoding leaves out is what it says, token for token, however the tokens come."""

import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import Intervention, RoutingTrace
from dualpath_cli.spec.config import COMBINATIONS, ModelConfig
from tests.decoding.test_cache import in_chunks
from tests.model import decoding_reference, reference
from tests.model.reference import difference, random_tokens
from tests.model.small_models import ALL_KINDS, OUTPUTS, SHOWS, UNEVEN, small, with_weights

MODELS = st.builds(
    lambda loops, block, **changes: small(**{"loops": loops, **block}, **changes),
    loops=st.integers(1, 4),
    block=st.sampled_from([{}, ALL_KINDS, UNEVEN]),
    combination=st.sampled_from(COMBINATIONS),
    step_conditioning=st.sampled_from(["none", "film"]),
    qk_norm=st.sampled_from(["after_rope", "before_rope"]),
    n_kv_heads=st.sampled_from([1, 4]),
)
WITH_DOCUMENTS = st.builds(
    lambda config, start: dataclasses.replace(config, document_start=start),
    MODELS,
    st.sampled_from([None, 3]),
)
EXITS = [{"halting": 0.6}, {"halting": 0.6, "loops": 3}]
SAVINGS = st.builds(
    lambda exits, skip, slots: Intervention(**exits, skip=skip, kv_slots=slots),
    exits=st.sampled_from([{}, *EXITS]),
    skip=st.sampled_from([None, 0.5, 0.8]),
    slots=st.sampled_from([None, 1, 2, 3]),
)
several = settings(max_examples=20, derandomize=True, database=None, deadline=None)


def expected(
    config: ModelConfig, tokens: torch.Tensor, saving: Intervention, passes: list[int] | None = None
) -> torch.Tensor:
    """Logits (B, T, V) of the reference."""
    weights = reference.random_weights(config, seed=0)
    rows = [
        decoding_reference.logits(weights, config, row, saving, passes)[0]
        for row in tokens.tolist()
    ]
    return torch.stack(rows)


@several
@given(config=MODELS, saving=SAVINGS, seed=st.integers(0, 99))
def test_token_by_token_the_reference_says_the_same(config, saving, seed):
    """Three sequences, of whose tokens some go on where others stop."""
    assume(saving.problem(config) is None)
    model = with_weights(config)
    tokens = random_tokens(config, batch=3, length=5, seed=seed)
    wanted = expected(config, tokens, saving)
    found = in_chunks(model, tokens, [1] * 5, intervention=saving)
    assert difference(found, wanted) <= OUTPUTS


@several
@given(
    config=MODELS,
    saving=SAVINGS,
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    seed=st.integers(0, 99),
)
def test_a_prompt_in_any_chunks_too(config, saving, lengths, seed):
    assume(saving.problem(config) is None)
    model = with_weights(config)
    tokens = random_tokens(config, batch=2, length=sum(lengths), seed=seed)
    wanted = expected(config, tokens, saving, lengths)
    assert difference(in_chunks(model, tokens, lengths, intervention=saving), wanted) <= OUTPUTS
    if saving.kv_slots is None:  # else it matters which tokens come together
        assert difference(forward(model, tokens, intervention=saving), wanted) <= OUTPUTS


@several
@given(
    config=WITH_DOCUMENTS,
    saving=SAVINGS,
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
)
def test_mixed_lengths_in_a_batch_change_nothing(config, saving, lengths):
    assume(saving.problem(config) is None)
    model, longest = with_weights(config), max(lengths)
    tokens = random_tokens(config, batch=len(lengths), length=longest + 3)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, longest - length :] = True
    found = in_chunks(model, tokens, [longest, 1, 1, 1], mask, intervention=saving)
    for row, length in enumerate(lengths):
        alone = tokens[row : row + 1, longest - length :]
        wanted = in_chunks(model, alone, [length, 1, 1, 1], intervention=saving)
        assert difference(found[row, longest - length :], wanted[0]) <= OUTPUTS


@pytest.mark.parametrize("saving", [{"skip": 0.5}, {"kv_slots": 1}, {"kv_slots": 2}, *EXITS],
                         ids=lambda fields: Intervention(**fields).name)  # fmt: skip
def test_each_saving_shows(saving):
    """So that no test above passes because nothing is left out."""
    model = with_weights(small())
    tokens = random_tokens(model.config, batch=2, length=6)
    change = Intervention(**saving)  # type: ignore[arg-type]
    base = Intervention(loops=change.loops)
    found, without = (forward(model, tokens, intervention=each) for each in (change, base))
    assert difference(found, without) >= SHOWS


def test_without_a_cache_each_token_is_a_pass():
    model = with_weights(small())
    tokens = random_tokens(model.config, batch=2, length=6)
    slots = Intervention(kv_slots=1)
    wanted = in_chunks(model, tokens, [1] * 6, intervention=slots)
    assert difference(forward(model, tokens, intervention=slots), wanted) <= OUTPUTS
    losses = forward(model, tokens[:, :-1], tokens[:, 1:], intervention=slots)
    logs = wanted[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    assert difference(losses, -logs.detach()) <= OUTPUTS


def test_fewer_slots_take_less_memory():
    model = with_weights(small(n_layers=1, loops=4))
    tokens = random_tokens(model.config, batch=1, length=8)
    sizes = {}
    for slots in (1, 2, 3):
        cache = Cache(model.config)
        forward(model, tokens, cache=cache, intervention=Intervention(kv_slots=slots))
        sizes[slots] = cache.bytes
    kept = 2 * 8 * model.config.n_kv_heads * model.config.head_dim * 8  # float64 keys and values
    assert sizes == {slots: (slots + 1) * kept for slots in (1, 2, 3)}


@pytest.mark.parametrize("saving", [{"skip": 0.8}, *EXITS])
def test_a_trace_counts_the_steps_that_were_taken(saving):
    config = small(**ALL_KINDS)
    change = Intervention(**saving)  # type: ignore[arg-type]
    weights = reference.random_weights(config, seed=0)
    model, tokens = with_weights(config, weights), random_tokens(config, batch=1, length=12)
    whole, by_rows = RoutingTrace(), RoutingTrace()
    forward(model, tokens, trace=whole, intervention=change)
    cache = Cache(config)
    for place in range(12):
        part = RoutingTrace()
        forward(model, tokens[:, place : place + 1], cache=cache, intervention=change, trace=part)
        by_rows.append(part)
    _, wanted = decoding_reference.logits(weights, config, tokens[0].tolist(), change)
    for trace in (whole, by_rows):
        for number, layer in enumerate(trace.layers):
            if layer.steps_taken is not None:
                assert layer.steps_taken[0].tolist() == wanted[:, number].tolist()
                # The mean step number is 0 where no step was taken, and at most their count.
                assert torch.equal(layer.expected_loops == 0, layer.steps_taken == 0)
                assert (layer.expected_loops <= layer.steps_taken + 1e-12).all()
    assert len({*wanted[:, :2].flatten().tolist()}) > 1


def test_steps_that_are_left_out_are_not_computed():
    """A sequence whose token stops costs no product in the steps that it does not take."""
    model = with_weights(small(n_layers=1, loops=4))
    tokens = random_tokens(model.config, batch=2, length=3)
    change = Intervention(halting=1.0)  # after the first step, all of them
    cache = Cache(model.config)
    forward(model, tokens, cache=cache, intervention=change)
    rows: list[int] = []
    deep = model.blocks[0].deep.sublayer.ffn  # type: ignore[union-attr]
    hook = deep.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))  # type: ignore[operator,union-attr]
    forward(model, tokens[:, :1], cache=cache, intervention=change)
    hook.remove()
    assert rows == [2]


def test_traces_of_passes_are_joined_with_their_states():
    """Passes in which fewer steps were run lend their last state to the others."""
    model, tokens = with_weights(small()), random_tokens(small(), batch=2, length=12)
    change, cache = Intervention(halting=0.6), Cache(model.config)
    joined, whole = RoutingTrace(keeps_states=True), RoutingTrace(keeps_states=True)
    for place in range(12):
        part = RoutingTrace(keeps_states=True)
        token = tokens[:, place : place + 1]
        forward(model, token, cache=cache, intervention=change, trace=part)
        joined.append(part)
    forward(model, tokens, trace=whole, intervention=change)
    for one, other in zip(joined.layers, whole.layers, strict=True):
        assert len(one.deep_states) == 3
        for number, state in enumerate(one.deep_states):
            wanted = other.deep_states[min(number, len(other.deep_states) - 1)]
            assert difference(state, wanted) <= OUTPUTS
        torch.testing.assert_close(one.step_weights, other.step_weights)


@several
@given(
    config=WITH_DOCUMENTS, kept=st.integers(0, 4), forgotten=st.integers(1, 4), static=st.booleans()
)
def test_what_is_forgotten_leaves_no_trace(config, kept, forgotten, static):
    """Tokens under the draft's loops come in between, and are forgotten."""
    model, draft = with_weights(config), Intervention(loops=1)
    tokens = random_tokens(config, batch=2, length=kept + 3)
    others = random_tokens(config, batch=2, length=forgotten, seed=7)
    cache = Cache(config, capacity=16, static=tokens.device if static else None, draft=draft)
    if kept:
        forward(model, tokens[:, :kept], cache=cache)
    forward(model, others, cache=cache, intervention=draft)
    cache.rewind(kept)
    found = forward(model, tokens[:, kept:], cache=cache)
    assert difference(found, forward(model, tokens)[:, kept:]) <= OUTPUTS
