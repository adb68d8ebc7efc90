"""MinHash: band keys that texts which resemble each other share.

Broder, "On the resemblance and containment of documents" (1997); banding as in Leskovec, Rajaraman
and Ullman, "Mining of Massive Datasets", section 3.4.
"""

import functools
import hashlib

import numpy as np
import numpy.typing as npt

from data_prep.documents.words import Hashes, Words, mix64, runs

SHINGLE_WORDS = 5
BANDS = 14
ROWS = 8
"""Values in a band."""

_HALVES = 2
"""Halves of a shingle's 64-bit hash; each gives half the values of every band."""

_SLICE = 1 << 10
"""Shingles permuted at a time, so that intermediate values stay in the processor's cache."""


def shingles(text: str) -> Hashes:
    """Returns hashes of a text's shingles, its runs of five words, (shingles,), with repeats.

    A text of fewer words is one shingle, and so is one without words.
    """
    words = Words(text).hashes
    if len(words):
        return runs(words, min(SHINGLE_WORDS, len(words)))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.array([int.from_bytes(digest, "little")], np.uint64)


def signature(text: str) -> npt.NDArray[np.uint32]:
    """Returns the least hash among a text's shingles under each permutation, (BANDS, ROWS).

    The values are those of two `datasketch.MinHash` of scheme affine32, one of the lower halves of
    the shingles' hashes and one of the upper: 32 bits alone would take some short texts, whose one
    shingle is all there is of them, for equal.
    """
    hashes = shingles(text)
    factors, offsets = _permutations()
    least = np.full(factors.shape[:2], np.iinfo(np.uint32).max, np.uint32)
    buffer = np.empty((factors.shape[1], min(_SLICE, len(hashes))), np.uint32)
    for half in range(_HALVES):
        mixed = _mix32((hashes >> np.uint64(32 * half)).astype(np.uint32))
        for start in range(0, len(mixed), _SLICE):
            batch = mixed[start : start + _SLICE]
            permuted = np.multiply(factors[half], batch, out=buffer[:, : len(batch)])
            permuted += offsets[half]
            np.minimum(least[half], permuted.min(axis=1), out=least[half])
    return least.reshape(_HALVES, BANDS, -1).swapaxes(0, 1).reshape(BANDS, ROWS)


def band_keys(text: str) -> Hashes:
    """Returns a 64-bit key for each band of a text's signature, (BANDS,).

    Two texts with the same key in any band are candidates for near-duplicates; with a Jaccard index
    j of their shingles they are at odds of 1 - (1 - j^ROWS)^BANDS.
    """
    keys: Hashes = (signature(text) * _band_factors()).sum(axis=1, dtype=np.uint64)
    return mix64(keys)


def _mix32(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Spreads each bit over all 32, in place, as datasketch does before it permutes."""
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


@functools.cache
def _permutations() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Returns factors and offsets of the permutations, each (_HALVES, permutations, 1)."""
    # Imported late: it brings scipy, and most preparations sign nothing.
    from datasketch import MinHash

    count = BANDS * ROWS // _HALVES
    # Drawn by RandomState, whose stream numpy guarantees not to change.
    halves = [MinHash(count, seed, scheme="affine32").permutations for seed in range(_HALVES)]
    factors, offsets = np.stack(halves, axis=1)[..., None].astype(np.uint32)
    return factors, offsets


@functools.cache
def _band_factors() -> Hashes:
    """Returns an odd number for each value of each band, (BANDS, ROWS).

    They differ from band to band, so that equal values in different bands give different keys.
    """
    numbers = mix64(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))
    return (numbers | np.uint64(1)).reshape(BANDS, ROWS)
