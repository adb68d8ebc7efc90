"""The mix: what is taken of each source, and in what order."""

from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.catalogue import Catalogue
from data_prep.duplicates import Judgement, judge
from data_prep.engine import Engine
from data_prep.mix import Pool, interleave, portions
from data_prep.pieces import Piece, PieceCounts, piece_path
from data_prep.scramble import scramble
from data_prep.settings import PreparationSettings, SourceSettings
from tests.data_prep.test_text import document

Lengths = list[list[int]]  # pieces of documents: the tokens of each


def pools_of(
    folder: Path, corpora: list[Lengths], val_fraction: float = 0.0
) -> list[Pool]:
    """Pools whose every document is a run of its own number."""
    number = 0
    for source, corpus in enumerate(corpora):
        (folder / str(source)).mkdir()
        for place, lengths in enumerate(corpus):
            rows, ids = [], []
            for row, length in enumerate(lengths, 1):
                rows.append(document(row, number, length) | {"id_hash": number})
                ids.append(np.full(length, number, np.uint32))
                number += 1
            ends = np.cumsum([len(each) for each in ids], dtype=np.int64)
            tokens = np.concatenate([np.empty(0, np.uint16), *ids]).astype(np.uint16)
            path = piece_path(folder / str(source), 0, place)
            Piece.write(path, rows, tokens, ends, PieceCounts(read=len(rows)))

    pieces = [[(0, n) for n in range(len(corpus))] for corpus in corpora]
    counts = [[len(lengths) for lengths in corpus] for corpus in corpora]
    catalogue = Catalogue.of(folder, pieces, counts)
    judgement = Judgement(
        catalogue, folder / "judged" / "a", "keep", 0.0, val_fraction, folder, 1
    )
    numbers = judge(Engine(), judgement, lambda count: None)
    pools = []
    for source in range(len(corpora)):
        first, stop = catalogue.of_source(source)
        pools.append(Pool(f"s{source}", judgement, first, numbers[first:stop]))
    return pools


def to_hold_out(pool: Pool, number: int) -> list[int]:
    """The indices of a piece's documents that are for validation."""
    held_out = pool.judgement.is_held_out(pool.first + number)
    chosen: list[int] = np.flatnonzero(held_out).tolist()
    return chosen


def asked(
    weights: list[float | None], tokens: int | None, max_epochs: int = 1
) -> PreparationSettings:
    sources = [
        SourceSettings(f"s{n}", "p", weight, max_epochs)
        for n, weight in enumerate(weights)
    ]
    return PreparationSettings(tuple(sources), "t", tokens)


def written(
    pools: list[Pool], mix: PreparationSettings, seed: int = 0
) -> list[tuple[int, int]]:
    """(number, tokens) of each document in the order of the stream."""
    stream = interleave(portions(mix, pools), seed)
    return [(int(tokens[0]), len(tokens)) for tokens in stream]


lengths = st.lists(st.lists(st.integers(1, 40), max_size=7), min_size=1, max_size=5)
corpora = st.lists(lengths, min_size=1, max_size=3)
some = corpora.filter(lambda c: all(any(piece for piece in corpus) for corpus in c))


@settings(max_examples=60)
@given(corpora=corpora, seed=st.integers(0, 3))
def test_without_weights_every_document_is_written_once(
    tmp_path_factory, corpora, seed
):
    pools = pools_of(tmp_path_factory.mktemp("pools"), corpora)
    stream = written(pools, asked([None] * len(corpora), None), seed)
    flat = [length for corpus in corpora for piece in corpus for length in piece]
    assert sorted(stream) == list(enumerate(flat))


@settings(max_examples=60)
@given(corpus=lengths, tokens=st.integers(1, 300), max_epochs=st.integers(1, 3))
def test_of_one_source_the_first_documents_are_taken_as_often_as_needed(
    tmp_path_factory, corpus, tokens, max_epochs
):
    pools = pools_of(tmp_path_factory.mktemp("pools"), [corpus])
    stream = written(pools, asked([None], tokens, max_epochs))
    flat = [length for piece in corpus for length in piece]
    # The plain way: go through the documents, again and again, until there is enough.
    taken: Counter[int] = Counter()
    total = 0
    for n in list(range(len(flat))) * max_epochs:
        if total >= tokens:
            break
        taken[n] += 1
        total += flat[n]
    assert Counter(n for n, _ in stream) == taken


