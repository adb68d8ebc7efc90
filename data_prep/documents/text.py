"""A text: cut into words, and signed; and the runs of words that evaluation texts have.

Words are the matches of `\\w+` in the lower case. MinHash: Broder, "On the resemblance and
containment of documents" (1997); banding as in Leskovec, Rajaraman and Ullman, "Mining of Massive
Datasets", section 3.4.
"""

import functools
import hashlib
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dualpath_cli.data.documents import clean


def problem(text: str, min_chars: int) -> str | None:
    """Returns why a cleaned text is rejected: "empty" (only whitespace), "too short", or None."""
    if not text or text.isspace():
        return "empty"
    return "too short" if len(text) < min_chars else None


Hashes = npt.NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15
_SPAN = 1 << 16  # characters hashed at a time. Of a longer word the first as many count.


class WordHashes:
    """A text's words: the matches of `\\w+` in its lower case.

    They are hashed without being cut out, in a quarter of the time that `re` takes to do so. What
    a word is follows Python's tables of characters, which differ only in Unicode's latest ones.
    """

    hashes: Hashes  # 64 bits for each word, (words,); independent of its position

    def __init__(self, text: str) -> None:
        self._text = text.lower()
        codes, inside = _characters(self._text)
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        self._starts, self._ends = edges[::2], edges[1::2]
        self.hashes = _hashes(codes, self._starts, self._ends)

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, run: slice) -> list[str]:
        places = zip(self._starts[run].tolist(), self._ends[run].tolist(), strict=True)
        return [self._text[start:end] for start, end in places]


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


def _characters(text: str) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.bool_]]:
    """Returns a text's code points, (chars,), and which are of words, (chars + 2,), padded."""
    codes: npt.NDArray[np.unsignedinteger]
    inside = np.zeros(len(text) + 2, np.bool_)
    if text.isascii():
        encoded = text.encode()
        codes = np.frombuffer(encoded, np.uint8)
        inside[1:-1] = np.frombuffer(
            encoded.translate(_word_characters()[:256].tobytes()), np.bool_
        )
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        inside[1:-1] = _word_characters()[codes]
    return codes, inside


