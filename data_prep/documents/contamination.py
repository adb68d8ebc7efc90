"""Contamination: documents that share a run of words with an evaluation text.

Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C, look for runs of 13 words,
and of fewer, but at least 8, where a benchmark's texts are short. There one number is chosen for a
benchmark; here each text shorter than 13 words is one run, of its length.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from data_prep.documents.clean import clean
from data_prep.documents.words import Hashes, Words, runs

LONGEST = 13
SHORTEST = 8
"""Words in a run. Shorter evaluation texts are not looked for: chance would find them."""


class Contamination:
    """Finds runs of words that stand in evaluation texts; small enough to send to processes.

    Words are the matches of `\\w+` in the lower case of a cleaned text. A run is found by two
    hashes, of its first eight words and of all, of 64 bits each.
    """

    fingerprint: str
    """sha256 of the searched runs, whatever the order of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = (Words(clean(text)) for text in texts)
        lines = sorted({" ".join(words[:]) for words in found if len(words) >= SHORTEST})
        self.fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        heads, digests, lengths = [np.zeros(1, np.uint64)], [0], set()
        for line in lines:
            words = line.split(" ")
            length = min(LONGEST, len(words))
            count = len(words) - length + 1
            lengths.add(length)
            heads.append(runs(Words(line).hashes, SHORTEST)[:count])
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
        words = Words(text)
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
