"""A model that keeps keys and values computes what it computes without; padding changes
nothing.

What decoding leaves out is what it says, token for token, however the tokens come.
"""

import dataclasses

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM, Intervention, RoutingTrace
from dualpath_cli.spec.config import COMBINATIONS, GATE_OUTPUTS
from tests.conftest import examples
from tests.model import decoding_reference, reference
from tests.model.reference import difference, random_tokens
from tests.model.small_models import (
    ALL_KINDS,
    CORES,
    OUTPUTS,
    SHOWS,
    TOKENS,
    UNEVEN,
    small,
    with_weights,
)

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)
"""Numbers of tokens that come together; all ones is token by token."""
CHUNKS = LENGTHS | LENGTHS.map(lambda lengths: [1] * sum(lengths))
MASKS = st.integers(1, 9).flatmap(
    lambda length: st.lists(
        st.lists(st.booleans(), min_size=length, max_size=length).filter(any),
        min_size=2,
        max_size=3,
    )
)
"""Where two or three sequences of one length are no padding."""
STEPS = {
    "untied_steps": st.booleans(),
    "step_kv": st.sampled_from(["own", "first"]),
    "deep_ffn": st.sampled_from([True, True, False]),
}
MODELS = st.builds(
    lambda loops, block, **changes: small(**{"loops": loops, **block}, **changes),
    loops=st.integers(1, 4),
    block=st.sampled_from([{}, ALL_KINDS, {"block": "loop"}, UNEVEN, *CORES.values()]),
    n_kv_heads=st.sampled_from([1, 2, 4]),
    **STEPS,
    qk_norm=st.sampled_from(["after_rope", "before_rope", "none"]),
    combination=st.sampled_from(COMBINATIONS),
    step_conditioning=st.sampled_from(["none", "film"]),
    gate=st.sampled_from(list(GATE_OUTPUTS)),
    document_start=st.sampled_from([None, 3]),
)
CORE = pytest.mark.parametrize("changes", CORES.values(), ids=CORES.keys())
several = settings(max_examples=examples(25))


def in_chunks(
    model: DualPathLM,
    tokens: torch.Tensor,
    lengths: list[int],
    attention_mask: torch.Tensor | None = None,
    static: bool = False,
    **options: object,
) -> torch.Tensor:
    """Logits of all tokens, which come in chunks of these lengths, the last one being
    the rest.

    A chunk without padding comes without a mask.
    """
    device = tokens.device if static else None
    cache, logits, start = Cache(model.config, tokens.shape[1], device), [], 0
    for length in [*lengths, tokens.shape[1]]:
        part = slice(start, min(start + length, tokens.shape[1]))
        if part.start == part.stop:
            break
        mask = None if attention_mask is None else attention_mask[:, part]
        mask = None if mask is None or mask.all() else mask
        logits.append(
            forward(model, tokens[:, part], attention_mask=mask, cache=cache, **options)
        )
        start = part.stop
    return torch.cat(logits, dim=1)


@several
@given(config=MODELS, lengths=CHUNKS, seed=st.integers(0, 99))
def test_any_chunks_give_the_logits_of_the_whole(config, lengths, seed):
    model = with_weights(config)
    tokens = random_tokens(config, batch=2, length=sum(lengths), seed=seed)
    assert (
        difference(in_chunks(model, tokens, lengths), forward(model, tokens)) <= OUTPUTS
    )


@several
@given(
    config=MODELS,
    masks=MASKS,
    chunks=CHUNKS,
    static=st.booleans(),
    seed=st.integers(0, 99),
)
@example(small(), [[False, False, True], [True] * 3], [2], False, 0)
def test_padding_changes_no_other_token(config, masks, chunks, static, seed):
    """Wherever it is, also where a chunk ends with it and those that follow have
    none."""
    model = with_weights(config)
    mask = torch.tensor(masks)
    tokens = random_tokens(config, batch=len(mask), length=mask.shape[1], seed=seed)
    tokens[~mask & (tokens % 2 == 0)] = 3  # padding is often end-of-text, too
    alone = [
        forward(model, row[real][None])[0]
        for row, real in zip(tokens, mask, strict=True)
    ]
    for padded in (
        forward(model, tokens, attention_mask=mask),
        in_chunks(model, tokens, chunks, mask, static),
    ):
        for logits, real, wanted in zip(padded, mask, alone, strict=True):
            assert torch.isfinite(logits).all()
            assert difference(logits[real], wanted) <= OUTPUTS


@pytest.mark.parametrize(
    "intervention",
    [Intervention(gates="shuffled"), Intervention(halting=0.2)],
    ids=lambda i: i.name,
)
def test_interventions_leave_padding_out(intervention):
    model = with_weights(small())
    padded = torch.cat((TOKENS.flip(1)[:, :3], TOKENS), dim=1)
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[:, :3] = False
    wanted = forward(model, TOKENS, intervention=intervention)
    found = forward(model, padded, attention_mask=mask, intervention=intervention)[
        :, 3:
    ]
    assert difference(found, wanted) <= OUTPUTS


