"""Duplicates: which documents repeat an earlier one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.documents.pieces import Piece
from data_prep.documents.text import BANDS
from data_prep.settings import Duplicates

KEPT, EXACT, NEAR = 0, 1, 2  # the values of `Verdicts.kinds`

BYTES_A_DOCUMENT = 66
"""Peak of memory, by tracemalloc on 4 million documents, for `exact` and `near` alike."""

Indices = npt.NDArray[np.int64]


class Verdicts:
    """For each document of a list of pieces, whether it repeats an earlier document, and which.

    An exact duplicate has the text of an earlier document. A near-duplicate shares a band of its
    MinHash signature with an earlier document, kept or not. So a verdict depends on earlier
    documents alone. All keys of one kind are sorted in memory.
    """

    def __init__(self, pieces: Sequence[Piece], duplicates: Duplicates) -> None:
        self.pieces = pieces
        self.starts = np.cumsum([0, *(piece.documents for piece in pieces)], dtype=np.int64)
        """Index of each piece's first document, and the number of all."""
        self._kinds = np.full(self.starts[-1], KEPT, np.uint8)
        self._firsts = np.zeros(self.starts[-1], np.int64)
        if duplicates != "keep":
            self._judge(EXACT, [piece.digests() for piece in pieces])
        if duplicates == "near":
            for band in range(BANDS):
                self._judge(NEAR, [piece.bands()[:, band : band + 1] for piece in pieces])

    def kinds(self, piece: int) -> npt.NDArray[np.uint8]:
        """Returns KEPT, EXACT or NEAR for each document of a piece, (documents,)."""
        return self._kinds[self.starts[piece] : self.starts[piece + 1]]

    def firsts(self, piece: int) -> Indices:
        """Returns which document each duplicate of a piece repeats, (documents,)."""
        return self._firsts[self.starts[piece] : self.starts[piece + 1]]

    def any(self) -> bool:
        return bool(np.any(self._kinds != KEPT))

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.starts, document, side="right")) - 1
        return piece, int(document - self.starts[piece])

    def _judge(self, kind: int, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Judges by keys, (documents, words) of each piece; earlier judgements stay."""
        if not len(self._kinds):
            return
        keys = np.concatenate(parts)
        # lexsort is stable: among equal keys the documents stay in their order.
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        repeats = np.append(False, (keys[1:] == keys[:-1]).all(axis=1))
        leaders = order[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))]
        new = repeats & (self._kinds[order] == KEPT)
        self._kinds[order[new]] = kind
        self._firsts[order[new]] = leaders[new]
