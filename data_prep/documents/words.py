"""Words: a text's words as 64-bit hashes, and hashes of runs of them."""

import functools
import re

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15
_SPAN = 1 << 16
"""Characters hashed at a time. Of a longer word the first as many count."""


class Words:
    """A text's words: the matches of `\\w+` in its lower case.

    They are hashed without being cut out, in a quarter of the time that `re` takes to do so. What
    a word is follows Python's tables of characters, which differ only in Unicode's latest ones.
    """

    hashes: Hashes
    """64 bits for each word, (words,); independent of its position."""

    def __init__(self, text: str) -> None:
        self._text = text.lower()
        codes, inside = _characters(self._text)
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        self._starts, self._ends = edges[::2], edges[1::2]
        self.hashes = _hashes(codes, self._starts, self._ends)

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, run: slice) -> list[str]:
        """Returns some of the words themselves."""
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
        inside[1:-1] = np.frombuffer(encoded.translate(_ascii_word()), np.bool_)
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
def _ascii_word() -> bytes:
    """Returns 1 for each byte that is of a word and 0 for others, (256,)."""
    return _word_characters()[:256].tobytes()


@functools.cache
def _word_characters() -> npt.NDArray[np.bool_]:
    """Returns whether each code point is matched by `\\w`, (0x110000,)."""
    table = np.zeros(0x110000, np.bool_)
    characters = np.arange(len(table), dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for match in re.finditer(r"\w+", characters):
        table[slice(*match.span())] = True
    return table
