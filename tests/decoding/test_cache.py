"""A model that keeps keys and values computes what it computes without; padding changes nothing."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM, Intervention
from dualpath_cli.spec.config import COMBINATIONS, GATE_OUTPUTS
from tests.model.reference import difference, random_tokens
from tests.model.small_models import ALL_KINDS, OUTPUTS, SHOWS, TOKENS, UNEVEN, small, with_weights

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
MODELS = st.builds(
    lambda loops, block, **changes: small(**{"loops": loops, **block}, **changes),
    loops=st.integers(1, 4),
    block=st.sampled_from([{}, ALL_KINDS, {"block": "loop"}, UNEVEN]),
    n_kv_heads=st.sampled_from([1, 2, 4]),
    qk_norm=st.sampled_from(["after_rope", "before_rope", "none"]),
    combination=st.sampled_from(COMBINATIONS),
    step_conditioning=st.sampled_from(["none", "film"]),
    gate=st.sampled_from(list(GATE_OUTPUTS)),
    document_start=st.sampled_from([None, 3]),
)
several = settings(max_examples=40, derandomize=True, database=None, deadline=None)


def in_chunks(
    model: DualPathLM,
    tokens: torch.Tensor,
    lengths: list[int],
    attention_mask: torch.Tensor | None = None,
    static: bool = False,
    **options: object,
) -> torch.Tensor:
    """Logits of all tokens, which come in chunks of these lengths, the last one being the rest.

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
        logits.append(forward(model, tokens[:, part], attention_mask=mask, cache=cache, **options))
        start = part.stop
    return torch.cat(logits, dim=1)


@several
@given(config=MODELS, lengths=CHUNKS, seed=st.integers(0, 99))
def test_any_chunks_give_the_logits_of_the_whole(config, lengths, seed):
    model = with_weights(config)
    tokens = random_tokens(config, batch=2, length=sum(lengths), seed=seed)
    assert difference(in_chunks(model, tokens, lengths), forward(model, tokens)) <= OUTPUTS


@several
@given(config=MODELS, masks=MASKS, chunks=CHUNKS, static=st.booleans(), seed=st.integers(0, 99))
@example(small(), [[False, False, True], [True] * 3], [2], False, 0)
def test_padding_changes_no_other_token(config, masks, chunks, static, seed):
    """Wherever it is, also where a chunk ends with it and those that follow have none."""
    model = with_weights(config)
    mask = torch.tensor(masks)
    tokens = random_tokens(config, batch=len(mask), length=mask.shape[1], seed=seed)
    tokens[~mask & (tokens % 2 == 0)] = 3  # padding is often end-of-text, too
    alone = [forward(model, row[real][None])[0] for row, real in zip(tokens, mask, strict=True)]
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
    found = forward(model, padded, attention_mask=mask, intervention=intervention)[:, 3:]
    assert difference(found, wanted) <= OUTPUTS


@pytest.mark.parametrize(
    ("first", "draft", "later", "message"),
    [
        (Intervention(loops=2), None, None, "learned: the cache was begun with K=2"),
        (None, Intervention(loops=1), Intervention(loops=2), "K=2: the cache was begun with learn"),
        (None, None, Intervention(gates="shuffled"), "shuffled: needs the whole sequence"),
        (None, None, Intervention(experts="random"), "experts=random: needs the whole sequence"),
    ],
)
def test_a_cache_goes_with_one_intervention_and_its_draft(first, draft, later, message):
    model, cache = with_weights(small()), Cache(small(), draft=draft)
    forward(model, TOKENS, cache=cache, intervention=first)
    with pytest.raises(ValueError, match=message):
        forward(model, TOKENS[:, :1], cache=cache, intervention=later)


@pytest.mark.parametrize(
    "intervention",
    [Intervention(loops=1), Intervention(loops=5), Intervention(gates=(0.2, 0.9)),
     Intervention(gates=(0.0, 1.0), layers=(1,))],
    ids=lambda intervention: intervention.name,
)  # fmt: skip
def test_interventions_are_the_same_with_a_cache(intervention):
    model = with_weights(small())
    whole = forward(model, TOKENS, intervention=intervention)
    assert difference(whole, forward(model, TOKENS)) >= SHOWS
    for lengths in ([3, 1, 2], [1] * TOKENS.shape[1]):
        cached = in_chunks(model, TOKENS, lengths, intervention=intervention)
        assert difference(cached, whole) <= OUTPUTS


@several
@given(config=MODELS, length=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_batch_goes_on_from_one_sequence(config, length, seed):
    model, cache = with_weights(config), Cache(config)
    start = random_tokens(config, batch=1, length=length, seed=seed)
    rests = random_tokens(config, batch=3, length=4, seed=seed + 100)
    forward(model, start, cache=cache)
    cache.select([0] * 3)
    whole = forward(model, torch.cat((start.expand(3, -1), rests), dim=1))
    assert difference(forward(model, rests, cache=cache), whole[:, length:]) <= OUTPUTS


@several
@given(
    config=MODELS, rows=st.lists(st.integers(0, 2), min_size=1, max_size=4), padded=st.booleans()
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
    found = torch.cat((found[:, :1], forward(model, tokens[rows, 5:], cache=cache)[:, 1:]), dim=1)
    assert difference(found, whole[rows, 5:]) <= OUTPUTS