def _hashes(
    codes: npt.NDArray[np.unsignedinteger], starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> Hashes:
    """Returns hashes of the words that stand at some places: polynomials of their code points.

    sum_j code_j base^(j - start) over a word is a difference of two sums over the text, times
    base^-start, which there is modulo 2^64: no work is done word by word.
    """
    powers, inverses = _powers()
    hashes = np.empty(len(starts), np.uint64)
    sums = np.zeros(min(_SPAN, len(codes)) + 1, np.uint64)
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = max(int(np.searchsorted(ends, begin + _SPAN, side="right")), first + 1)
        span = codes[begin : min(int(ends[last - 1]), begin + _SPAN)]
        np.cumsum(span * powers[: len(span)], out=sums[1 : len(span) + 1])
        left = starts[first:last] - begin
        right = np.minimum(ends[first:last] - begin, _SPAN)
        hashes[first:last] = (sums[right] - sums[left]) * inverses[left]
        first = last
    return mix64(hashes)


@functools.cache
def _powers() -> tuple[Hashes, Hashes]:
    """Returns base^(n + 1) and base^-(n + 1) modulo 2^64, each (_SPAN,)."""
    inverse = pow(_BASE, -1, 1 << 64)
    powers = np.cumprod(np.full(_SPAN, _BASE, np.uint64), dtype=np.uint64)
    return powers, np.cumprod(np.full(_SPAN, inverse, np.uint64), dtype=np.uint64)


@functools.cache
def _word_characters() -> npt.NDArray[np.bool_]:
    """Returns whether each code point is matched by `\\w`, (0x110000,)."""
    table = np.zeros(0x110000, np.bool_)
    characters = np.arange(len(table), dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for match in re.finditer(r"\w+", characters):
        table[slice(*match.span())] = True
    return table


LONGEST = 13
SHORTEST = 8  # words in a run. Shorter evaluation texts are not looked for: chance would find them.


class Contamination:
    """Finds runs of words of evaluation texts, by hashes of their first eight words and of all."""

    fingerprint: str  # sha256 of the searched runs, whatever the order of the texts

    def __init__(self, texts: Iterable[str]) -> None:
        found = (WordHashes(clean(text)) for text in texts)
        lines = sorted({" ".join(words[:]) for words in found if len(words) >= SHORTEST})
        self.fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        heads, digests, lengths = [np.zeros(1, np.uint64)], [0], set()
        for line in lines:
            words = line.split(" ")
            length = min(LONGEST, len(words))
            count = len(words) - length + 1
            lengths.add(length)
            heads.append(runs(WordHashes(line).hashes, SHORTEST)[:count])
            digests += [_digest(words[n : n + length]) for n in range(count)]
        self._lengths = sorted(lengths, reverse=True)
        self._heads = np.unique(np.concatenate(heads))
        # A bit for each value of a head's first bits: at most one in 16 that is not here passes.
        width = max(16 * len(self._heads), 8).bit_length()
        self._shift = np.uint64(64 - width)
        bits = np.zeros(1 << width, np.bool_)
        bits[self._heads >> self._shift] = True
        self._filter = np.packbits(bits, bitorder="little")
        self._digests = np.unique(np.array(digests, np.uint64))

    def hit(self, text: str) -> str | None:
        """Returns the first run of words that a cleaned text shares with an evaluation text.

        None where there is none. The words are in lower case with a space between; of two runs
        that begin with the same word it is the longer one.
        """
        words = WordHashes(text)
        heads = runs(words.hashes, SHORTEST)
        bit = heads >> self._shift
        byte = self._filter[bit >> np.uint64(3)]
        begins = np.flatnonzero(byte >> (bit & np.uint64(7)).astype(np.uint8) & np.uint8(1))
        for begin in begins[_are_among(self._heads, heads[begins])].tolist():
            for length in self._lengths:
                run = words[begin : begin + length]
                digest = np.array([_digest(run)], np.uint64)
                if len(run) == length and _are_among(self._digests, digest)[0]:
                    return " ".join(run)
        return None


def _digest(words: list[str]) -> int:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _are_among(known: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Returns which hashes are among some known ones, which are sorted."""
    places = np.searchsorted(known, hashes)
    among: npt.NDArray[np.bool_] = known[np.minimum(places, len(known) - 1)] == hashes
    return among


SHINGLE_WORDS = 5
BANDS = 14
ROWS = 8  # values in a band

_HALVES = 2  # halves of a shingle's 64-bit hash; each gives half the values of every band

_SLICE = 1 << 10  # shingles permuted at a time: 250 kB


def shingles(text: str) -> Hashes:
    """Returns hashes of the runs of five words, (shingles,), repeats too; a shorter text is one."""
    words = WordHashes(text).hashes
    if len(words):
        return runs(words, min(SHINGLE_WORDS, len(words)))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.array([int.from_bytes(digest, "little")], np.uint64)


def signature(text: str) -> npt.NDArray[np.uint32]:
    """Returns the least hash among a text's shingles under each permutation, (BANDS, ROWS).

    The values are those of two sketches, one of the lower halves of the shingles' hashes and one of
    the upper: 32 bits alone would take some short texts, whose one shingle is all there is of them,
    for equal.
    """
    from datasketch import MinHash  # of the extra `near`; it brings scipy

    hashes, halves = shingles(text), []
    for half in range(_HALVES):
        sketch = MinHash(BANDS * ROWS // _HALVES, half, hashfunc=int, scheme="affine32")
        mixed = (hashes >> np.uint64(32 * half)).astype(np.uint32)
        for start in range(0, len(mixed), _SLICE):
            sketch.update_batch(mixed[start : start + _SLICE].tolist())
        halves.append(sketch.hashvalues.reshape(BANDS, -1))
    return np.concatenate(halves, axis=1)


def band_keys(text: str) -> Hashes:
    """Returns a 64-bit key for each band of a text's signature, (BANDS,).

    Two texts with the same key in any band are candidates for near-duplicates; with a Jaccard index
    j of their shingles they are at odds of 1 - (1 - j^ROWS)^BANDS.
    """
    keys: Hashes = (signature(text) * _band_factors()).sum(axis=1, dtype=np.uint64)
    return mix64(keys)


@functools.cache
def _band_factors() -> Hashes:
    """Odd numbers, (BANDS, ROWS): equal values in different bands then give different keys."""
    numbers = mix64(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))
    return (numbers | np.uint64(1)).reshape(BANDS, ROWS)