@pytest.mark.parametrize(
    ("first", "draft", "later", "message"),
    [
        (Intervention(loops=2), None, None, "learned: the cache was begun with K=2"),
        (
            None,
            Intervention(loops=1),
            Intervention(loops=2),
            "K=2: the cache was begun with learn",
        ),
        (
            None,
            None,
            Intervention(gates="shuffled"),
            "shuffled: needs the whole sequence",
        ),
        (
            None,
            None,
            Intervention(experts="random"),
            "experts=random: needs the whole sequence",
        ),
    ],
)
def test_a_cache_goes_with_one_intervention_and_its_draft(first, draft, later, message):
    model, cache = with_weights(small()), Cache(small(), draft=draft)
    forward(model, TOKENS, cache=cache, intervention=first)
    with pytest.raises(ValueError, match=message):
        forward(model, TOKENS[:, :1], cache=cache, intervention=later)


@pytest.mark.parametrize(
    "change",
    [
        {"loops": 1},
        {"loops": 5},
        {"gates": (0.2, 0.9)},
        {"gates": (0, 1), "layers": (1,)},
        {"held": 2},
    ],
)
def test_interventions_are_the_same_with_a_cache(change):
    model, change = with_weights(small()), Intervention(**change)
    whole = forward(model, TOKENS, intervention=change)
    assert difference(whole, forward(model, TOKENS)) >= SHOWS
    assert (
        difference(in_chunks(model, TOKENS, [3, 1, 1], intervention=change), whole)
        <= OUTPUTS
    )


@pytest.mark.parametrize("loops", [1, 5])
@CORE
def test_forced_repetitions_are_the_same_with_a_cache(changes, loops):
    model, change = with_weights(small(**changes)), Intervention(core_loops=loops)
    whole = forward(model, TOKENS, intervention=change)
    found = in_chunks(model, TOKENS, [3, 1, 1], intervention=change)
    assert difference(found, whole) <= OUTPUTS


@several
@given(
    config=MODELS,
    rows=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    padded=st.booleans(),
)
def test_some_of_a_batch_go_on(config, rows, padded):
    model, cache = with_weights(config), Cache(config)
    tokens = random_tokens(config, batch=3, length=8)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, :2] = not padded
    whole = forward(model, tokens, attention_mask=mask)
    forward(model, tokens[:, :5], attention_mask=mask[:, :5], cache=cache)
    cache.select(rows)
    found = forward(model, tokens[rows, 5:7], cache=cache)
    cache.rewind(5)
    found = torch.cat(
        (found[:, :1], forward(model, tokens[rows, 5:], cache=cache)[:, 1:]), dim=1
    )
    assert difference(found, whole[rows, 5:]) <= OUTPUTS


# What is left out

SIMPLER = st.builds(
    lambda loops, block, **changes: small(**{"loops": loops, **block}, **changes),
    loops=st.integers(1, 4),
    block=st.sampled_from([{}, ALL_KINDS, UNEVEN, *CORES.values(), CORES["routed"]]),
    **STEPS,
    combination=st.sampled_from(COMBINATIONS),
    step_conditioning=st.sampled_from(["none", "film"]),
    qk_norm=st.sampled_from(["after_rope", "before_rope"]),
    n_kv_heads=st.sampled_from([1, 4]),
)
WITH_DOCUMENTS = st.builds(
    lambda config, start: dataclasses.replace(config, document_start=start),
    SIMPLER,
    st.sampled_from([None, 3]),
)
EXITS = [{"halting": 0.6}, {"halting": 0.6, "loops": 3}]
IN_CORE = {"halting": 0.6, "core_loops": 4}
SAVINGS = st.builds(
    lambda exits, skip, slots: Intervention(**exits, skip=skip, kv_slots=slots),
    exits=st.sampled_from([{}, *EXITS, IN_CORE]),
    skip=st.sampled_from([None, 0.5, 0.8]),
    slots=st.sampled_from([None, 1, 2, 3]),
)


@settings(max_examples=examples(10))
@given(config=SIMPLER, saving=SAVINGS, seed=st.integers(0, 99))
@example(small(**CORES["routed"]), Intervention(**IN_CORE, kv_slots=2), 0)  # is rare
def test_token_by_token_the_reference_says_the_same(config, saving, seed):
    """Three sequences, of whose tokens some go on where others stop."""
    assume(saving.problem(config) is None)
    model = with_weights(config)
    tokens = random_tokens(config, batch=3, length=5, seed=seed)
    weights = reference.random_weights(config, seed=0)
    wanted = decoding_reference.batch_logits(weights, config, tokens, saving)
    found = in_chunks(model, tokens, [1] * 5, intervention=saving)
    assert difference(found, wanted) <= OUTPUTS


