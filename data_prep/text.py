"""A text: its words, its MinHash signature, and runs of words of evaluation texts.

Words are the matches of `\\w+` in the lower case. MinHash: Broder, "On the resemblance
and containment of documents" (1997); banding as in Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", section 3.4.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15
_MOST = 1 << 16  # characters of a word that are hashed


def words_of(text: str) -> list[str]:
    """Returns the matches of `\\w+` in a text's lower case."""
    return re.findall(r"\w+", text.lower())


def hashes_of(words: Sequence[str]) -> Hashes:
    """Returns 64 bits for each word, (words,)."""
    return mix64(np.fromiter(map(_polynomial, words), np.uint64, len(words)))


@functools.lru_cache(maxsize=1 << 17)
def _polynomial(word: str) -> int:
    """Returns a polynomial of a word's code points, modulo 2^64."""
    value = 0
    for character in reversed(word[:_MOST]):
        value = (value * _BASE + ord(character)) & 0xFFFFFFFFFFFFFFFF
    return value


def runs(hashes: Hashes, length: int) -> Hashes:
    """Returns a hash of each run of `length` words from the words' hashes, (runs,)."""
    count = max(len(hashes) - length + 1, 0)
    combined = np.zeros(count, np.uint64)
    for offset in range(length):  # a polynomial: the order of the words matters
        combined = combined * np.uint64(_BASE) + hashes[offset : offset + count]
    return combined


def mix64(hashes: Hashes) -> Hashes:
    """Spreads each bit over all 64, in place: MurmurHash3's finaliser, a bijection."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes ^= hashes >> np.uint64(33)
        hashes *= np.uint64(factor)
    hashes ^= hashes >> np.uint64(33)
    return hashes


LONGEST = 13  # words in a run
SHORTEST = 8  # shorter evaluation texts would be found by chance


class Contamination:
    """Finds runs of words of evaluation texts by their hashes."""

    fingerprint: str  # sha256 of the searched runs, whatever the order of the texts

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are cleaned."""
        words_of_texts = map(words_of, texts)
        long_enough = (words for words in words_of_texts if len(words) >= SHORTEST)
        lines = sorted({" ".join(words) for words in long_enough})
        self.fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()

        lengths = range(LONGEST, SHORTEST - 1, -1)
        self._runs: dict[int, set[int]] = {length: set() for length in lengths}
        """Hashes by the number of words, the longest runs first."""
        for line in lines:
            words = line.split(" ")
            length = min(LONGEST, len(words))
            own_runs = runs(hashes_of(words), length)
            self._runs[length].update(own_runs.tolist())

    def find(self, text: str) -> str | None:
        """Returns the first run of words that a cleaned text shares with an evaluation.

        None without such a run. The words are in lower case with a space between. Of
        two runs from the same word on, the longer one is returned.
        """
        words = words_of(text)
        hashes = hashes_of(words)
        first = len(words)
        shared = None
        for length, known in self._runs.items():
            if not known:
                continue

            places = enumerate(runs(hashes, length).tolist())
            begin = next((place for place, run in places if run in known), first)
            if begin < first:
                first = begin
                shared = " ".join(words[begin : begin + length])
        return shared


# Signatures

SHINGLE_WORDS = 5
BANDS = 14
ROWS = 8  # values in a band

# halves of a shingle's 64-bit hash; each gives half the values of every band
_HALVES = 2

_SLICE = 1 << 10  # shingles permuted at a time: 250 kB


def shingles(text: str) -> Hashes:
    """Returns hashes of the runs of five words, (shingles,).

    A shorter text is one run; one without words has the hash of its characters.
    """
    words = hashes_of(words_of(text))
    if len(words):
        return runs(words, min(SHINGLE_WORDS, len(words)))

    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.array([int.from_bytes(digest, "little")], np.uint64)


def signature(text: str) -> npt.NDArray[np.uint32]:
    """Returns a text's least hash under each permutation, (BANDS, ROWS)."""
    from datasketch import MinHash  # of the extra `near`; it brings scipy

    # Two sketches, of the lower and of the upper halves of the shingles' hashes: by 32
    # bits only some short texts, of one shingle, would be taken for equal.
    hashes = shingles(text)
    halves = []
    for half in range(_HALVES):
        sketch = MinHash(BANDS * ROWS // _HALVES, half, hashfunc=int, scheme="affine32")
        own_bits = (hashes >> np.uint64(32 * half)).astype(np.uint32)
        for start in range(0, len(own_bits), _SLICE):
            part = own_bits[start : start + _SLICE]
            sketch.update_batch(part.tolist())
        halves.append(sketch.hashvalues.reshape(BANDS, -1))
    return np.concatenate(halves, axis=1)


def band_keys(text: str) -> Hashes:
    """Returns a 64-bit key for each band of a text's signature, (BANDS,).

    Two texts with the same key in any band are candidates for near-duplicates. If their
    shingles have Jaccard index j, the probability is 1 - (1 - j^ROWS)^BANDS.
    """
    keys: Hashes = (signature(text) * _band_factors()).sum(axis=1, dtype=np.uint64)
    return mix64(keys)


@functools.cache
def _band_factors() -> Hashes:
    """Odd numbers, (BANDS, ROWS)."""
    # Equal values in different bands then give different keys.
    numbers = mix64(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))
    return (numbers | np.uint64(1)).reshape(BANDS, ROWS)
