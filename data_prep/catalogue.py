"""Numbers the pieces of all sources, and their documents, for the tasks."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.pieces import Piece, piece_path

Integers = npt.NDArray[np.int64]

GROUP_DOCUMENTS = 1 << 18
"""Most documents of a group, unless one piece has more. A task has one key of each of
them in memory."""


@dataclass(frozen=True)
class PieceGroup:
    """Consecutive pieces of one source."""

    number: int
    first: int  # piece
    stop: int
    source: int

    @property
    def pieces(self) -> range:
        """The numbers of its pieces."""
        return range(self.first, self.stop)


@dataclass(frozen=True)
class Catalogue:
    """The pieces of all sources: each has a number, and so has each document."""

    folder: Path
    """Has a folder of pieces for each source, by the source's number."""
    source: Integers  # of each piece, (pieces,), as all below
    file: Integers  # the place of its file in the corpus
    number: Integers  # in its file
    documents: Integers

    @staticmethod
    def of(
        folder: Path,
        pieces: Sequence[Sequence[tuple[int, int]]],
        documents: Sequence[Sequence[int]],
    ) -> "Catalogue":
        """`pieces` of each source are (file, number); `documents` how many each has."""
        sources = np.repeat(np.arange(len(pieces)), [len(own) for own in pieces])
        places = np.array([place for own in pieces for place in own], np.int64)
        places = places.reshape(-1, 2)
        counts = np.array([n for own in documents for n in own], np.int64)
        return Catalogue(folder, sources, places[:, 0], places[:, 1], counts)

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def starts(self) -> Integers:
        """The number of each piece's first document, then the total, (pieces + 1,)."""
        return np.append(0, np.cumsum(self.documents))

    @property
    def digest(self) -> str:
        """Tells lists of pieces apart."""
        columns = (self.source, self.file, self.number, self.documents)
        return sha256(b"".join(column.tobytes() for column in columns)).hexdigest()

    def piece(self, number: int) -> Piece:
        folder = self.folder / str(self.source[number])
        return Piece(
            piece_path(folder, int(self.file[number]), int(self.number[number]))
        )

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.starts, document, side="right")) - 1
        return piece, document - int(self.starts[piece])

    def of_source(self, source: int) -> tuple[int, int]:
        """Returns a source's first piece, and the one behind its last."""
        first, stop = np.searchsorted(self.source, [source, source + 1])
        return int(first), int(stop)

    @cached_property
    def groups(self) -> list[PieceGroup]:
        """The division of the pieces into groups, the same for any machine."""
        groups: list[PieceGroup] = []
        first = 0
        for piece in range(1, len(self) + 1):
            is_end = piece == len(self) or self.source[piece] != self.source[first]
            if not is_end:
                documents = self.starts[piece + 1] - self.starts[first]
                is_end = documents > GROUP_DOCUMENTS
            if is_end:
                source = int(self.source[first])
                groups.append(PieceGroup(len(groups), first, piece, source))
                first = piece
        return groups

    def group_of(self, piece: int) -> PieceGroup:
        return self.groups[bisect_right(self._firsts, piece) - 1]

    @cached_property
    def _firsts(self) -> list[int]:
        return [group.first for group in self.groups]
