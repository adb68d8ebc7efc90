"""Duplicates: which documents repeat an earlier one, for corpora larger than memory."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.documents.pieces import Piece
from data_prep.documents.text import BANDS
from data_prep.settings import Duplicates
from dualpath_cli.system import remove

KEPT, EXACT, NEAR = 0, 1, 2  # the values of `Verdicts.kinds`

BUCKET_DOCUMENTS = 1 << 21  # about as many documents are compared at a time: at most 250 MB

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
        """`folder` takes the verdicts; `on_compared` gets documents, `comparisons` times each."""
        self.pieces = pieces
        self.starts = np.cumsum([0, *(piece.documents for piece in pieces)], dtype=np.int64)
        """Index of each piece's first document, and the number of all."""
        total = max(int(self.starts[-1]), 1)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._verdicts = _on_disk(folder / "verdicts", np.uint8, total)
        self._firsts = _on_disk(folder / "firsts", np.int64, total)
        self._on_compared = on_compared
        if duplicates != "keep":
            self._judge(EXACT, Piece.digests)
        if duplicates == "near":
            for band in range(BANDS):
                self._judge(NEAR, partial(Piece.numbers, column=f"band{band}"))

    def kinds(self, piece: int) -> npt.NDArray[np.uint8]:
        """Returns KEPT, EXACT or NEAR for each document of a piece, (documents,)."""
        return self._verdicts[self.starts[piece] : self.starts[piece + 1]]

    def firsts(self, piece: int) -> Indices:
        """Returns which document each duplicate of a piece repeats, (documents,)."""
        return self._firsts[self.starts[piece] : self.starts[piece + 1]]

    def any(self) -> bool:
        return bool(np.any(self._verdicts != KEPT))

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.starts, document, side="right")) - 1
        return piece, int(document - self.starts[piece])

    def _judge(self, verdict: int, keys_of: Callable[[Piece], Keys]) -> None:
        total = int(self.starts[-1])
        for compared, repeated, firsts in repeats(self.pieces, keys_of, total, self._folder):
            self._on_compared(compared)
            new = self._verdicts[repeated] == KEPT
            self._verdicts[repeated[new]] = verdict
            self._firsts[repeated[new]] = firsts[new]


def comparisons(duplicates: Duplicates) -> int:
    """Returns how often each document is compared with the others."""
    return {"keep": 0, "exact": 1, "near": 1 + BANDS}[duplicates]


def _on_disk(path: Path, dtype: type[np.generic], length: int) -> npt.NDArray[Any]:
    """Returns zeros that live in a file; raises OSError where the disk has no room for them."""
    array: npt.NDArray[Any] = np.memmap(path, dtype, "w+", shape=length)
    with open(path, "r+b") as file:
        # A sparse file on a full disk would be a bus error at the first write.
        os.posix_fallocate(file.fileno(), 0, array.nbytes)
    return array


def repeats(
    pieces: Sequence[Piece], keys_of: Callable[[Piece], Keys], total: int, folder: Path
) -> Iterator[tuple[int, Indices, Indices]]:
    """Yields how many documents were compared, those whose key an earlier one has, and that one.

    Keys are (documents, words). They fall into buckets by their first word, so that memory does not
    grow with the number of documents: where there are several, their files are in `folder`.
    """
    buckets = -(-total // BUCKET_DOCUMENTS) or 1
    rows = _batched(_rows(pieces, keys_of))
    for bucket in _dealt(rows, buckets, folder) if buckets > 1 else rows:
        keys, indices = bucket[:, :-1], bucket[:, -1].astype(np.int64)
        # lexsort is stable: among equal keys the documents stay in their order.
        order = np.lexsort(keys.T[::-1])
        keys, indices = keys[order], indices[order]
        first = np.ones(len(indices), bool)
        first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        leaders = np.maximum.accumulate(np.where(first, np.arange(len(indices)), 0))
        yield len(indices), indices[~first], indices[leaders[~first]]


def _rows(pieces: Sequence[Piece], keys_of: Callable[[Piece], Keys]) -> Iterator[Keys]:
    """Yields the keys of each piece's documents, with the documents' indices behind them."""
    start = 0
    for piece in pieces:
        keys = keys_of(piece)
        indices = np.arange(start, start + len(keys), dtype=np.uint64)
        start += len(keys)
        yield np.column_stack([keys, indices])


def _dealt(batches: Iterable[Keys], buckets: int, folder: Path) -> Iterator[Keys]:
    """Deals rows into a file for each bucket: keys are read once. Each file goes after its use."""
    files = [folder / "keys" / str(number) for number in range(buckets)]
    remove(folder / "keys")  # of a run that was killed
    (folder / "keys").mkdir()
    width = 0
    for batch in batches:
        width = batch.shape[1]
        _append(batch, files)
    for path in files:
        yield np.fromfile(path, np.uint64).reshape(-1, width)
        path.unlink()
    remove(folder / "keys")


def _append(rows: Keys, files: Sequence[Path]) -> None:
    bucket = (rows[:, 0] % np.uint64(len(files))).astype(np.int64)
    rows = rows[np.argsort(bucket, kind="stable")]
    ends = np.cumsum(np.bincount(bucket, minlength=len(files)))
    for path, part in zip(files, np.split(rows, ends[:-1]), strict=True):
        with open(path, "ab") as file:
            file.write(part.tobytes())


def _batched(rows: Iterable[Keys]) -> Iterator[Keys]:
    """Joins arrays of rows to ones of about as many as are compared at a time."""
    held: list[Keys] = []
    count = 0
    for part in rows:
        held.append(part)
        count += len(part)
        if count >= BUCKET_DOCUMENTS:
            yield _joined(held)
            count = 0
    if held:
        yield _joined(held)


def _joined(held: list[Keys]) -> Keys:
    """Empties a list, whose arrays would else stay in memory beside the joined one."""
    joined = np.concatenate(held)
    held.clear()
    return joined
