"""Near-duplicates: the words are `re`'s, the values datasketch's, the odds those of the theory."""

import math
import random
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given
from hypothesis import strategies as st

from data_prep.documents import minhash
from data_prep.documents.minhash import BANDS, ROWS, band_keys, shingles, signature
from tests.data_prep.documents.plain_words import words_of


def shingles_of(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    if len(words) < 5:
        return {tuple(words) or (text,)}
    return {tuple(words[n : n + 5]) for n in range(len(words) - 4)}


def jaccard(a: str, b: str) -> float:
    return len(shingles_of(a) & shingles_of(b)) / len(shingles_of(a) | shingles_of(b))


def probability(jaccard: float) -> float:
    """How likely two texts are candidates, given the Jaccard index of their shingles."""
    return float(1 - (1 - jaccard**ROWS) ** BANDS)


def datasketch_values(text: str) -> np.ndarray:
    """A text's signature, value by value, as datasketch computes it, (BANDS, ROWS)."""
    halves = []
    for seed in range(2):
        values = [int(hash) >> 32 * seed & 0xFFFFFFFF for hash in shingles(text)]
        sketch = MinHash(BANDS * ROWS // 2, seed=seed, scheme="affine32", hashfunc=int)
        sketch.update_batch(values)
        halves.append(sketch.hashvalues.reshape(BANDS, ROWS // 2))
    return np.concatenate(halves, axis=1)


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


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_texts_share_as_many_shingles_as_runs_of_five_words(a, b):
    texts = [", ".join(a), "\n".join(b)]
    hashed = [set(shingles(text).tolist()) for text in texts]
    # A text without words is its own shingle: the two differ in what else they are made of.
    expected = [shingles_of(text) for text in texts]
    assert [len(each) for each in hashed] == [len(each) for each in expected]
    assert len(hashed[0] & hashed[1]) == len(expected[0] & expected[1])


@pytest.mark.parametrize("words", [0, 1, 4, 5, 6, 300, 3000])
def test_signatures_are_datasketchs(words):
    text = " ".join(novel_words(words, random.Random(words)))
    np.testing.assert_array_equal(signature(text), datasketch_values(text))


def test_keys_find_the_candidates_that_datasketchs_index_finds():
    rng = random.Random(1)
    texts = []
    for _ in range(40):
        words = novel_words(rng.choice([3, 12, 120]), rng)
        most = max(len(words) // 15, 1)
        versions = [words, *(edited(words, rng.randint(0, most), rng) for _ in range(4))]
        texts += [" ".join(version) for version in versions]
    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    sketches = [MinHash(hashvalues=datasketch_values(t).ravel(), scheme="affine32") for t in texts]
    for number, sketch in enumerate(sketches):
        index.insert(number, sketch)
    found = {(a, b) for b, sketch in enumerate(sketches) for a in index.query(sketch) if a < b}
    assert candidates(texts) == found
    assert 50 < len(found) < 40 * 10


@pytest.mark.parametrize("edits", [1, 3, 5, 8, 12])
def test_candidates_are_as_frequent_as_the_s_curve_says(edits):
    rng = random.Random(edits)
    hits, expected, variance = 0, 0.0, 0.0
    for _ in range(300):
        words = novel_words(150, rng)
        a, b = " ".join(words), " ".join(edited(words, edits, rng))
        hits += bool((band_keys(a) == band_keys(b)).any())
        odds = probability(jaccard(a, b))
        expected += odds
        variance += odds * (1 - odds)
    assert abs(hits - expected) <= 4 * math.sqrt(variance) + 1


def test_the_odds_rise_from_none_to_certainty_with_half_at_the_threshold():
    odds = [probability(hundredth / 100) for hundredth in range(101)]
    assert (odds[0], odds[-1]) == (0, 1)
    assert odds == sorted(odds)
    # The usual approximation of the threshold: (1 / bands) ** (1 / rows), 0.72 here.
    assert 0.5 < probability(BANDS ** (-1 / ROWS)) < 0.7


def test_unrelated_texts_are_no_candidates():
    rng = random.Random(2)
    vocabulary = novel_words(50, rng)
    # Short texts are the hardest: one shingle is all there is of them.
    texts = [" ".join(rng.choices(vocabulary, k=rng.choice([4, 5, 6, 80]))) for _ in range(300)]
    assert not candidates(texts)


def test_texts_without_words_are_candidates_only_if_they_are_equal():
    assert candidates(["!", "?", "", "...", "....", "!"]) == {(0, 5)}


def test_equal_values_in_different_bands_give_different_keys(monkeypatch):
    monkeypatch.setattr(minhash, "signature", lambda text: np.full((BANDS, ROWS), 7, np.uint32))
    assert len(set(band_keys("").tolist())) == BANDS


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
    # Written down once: keys that change would make earlier preparations irreproducible.
    assert band_keys(text)[[0, -1]].tolist() == keys
