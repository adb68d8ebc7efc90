"""A file of a corpus, and the pieces that it becomes: the same wherever it is read."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dualpath_cli.text.byte_stream import OnRead
from dualpath_cli.text.documents import IDS, format_of
from dualpath_cli.text.rows import Rows, UnreadableFile, kind_of, read_rows


@dataclass(frozen=True)
class Batch:
    """One piece's work."""

    source: str
    field: str
    file: str
    rows: Rows
    out: Path


@dataclass(frozen=True)
class FileEnd:
    """Follows a file's last piece."""

    file: int
    pieces: int
    fault: str | None
    """Why the file could not be read to its end."""


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus, with all that its pieces depend on."""

    source: str
    field: str
    name: str
    """The name in records."""
    number: int
    """Its place in the corpus."""
    path: Path
    """Absolute: other processes have other working directories."""
    given: str
    """The path as messages have it."""
    folder: Path
    """The folder of its pieces."""
    piece_bytes: int
    """Uncompressed size of the rows that make a piece; a longer row goes alone."""

    def parts(self, on_read: OnRead) -> Iterator[Batch | FileEnd]:
        """Yields the rows of each piece, in order, and the end."""
        format = format_of(self.source, kind_of(self.path), self.field)
        read = read_rows(self.path, format.fields, IDS, on_read, self.piece_bytes, format.advice)
        count, fault = 0, None
        try:
            for rows in read:
                rows = replace(rows, path=self.given)
                out = piece_path(self.folder, self.number, count)
                yield Batch(self.source, self.field, self.name, rows, out)
                count += 1
            if not count:
                fault = f"{self.name}: empty"
        except UnreadableFile as error:
            fault = str(error).replace(str(self.path), self.given)
        yield FileEnd(self.number, count, fault)


def piece_path(folder: Path, file: int, piece: int) -> Path:
    """Returns where a piece of a file is."""
    return folder / f"{file:05d}-{piece:05d}.arrow"


def file_number(piece: Path) -> int:
    """Returns which of its corpus's files a piece is of."""
    return int(piece.name.partition("-")[0])
