"""Texts: cleaned without loss, their signatures datasketch's, their runs of words."""

import random
import unicodedata
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import example, given
from hypothesis import strategies as st

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


def document(
    row: int, text: int, size: int, bands: list[int] | None = None
) -> dict[str, Any]:
    """A row of a piece."""
    return {
        "number": row,
        "id": None,
        "id_hash": row,
        "digest": text.to_bytes(16, "big"),
        "text_bytes": size,
        "bands": bands,
    }


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
