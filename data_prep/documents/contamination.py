"""Contamination: documents that share a run of words with an evaluation text.

Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C, look for runs of 13 words,
and of fewer, but at least 8, where a benchmark's texts are short. There one number is chosen for a
benchmark; here each text shorter than 13 words is one run, of its length.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_prep.documents.clean import clean
from data_prep.documents.words import Hashes, Words, longer, runs

LONGEST = 13
SHORTEST = 8
"""Words in a run. Shorter evaluation texts are not looked for: chance would find them."""


class Contamination:
    """Finds runs of words that stand in evaluation texts; small enough to send to processes.

    Words are the matches of `\\w+` in the lower case of a cleaned text. A run that is found has
    been compared word by word: hashes only make it quick to find none.
    """

    skipped: int
    """Evaluation texts that are too short to be looked for."""
    fingerprint: str
    """sha256 of the searched runs, whatever the order of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.skipped = 0
        lines: set[str] = set()
        for text in texts:
            words = Words(clean(text))
            if len(words) < SHORTEST:
                self.skipped += 1
            else:
                lines.add(" ".join(words[:]))
        self.fingerprint = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

        self._id_of_word: dict[str, int] = {}
        ids: list[int] = []
        heads = [np.empty(0, np.uint64)]
        runs_of_length: dict[int, list[tuple[Hashes, npt.NDArray[np.uint32]]]] = {}
        for line in sorted(lines):
            hashes = Words(line).hashes
            length = min(LONGEST, len(hashes))
            count = len(hashes) - length + 1
            places = np.arange(len(ids), len(ids) + count, dtype=np.uint32)
            runs_of_length.setdefault(length, []).append((runs(hashes, length), places))
            heads.append(runs(hashes, SHORTEST)[:count])
            ids += [self._id_of_word.setdefault(w, len(self._id_of_word)) for w in line.split(" ")]
        self._ids = np.array(ids, np.uint32)
        self._runs = {
            length: _Runs.sort(entries) for length, entries in sorted(runs_of_length.items())
        }
        self._heads = _Heads(np.unique(np.concatenate(heads)))

    def hit(self, text: str) -> str | None:
        """Returns the first run of words that a cleaned text shares with an evaluation text.

        None where there is none. The words are in lower case with a space between; of two runs
        that begin with the same word it is the longer one.
        """
        words = Words(text)
        if len(words) < SHORTEST:
            return None
        # Every run begins with eight words: one look-up serves all lengths, and mostly ends it.
        hashes = runs(words.hashes, SHORTEST)
        begins = self._heads.find(hashes)
        if not len(begins):
            return None
        hashes = hashes[begins]
        likely: list[tuple[int, int]] = []
        for length in range(SHORTEST, LONGEST + 1):
            if length > SHORTEST:
                fitting = begins <= len(words) - length
                begins, hashes = begins[fitting], hashes[fitting]
                hashes = longer(hashes, words.hashes[begins + length - 1])
            if known := self._runs.get(length):
                places = begins[_are_among(known.hashes, hashes)]
                likely += [(begin, -length) for begin in places.tolist()]
        for begin, negative in sorted(likely):
            end = begin - negative
            if self._holds(words[begin:end], runs(words.hashes[begin:end], end - begin)):
                return " ".join(words[begin:end])
        return None

    def _holds(self, run: list[str], hash: Hashes) -> bool:
        """Whether a run with this hash, (1,), is an evaluation text's in all its words."""
        known = self._runs[len(run)]
        first = int(np.searchsorted(known.hashes, hash[0]))
        last = int(np.searchsorted(known.hashes, hash[0], side="right"))
        ids = [self._id_of_word.get(word, -1) for word in run]
        return any(
            self._ids[place : place + len(run)].tolist() == ids
            for place in known.places[first:last].tolist()
        )


@dataclass(frozen=True)
class _Runs:
    """The evaluation texts' runs of one length."""

    hashes: Hashes
    """(runs,), sorted; a run in two places is there twice."""
    places: npt.NDArray[np.uint32]
    """The start of each among all words of the evaluation texts, (runs,)."""

    @classmethod
    def sort(cls, entries: list[tuple[Hashes, npt.NDArray[np.uint32]]]) -> "_Runs":
        hashes, places = (np.concatenate(column) for column in zip(*entries, strict=True))
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], places[order])


class _Heads:
    """The first words of all runs; tells quickly which few of many hashes are among theirs."""

    def __init__(self, hashes: Hashes) -> None:
        """Takes sorted hashes."""
        self._hashes = hashes
        # A bit for each value of a hash's first bits: at most one in 16 that is not here passes.
        width = max(16 * len(hashes), 8).bit_length()
        self._shift = np.uint64(64 - width)
        bits = np.zeros(1 << width, np.bool_)
        bits[hashes >> self._shift] = True
        self._filter = np.packbits(bits, bitorder="little")

    def find(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        """Returns the indices of the hashes that are here."""
        bit = hashes >> self._shift
        byte = self._filter[bit >> np.uint64(3)]
        passed = np.flatnonzero(byte >> (bit & np.uint64(7)).astype(np.uint8) & np.uint8(1))
        return passed[_are_among(self._hashes, hashes[passed])]


def _are_among(known: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Returns which hashes are among some known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(hashes), np.bool_)
    among: npt.NDArray[np.bool_] = (
        known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
    )
    return among
