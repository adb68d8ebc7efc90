"""Duplicates: which documents repeat an earlier one, for corpora larger than memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.documents.minhash import BANDS
from data_prep.documents.piece import Piece
from data_prep.settings import Duplicates

KEPT, EXACT, NEAR = 0, 1, 2
"""What `Verdicts.kinds` says of a document."""

BUCKET_DOCUMENTS = 1 << 22
"""About as many documents are compared at a time: some 300 MB."""

Keys = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


class Verdicts:
    """For each document of a list of pieces, whether it repeats an earlier one, and which.

    A document is an exact duplicate if an earlier one has the same text, and a near-duplicate if
    an earlier one shares a band of its MinHash signature, whether that one is kept or not: so what
    is said of a document depends on those before it alone. The verdicts are kept on the disk,
    nine bytes a document.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        folder: Path,
        duplicates: Duplicates,
        on_compared: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Compares all documents; `folder` takes the verdicts.

        `on_compared` hears of documents compared, each `comparisons(duplicates)` times in all.
        """
        self.pieces = pieces
        self.starts = np.cumsum([0, *(piece.documents for piece in pieces)], dtype=np.int64)
        """Index of each piece's first document, and the number of all."""
        total = max(int(self.starts[-1]), 1)
        folder.mkdir(parents=True, exist_ok=True)
        self._verdicts = _on_disk(folder / "verdicts", np.uint8, total)
        self._firsts = _on_disk(folder / "firsts", np.int64, total)
        self._on_compared = on_compared
        if duplicates != "keep":
            self._judge(EXACT, Piece.digests)
        if duplicates == "near":
            for band in range(BANDS):
                self._judge(NEAR, partial(_band, number=band))

    def kinds(self, piece: int) -> npt.NDArray[np.uint8]:
        """Returns KEPT, EXACT or NEAR for each document of a piece, (documents,)."""
        return self._verdicts[self.starts[piece] : self.starts[piece + 1]]

    def firsts(self, piece: int) -> Indices:
        """Returns which document each duplicate of a piece repeats, (documents,)."""
        return self._firsts[self.starts[piece] : self.starts[piece + 1]]

    def any(self) -> bool:
        """Returns whether there is any duplicate."""
        return bool(np.any(self._verdicts != KEPT))

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.starts, document, side="right")) - 1
        return piece, int(document - self.starts[piece])

    def _judge(self, verdict: int, keys_of: Callable[[Piece], Keys]) -> None:
        total = int(self.starts[-1])
        for compared, repeated, firsts in repeats(self.pieces, keys_of, total):
            self._on_compared(compared)
            new = self._verdicts[repeated] == KEPT
            self._verdicts[repeated[new]] = verdict
            self._firsts[repeated[new]] = firsts[new]


def comparisons(duplicates: Duplicates) -> int:
    """Returns how often each document is compared with the others."""
    return {"keep": 0, "exact": 1, "near": 1 + BANDS}[duplicates]


def _band(piece: Piece, number: int) -> Keys:
    return piece.numbers(f"band{number}")[:, None]


def _on_disk(path: Path, dtype: type[np.generic], length: int) -> npt.NDArray[Any]:
    """Returns zeros that live in a file; raises OSError where the disk has no room for them."""
    array: npt.NDArray[Any] = np.memmap(path, dtype, "w+", shape=length)
    with open(path, "r+b") as file:
        # A sparse file on a full disk would be a bus error at the first write.
        os.posix_fallocate(file.fileno(), 0, array.nbytes)
    return array


def repeats(
    pieces: Sequence[Piece], keys_of: Callable[[Piece], Keys], total: int
) -> Iterator[tuple[int, Indices, Indices]]:
    """Yields how many documents were compared, those whose key an earlier one has, and that one.

    Keys are (documents, words). They fall into buckets by their first word, so that memory does not
    grow with the number of documents: for each bucket the keys are read anew.
    """
    buckets = np.uint64(-(-total // BUCKET_DOCUMENTS) or 1)
    for bucket in range(int(buckets)):
        keys, indices = _bucket(pieces, keys_of, np.uint64(bucket), buckets)
        if not len(indices):
            continue
        # lexsort is stable: among equal keys the documents stay in their order.
        order = np.lexsort(keys.T[::-1])
        keys, indices = keys[order], indices[order]
        first = np.ones(len(indices), bool)
        first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        leaders = np.maximum.accumulate(np.where(first, np.arange(len(indices)), 0))
        yield len(indices), indices[~first], indices[leaders[~first]]


def _bucket(
    pieces: Sequence[Piece], keys_of: Callable[[Piece], Keys], bucket: np.uint64, buckets: np.uint64
) -> tuple[Keys, Indices]:
    keys, indices, start = [], [], 0
    for piece in pieces:
        all_keys = keys_of(piece)
        chosen = np.flatnonzero(all_keys[:, 0] % buckets == bucket)
        keys.append(all_keys[chosen])
        indices.append(chosen + start)
        start += len(all_keys)
    if not keys:
        return np.empty((0, 1), np.uint64), np.empty(0, np.int64)
    return np.concatenate(keys), np.concatenate(indices)
