"""Texts and their mix: what repeats, what is taken of each source, and in what
order."""

import random
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.mix import (
    EXACT,
    KEPT,
    NEAR,
    Pool,
    Verdicts,
    interleave,
    portions,
    scramble,
)
from data_prep.pieces import Piece, PieceCounts
from data_prep.settings import Preparation, SourceSettings
from data_prep.text import (
    BANDS,
    ROWS,
    Contamination,
    band_keys,
    shingles,
    signature,
    words_of,
)
from dualpath_cli.data.documents import clean

Corpus = list[list[tuple[int, tuple[int, ...]]]]
"""Pieces of documents, each the number of its text and its band keys."""


def document(
    row: int, text: int, size: int, bands: list[int] | None = None
) -> dict[str, Any]:
    return {
        "number": row,
        "id": None,
        "id_hash": row,
        "digest": text.to_bytes(16, "big"),
        "text_bytes": size,
        "bands": bands,
    }


def write_pieces(folder: Path, corpus: Corpus) -> list[Piece]:
    pieces = []
    for number, documents in enumerate(corpus):
        rows = []
        for row, (text, bands) in enumerate(documents, 1):
            keys = np.resize(np.array(bands, np.uint64), BANDS)
            # Texts differ in the second half only.
            rows.append(document(row, text, 1, keys.tolist()))
        path = folder / f"{number}.arrow"
        ends = np.arange(1, len(rows) + 1)
        Piece.write(
            path, rows, np.ones(len(rows), np.uint16), ends, PieceCounts(read=len(rows))
        )
        pieces.append(Piece(path))
    return pieces


def expected(corpus: Corpus, kind: str) -> tuple[list[int], list[int | None]]:
    """Compares each document with all before it."""
    documents = [document for piece in corpus for document in piece]
    verdicts, firsts = [], []
    for n, (text, bands) in enumerate(documents):
        verdict, first = KEPT, None
        equal = [m for m in range(n) if documents[m][0] == text]
        full = [np.resize(documents[m][1], BANDS) for m in range(n)]
        mine = np.resize(bands, BANDS)
        shared = [
            next((m for m in range(n) if full[m][band] == mine[band]), None)
            for band in range(BANDS)
        ]
        if kind != "keep" and equal:
            verdict, first = EXACT, equal[0]
        elif kind == "near" and any(m is not None for m in shared):
            verdict, first = NEAR, next(m for m in shared if m is not None)
        verdicts.append(verdict)
        firsts.append(first)
    return verdicts, firsts


key = st.integers(0, 5) | st.sampled_from([2**64 - 1, 2**63])
judged_document = st.tuples(st.integers(0, 6), st.tuples(key, key, key))
judged = st.lists(st.lists(judged_document, max_size=6), max_size=5)


@settings(max_examples=150)
@given(corpus=judged, kind=st.sampled_from(["keep", "exact", "near"]))
def test_a_document_is_judged_by_all_before_it(corpus, kind):
    with tempfile.TemporaryDirectory() as name:
        pieces = write_pieces(Path(name), corpus)
        verdicts = Verdicts(pieces, kind)
        found = [int(v) for kinds in verdicts.kinds for v in kinds]
        firsts = [int(v) for own in verdicts.firsts for v in own]
        judged, leaders = expected(corpus, kind)
        assert found == judged
        assert [f for f, v in zip(firsts, found, strict=True) if v != KEPT] == [
            leader for leader in leaders if leader is not None
        ]
        assert verdicts.any() == any(v != KEPT for v in judged)


Lengths = list[list[int]]  # pieces of documents: the tokens of each


def pools_of(
    folder: Path, corpora: list[Lengths], val_fraction: float = 0.0
) -> list[Pool]:
    """Pools whose every document is a run of its own number."""
    pieces: list[list[Piece]] = []
    number = 0
    for source, corpus in enumerate(corpora):
        pieces.append([])
        for lengths in corpus:
            rows, ids = [], []
            for row, length in enumerate(lengths, 1):
                rows.append(document(row, number, length) | {"id_hash": number})
                ids.append(np.full(length, number, np.uint32))
                number += 1
            path = folder / f"{source}-{len(pieces[-1])}.arrow"
            ends = np.cumsum([len(each) for each in ids], dtype=np.int64)
            tokens = np.concatenate([np.empty(0, np.uint16), *ids]).astype(np.uint16)
            Piece.write(path, rows, tokens, ends, PieceCounts(read=len(rows)))
            pieces[-1].append(Piece(path))
    kinds = [Verdicts(each, "keep").kinds for each in pieces]
    return [
        Pool(f"s{n}", each, kinds[n], val_fraction) for n, each in enumerate(pieces)
    ]


def asked(
    weights: list[float | None], tokens: int | None, max_epochs: int = 1
) -> Preparation:
    sources = [
        SourceSettings(f"s{n}", "p", weight, max_epochs)
        for n, weight in enumerate(weights)
    ]
    return Preparation(tuple(sources), "t", tokens)