@settings(max_examples=examples(10))
@given(
    config=SIMPLER,
    saving=SAVINGS,
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    seed=st.integers(0, 99),
)
def test_a_prompt_in_any_chunks_too(config, saving, lengths, seed):
    assume(saving.problem(config) is None)
    model = with_weights(config)
    tokens = random_tokens(config, batch=2, length=sum(lengths), seed=seed)
    weights = reference.random_weights(config, seed=0)
    wanted = decoding_reference.batch_logits(weights, config, tokens, saving, lengths)
    assert (
        difference(in_chunks(model, tokens, lengths, intervention=saving), wanted)
        <= OUTPUTS
    )
    if saving.kv_slots is None:  # else it matters which tokens come together
        assert (
            difference(forward(model, tokens, intervention=saving), wanted) <= OUTPUTS
        )


@settings(max_examples=examples(10))
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
    # float64 keys and values
    kept = 2 * 8 * model.config.n_kv_heads * model.config.head_dim * 8
    assert sizes == {slots: (slots + 1) * kept for slots in (1, 2, 3)}


def test_fewer_slots_of_a_core_take_less_memory():
    """Of its three repetitions, and of the two steps in each."""
    config = small(**CORES["routed"])
    model, tokens = with_weights(config), random_tokens(config, batch=1, length=8)
    sizes = {}
    for slots in (1, 2, 3):
        cache = Cache(config)
        change = Intervention(kv_slots=slots) if slots < 3 else None
        forward(model, tokens, cache=cache, intervention=change)
        sizes[slots] = cache.bytes
    kept = 2 * 8 * config.n_kv_heads * config.head_dim * 8
    wide, dual, loop = 1, 1 + 2, 2
    assert sizes == {
        1: (wide + 2 + 1) * kept,
        2: (wide + 2 * (dual + loop)) * kept,
        3: (wide + 3 * (dual + loop)) * kept,
    }


def test_layers_without_an_intervention_keep_all_and_leave_nothing():
    """A core keeps all repetitions where its layers are not named, and tokens leave it
    only where all of them are."""
    config = small(**CORES["routed"])
    model = with_weights(config)
    cache = Cache(config)
    change = Intervention(halting=0.9, kv_slots=1, layers=(1,))
    trace = RoutingTrace()
    forward(model, TOKENS, cache=cache, intervention=change, trace=trace)
    assert [len(caches) for caches in cache.layers] == [1, 1, 3]
    assert (trace.core.steps_taken == 3).all()


@pytest.mark.parametrize("changes", [ALL_KINDS, CORES["routed"]])
@pytest.mark.parametrize("saving", [{"skip": 0.8}, *EXITS])
def test_a_trace_counts_the_steps_that_were_taken(saving, changes):
    config = small(**changes)
    change = Intervention(**saving)  # type: ignore[arg-type]
    weights = reference.random_weights(config, seed=0)
    model, tokens = (
        with_weights(config, weights),
        random_tokens(config, batch=1, length=12),
    )
    whole, by_rows = RoutingTrace(), RoutingTrace()
    forward(model, tokens, trace=whole, intervention=change)
    cache = Cache(config)
    for place in range(12):
        part = RoutingTrace()
        forward(
            model,
            tokens[:, place : place + 1],
            cache=cache,
            intervention=change,
            trace=part,
        )
        by_rows.append(part)
    _, wanted = decoding_reference.logits(weights, config, tokens[0].tolist(), change)
    assert len(by_rows.layers) == len(config.applications())
    for trace in (whole, by_rows):
        for number, layer in enumerate(trace.layers):
            if layer.steps_taken is not None:
                assert layer.steps_taken[0].tolist() == wanted[:, number].tolist()
                # The mean step number is 0 where no step was taken, and at most their
                # count.
                assert torch.equal(layer.expected_loops == 0, layer.steps_taken == 0)
                assert (layer.expected_loops <= layer.steps_taken + 1e-12).all()
    assert len({*wanted[:, :2].flatten().tolist()}) > 1


def test_steps_that_are_left_out_are_not_computed():
    """A sequence whose token stops costs no product in the steps that it does not
    take."""
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


@settings(max_examples=examples(10))
@given(
    config=WITH_DOCUMENTS,
    kept=st.integers(0, 4),
    forgotten=st.integers(1, 4),
    static=st.booleans(),
)
def test_what_is_forgotten_leaves_no_trace(config, kept, forgotten, static):
    """Tokens under the draft's loops, or repetitions, come in between, and are
    forgotten."""
    fewer = {"loops": 1} if config.core is None else {"core_loops": 1}
    model, draft = with_weights(config), Intervention(**fewer)
    tokens = random_tokens(config, batch=2, length=kept + 3)
    others = random_tokens(config, batch=2, length=forgotten, seed=7)
    cache = Cache(
        config, capacity=16, static=tokens.device if static else None, draft=draft
    )
    if kept:
        forward(model, tokens[:, :kept], cache=cache)
    forward(model, others, cache=cache, intervention=draft)
    cache.rewind(kept)
    found = forward(model, tokens[:, kept:], cache=cache)
    assert difference(found, forward(model, tokens)[:, kept:]) <= OUTPUTS
