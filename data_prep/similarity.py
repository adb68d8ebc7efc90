"""The Jaccard index of two documents' runs of words, by their texts."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.catalogue import Catalogue
from data_prep.pieces import load_tokenizer
from data_prep.text import Hashes, shingles


def jaccard(a: Hashes, b: Hashes) -> float:
    """The Jaccard index of two sets, each of distinct hashes."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


class Texts:
    """Documents' texts, which their tokens give back: the tokenizer loses nothing."""

    def __init__(self, catalogue: Catalogue, tokenizer: Path) -> None:
        self._catalogue = catalogue
        self._folder = tokenizer
        # Pieces are mapped into memory, so a few open ones take none.
        self._tokens = lru_cache(maxsize=64)(lambda n: catalogue.piece(n).tokens())

    def text(self, document: int) -> str:
        piece, index = self._catalogue.locate(document)
        tokens, starts = self._tokens(piece)
        begin = starts[index]
        end = starts[index + 1] - 1  # without end-of-text
        return load_tokenizer(self._folder).decode(tokens[begin:end].tolist())


class TextComparison:
    """Compares pairs of documents, each pair once."""

    def __init__(self, catalogue: Catalogue, tokenizer: Path) -> None:
        self._texts = Texts(catalogue, tokenizer)
        self._done: set[tuple[int, int]] = set()

    def of_new(self, pairs: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Returns the pairs that were not compared before, with their `jaccard`."""
        # Sorted by the earlier document, so that its runs are computed once and only
        # two documents are in memory at a time.
        pairs = pairs[np.argsort(pairs["of"], kind="stable")]
        new = np.zeros(len(pairs), np.bool_)
        leader = None
        for number, pair in enumerate(pairs):
            names = (int(pair["document"]), int(pair["of"]))
            if names in self._done:
                continue

            self._done.add(names)
            new[number] = True
            document, of = names
            if of != leader:
                leader = of
                of_leader = self._runs(of)
            pair["jaccard"] = jaccard(self._runs(document), of_leader)
        return pairs[new]

    def _runs(self, document: int) -> Hashes:
        return np.unique(shingles(self._texts.text(document)))
