"""Contamination: documents that share a run of words with an evaluation text.

The test of Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C: runs of 13
words, or of all its words where an evaluation text has fewer, but at least 8.
"""

import hashlib
import json
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

LONGEST = 13
SHORTEST = 8
"""Words in a run. Shorter evaluation texts are not looked for: chance would find them."""

Hashes = npt.NDArray[np.uint64]

_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Contamination:
    """Finds runs of words that stand in evaluation texts."""

    skipped: int
    """Evaluation texts too short to be looked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        evaluated = [_words(text) for text in texts]
        used = [words for words in evaluated if len(words) >= SHORTEST]
        self.skipped = len(evaluated) - len(used)
        vocabulary = sorted({word for words in used for word in words})
        self._ids = {word: id for id, word in enumerate(vocabulary, 1)}  # 0: unknown
        found: dict[int, list[Hashes]] = {}
        for words in used:
            length = min(LONGEST, len(words))
            found.setdefault(length, []).append(self._runs_of(words)[length])
        self._known = {
            length: np.unique(np.concatenate(each)) for length, each in sorted(found.items())
        }
        digest = hashlib.sha256(json.dumps(vocabulary).encode())
        for length, runs in self._known.items():
            digest.update(bytes([length]) + runs.astype("<u8").tobytes())
        self.fingerprint = digest.hexdigest()
        """sha256 of what is looked for."""

    def hit(self, text: str) -> str | None:
        """Returns the first run of words that a text shares with an evaluation text, or None."""
        words = _words(text)
        if len(words) < SHORTEST:
            return None
        places = []
        for length, runs in self._runs_of(words).items():
            known = self._known.get(length)
            if known is None or not len(runs):
                continue
            # 64-bit hashes of so few runs do not meet by chance.
            nearest = known[np.minimum(np.searchsorted(known, runs), len(known) - 1)]
            equal = np.flatnonzero(nearest == runs)
            places += [(int(place), length) for place in equal[:1]]
        if not places:
            return None
        place, length = min(places)
        return " ".join(words[place : place + length])

    def _runs_of(self, words: list[str]) -> dict[int, Hashes]:
        """Returns a 64-bit hash of each run of words, by the length of the run."""
        get = self._ids.get
        ids = np.array([get(word, 0) for word in words], np.uint64)
        # SplitMix64's steps: ids that follow each other become numbers that have nothing in common.
        mixed = (ids + np.uint64(1)) * _FACTOR
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        hashes = np.zeros(len(ids) + 1, np.uint64)
        runs = {}
        for length in range(1, min(LONGEST, len(ids)) + 1):
            hashes = hashes[:-1] * _FACTOR + mixed[length - 1 :]
            if length >= SHORTEST:
                runs[length] = hashes
        return runs


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