@settings(max_examples=60)
@given(
    corpora=some,
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_shares_are_kept_to_a_document_by_every_source(
    tmp_path_factory, corpora, weights
):
    weights = weights[: len(corpora)]
    pools = pools_of(tmp_path_factory.mktemp("pools"), corpora)
    taken = portions(asked(list(weights), None), pools)
    totals = [pool.tokens for pool in pools]
    longest = [max(n for piece in corpus for n in piece) for corpus in corpora]
    shares = [weight / sum(weights) for weight in weights]
    whole = min(total / share for total, share in zip(totals, shares, strict=True))
    for portion, share, most in zip(taken, shares, longest, strict=True):
        assert -1 <= portion.tokens - whole * share <= most
        assert portion.all_passes <= 1


@settings(max_examples=60)
@given(corpora=some, seed=st.integers(0, 3))
def test_every_source_is_spread_evenly_over_the_stream(tmp_path_factory, corpora, seed):
    pools = pools_of(tmp_path_factory.mktemp("pools"), corpora)
    stream = written(pools, asked([None] * len(corpora), None), seed)
    totals = np.array([pool.tokens for pool in pools])
    counts = [sum(map(len, corpus)) for corpus in corpora]
    owner = np.repeat(np.arange(len(corpora)), counts)
    longest = max(n for corpus in corpora for piece in corpus for n in piece)
    seen = np.zeros(len(corpora))
    for number, length in stream:
        seen[owner[number]] += length
        # At any point each source is as far as the whole, give or take a document of
        # each.
        behind = seen - totals * (seen.sum() / totals.sum())
        assert np.abs(behind).max() <= longest * len(corpora)


@settings(max_examples=30)
@given(corpus=lengths, fraction=st.floats(0, 1, exclude_max=True))
def test_documents_are_held_out_by_their_ids_alone(tmp_path_factory, corpus, fraction):
    (pool,) = pools_of(tmp_path_factory.mktemp("pools"), [corpus], fraction)
    (flat,) = pools_of(
        tmp_path_factory.mktemp("pools"),
        [[[n for piece in corpus for n in piece]]],
        fraction,
    )
    starts = np.cumsum([0, *map(len, corpus)])
    held = [
        int(starts[n] + d) for n in range(len(corpus)) for d in to_hold_out(pool, n)
    ]
    kept = [int(starts[n] + d) for n in range(len(corpus)) for d in pool.to_write(n)]
    assert held == to_hold_out(flat, 0)
    assert sorted([*held, *kept]) == list(range(starts[-1]))


def test_scrambling_gives_the_numbers_that_it_always_gave():
    """SplitMix64, by which corpora are shuffled and held out: a corpus prepared again
    is equal."""
    assert scramble(np.arange(2, dtype=np.uint64), "salt").tolist() == [
        2794304801140600949,
        17766921333146602268,
    ]


@settings(max_examples=100)
@given(
    corpora=some,
    weighted=st.booleans(),
    repeats=st.integers(1, 3),
    tokens=st.none() | st.integers(1, 300),
    seed=st.integers(0, 3),
    share=st.floats(0, 1),
)
def test_from_any_token_on_the_stream_is_the_same(
    tmp_path_factory, corpora, weighted, repeats, tokens, seed, share
):
    pools = pools_of(tmp_path_factory.mktemp("pools"), corpora)
    weights = [1.0 + n for n in range(len(corpora))]
    is_weighted = weighted or len(corpora) > 1
    mix = asked([*weights] if is_weighted else [None], tokens, repeats)
    taken = portions(mix, pools)
    whole = np.concatenate(list(interleave(taken, seed)))
    begin = int(share * (len(whole) - 1))
    part = np.concatenate(list(interleave(taken, seed, begin)))
    np.testing.assert_array_equal(part, whole[begin:])
