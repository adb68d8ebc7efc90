"""MinHash: band keys that texts which resemble each other share.

Broder, "On the resemblance and containment of documents" (1997); banding as in Leskovec, Rajaraman
and Ullman, "Mining of Massive Datasets", section 3.4.
"""

import hashlib
import re

import numpy as np
import numpy.typing as npt
from datasketch import MinHash

SHINGLE_WORDS = 5
BANDS = 14
ROWS = 8
"""Values in a band."""

_WORD = re.compile(r"\w+")
_FACTOR = 0x9E3779B97F4A7C15
_SLICE = 1 << 9
"""Features that are permuted at a time: their 112 values each stay in the processor's cache."""
_MOST_WORDS = 1 << 20

# 64 bits: with 32, the shingles of a large corpus are too many to tell apart.
_EMPTY = MinHash(num_perm=BANDS * ROWS, seed=1, scheme="affine64", hashfunc=int)


class _WordHashes(dict[str, bytes]):
    """64-bit hashes of words, made when they are first met."""

    def __missing__(self, word: str) -> bytes:
        if len(self) >= _MOST_WORDS:
            self.clear()  # 150 MB or so: a cache, not a vocabulary
        digest = self[word] = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return digest


_word_hashes = _WordHashes()


def band_keys(text: str) -> npt.NDArray[np.uint64]:
    """Returns a 64-bit key for each band, (BANDS,): texts with an equal one are candidates.

    The features of a text are its runs of five words, in lower case; a shorter text is one run,
    and a text without words is itself the only feature.
    """
    signature = _EMPTY.copy()
    features = shingles(text)
    for start in range(0, len(features), _SLICE):
        signature.update_batch(features[start : start + _SLICE].tolist())
    bands = signature.hashvalues.astype("<u8").reshape(BANDS, ROWS)
    keys = [hashlib.blake2b(band.tobytes(), digest_size=8).digest() for band in bands]
    return np.frombuffer(b"".join(keys), "<u8").astype(np.uint64)


def shingles(text: str) -> npt.NDArray[np.uint64]:
    """Returns 64-bit hashes of a text's different features, sorted, (features,)."""
    words = _WORD.findall(text.lower()) or [text]
    joined = b"".join(map(_word_hashes.__getitem__, words))
    hashes = np.frombuffer(joined, "<u8").astype(np.uint64)
    length = min(SHINGLE_WORDS, len(hashes))
    count = len(hashes) - length + 1
    combined = np.zeros(count, np.uint64)
    # A polynomial of the words' hashes: the order of the words matters.
    for offset in range(length):
        combined = combined * np.uint64(_FACTOR) + hashes[offset : offset + count]
    return np.unique(combined)


def probability(jaccard: float) -> float:
    """Returns how likely two texts share a band, given the Jaccard index of their shingles."""
    return float(1 - (1 - jaccard**ROWS) ** BANDS)