def written(
    pools: list[Pool], mix: Preparation, seed: int = 0
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
    held = [int(starts[n] + d) for n in range(len(corpus)) for d in pool.to_hold_out(n)]
    kept = [int(starts[n] + d) for n in range(len(corpus)) for d in pool.to_write(n)]
    assert held == flat.to_hold_out(0).tolist()
    assert sorted([*held, *kept]) == list(range(starts[-1]))


def test_scrambling_gives_the_numbers_that_it_always_gave():
    """SplitMix64, by which corpora are shuffled and held out: a corpus prepared again
    is equal."""
    assert scramble(np.arange(2, dtype=np.uint64), "salt").tolist() == [
        2794304801140600949,
        17766921333146602268,
    ]


# A text: cleaned without loss, its signature datasketch's, its runs of words


# Much of what cleaning is about, and what could hide it: marks that compose, jamo,
# singletons.
MESSY = st.text(
    st.one_of(
        st.sampled_from("\r\n\0\ufeff e\u0301\u0323\u1100\u1161\u212b\u0958"),
        st.characters(),
    )
)


def by_hand(text: str) -> str:
    """Cleans one character at a time."""
    kept: list[str] = []
    text = "".join(character for character in text if character != "\0")
    for place, character in enumerate(text):
        if character == "\r":
            if text[place + 1 : place + 2] != "\n":
                kept.append("\n")
        elif character != "\ufeff" or kept:
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


@given(MESSY)
@example("\r\0\n")
@example("\0\ufeff\0\ufeff\u0301")
@example("\ufeffa\ufeffb")  # one inside a text stays
@example("\ufb01 \u00b2")  # compatible characters stay apart
def test_cleaning_does_what_it_says_and_changes_no_cleaned_text(text):
    assert clean(text) == clean(clean(text)) == by_hand(text)


ALPHABET = [f"word{n}" for n in range(26)]


def naive_hit(evaluations: Sequence[str], text: str) -> str | None:
    known: set[tuple[str, ...]] = set()
    for evaluation in evaluations:
        words = words_of(evaluation)
        length = min(len(words), 13)
        if length >= 8:
            known |= {
                tuple(words[n : n + length]) for n in range(len(words) - length + 1)
            }
    words = words_of(text)
    for start in range(len(words)):
        for length in range(13, 7, -1):
            run = tuple(words[start : start + length])
            if len(run) == length and run in known:
                return " ".join(run)
    return None


# Two words, for runs that repeat often: few texts of eight words or more share nothing.
EVALUATIONS = st.lists(
    st.lists(st.sampled_from("ab"), max_size=20).map(" ".join), max_size=6
)


@given(EVALUATIONS, st.lists(st.sampled_from("abc"), max_size=60).map("-".join))
@example([" ".join(ALPHABET[15:23]), " ".join(ALPHABET[:13])], " ".join(ALPHABET))
@example([" ".join(ALPHABET[:8]), " ".join(ALPHABET[:13])], " ".join(ALPHABET))
@example([], " ".join(ALPHABET))
def test_the_hit_is_the_first_run_that_is_in_both(evaluations, text):
    sought = Contamination(evaluations)
    assert sought.find(text) == naive_hit(evaluations, text)


def shingles_of(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    if len(words) < 5:
        return {tuple(words) or (text,)}
    return {tuple(words[n : n + 5]) for n in range(len(words) - 4)}


def candidates(texts: Sequence[str]) -> set[tuple[int, int]]:
    keys = [band_keys(text) for text in texts]
    pairs = combinations(range(len(texts)), 2)
    return {(a, b) for a, b in pairs if (keys[a] == keys[b]).any()}


def novel_words(count: int, random: random.Random) -> list[str]:
    return [f"w{random.getrandbits(40):x}" for _ in range(count)]


def edited(words: list[str], edits: int, random: random.Random) -> list[str]:
    words = list(words)
    for place in random.sample(range(len(words)), edits):
        words[place] = novel_words(1, random)[0]
    return words


@given(
    st.lists(st.sampled_from("abc"), max_size=40),
    st.lists(st.sampled_from("abc"), max_size=40),
)
def test_texts_share_as_many_shingles_as_runs_of_five_words(a, b):
    texts = [", ".join(a), "\n".join(b)]
    hashed = [set(shingles(text).tolist()) for text in texts]
    # A text without words is its own shingle: the two differ in what else they are made
    # of.
    expected = [shingles_of(text) for text in texts]
    assert [len(each) for each in hashed] == [len(each) for each in expected]
    assert len(hashed[0] & hashed[1]) == len(expected[0] & expected[1])


def test_keys_find_the_candidates_that_datasketchs_index_finds():
    rng = random.Random(1)
    texts = []
    for _ in range(40):
        words = novel_words(rng.choice([3, 12, 120]), rng)
        most = max(len(words) // 15, 1)
        versions = [
            words,
            *(edited(words, rng.randint(0, most), rng) for _ in range(4)),
        ]
        texts += [" ".join(version) for version in versions]
    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    sketches = [
        MinHash(hashvalues=signature(t).ravel(), scheme="affine32") for t in texts
    ]
    for number, sketch in enumerate(sketches):
        index.insert(number, sketch)
    found = {
        (a, b)
        for b, sketch in enumerate(sketches)
        for a in index.query(sketch)
        if a < b
    }
    assert candidates(texts) == found
    assert 50 < len(found) < 40 * 10


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("one, two, three, four, five", [0xFA50066E0160D9E7, 0x850715597F1E9ACD]),
        (
            "Ein Männlein steht im Walde, ganz still und stumm.",
            [0xA0FE612B2F068A0F, 0x6C974A35B6A7EA45],
        ),
        ("--", [0xBD41A8DEA7695C2E, 0x29CFB5C68BB21B5]),
    ],
)
def test_keys_are_the_same_everywhere(text, keys):
    # Written down once: keys that change would make earlier preparations
    # irreproducible.
    assert band_keys(text)[[0, -1]].tolist() == keys
