"""Tasks of the first stage: a share of a file's pieces to make, or pieces to verify."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.engine import Between
from data_prep.input_files import readable
from data_prep.piece_maker import piece_maker
from data_prep.pieces import Piece, PieceCounts, piece_path, read_sealed
from data_prep.settings import SourceSettings
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import IDS, format_of
from dualpath_cli.data.rows import Rows, UnreadableFile, kind_of, read_rows

ENOUGH = "enough"
"""A file in a folder of pieces: a corpus has the tokens that are wanted of it."""


@dataclass(frozen=True)
class FileEnd:
    """How a file ended."""

    pieces: int
    fault: str | None  # why the file could not be read to its end
    fetched: bool = True


@dataclass
class Made:
    """What became of a share."""

    counts: dict[int, PieceCounts] = field(default_factory=dict)
    """Its pieces, by their numbers in the file."""
    mistake: tuple[int, str] | None = None
    """The number of the piece that raised UserError, and the message."""
    end: FileEnd | None = None  # None of a share that ended early


@dataclass(frozen=True)
class Share:
    """A task: every `of`-th piece of a file, from the piece `first` on.

    Each share reads the whole file, since only what stands before a piece tells where
    the piece begins. To read is some hundred times faster than to tokenise, so this
    costs little for far fewer than a hundred shares.
    """

    settings: Path  # shared `PieceSettings`
    source: SourceSettings
    name: str  # the file's name in records
    path: Path
    folder: Path  # of the corpus's pieces
    place: int  # of the file in its corpus
    first: int
    of: int
    piece_bytes: int  # uncompressed

    def run(self, between: Between) -> Made:
        made = Made()
        pieces = 0  # of the file, so far
        fault = None
        try:
            for number, (rows, stored) in enumerate(self._batches()):
                pieces = number + 1
                if number % self.of != self.first:
                    continue
                if not self._make(number, rows, stored, made):
                    return made
                between()
        except UnreadableFile as error:
            fault = readable(str(error))

        if not pieces and not fault:
            fault = f"{self.name}: empty"
        made.end = FileEnd(pieces, fault)
        return made

    def _batches(self) -> Iterator[tuple[Rows, int]]:
        """Yields the rows of each piece, and how many stored bytes hold them."""
        stored = 0

        def on_read(size: int) -> None:
            nonlocal stored
            stored += size

        form = format_of(self.source.name, kind_of(self.path), self.source.field)
        for rows in read_rows(self.path, form.fields, IDS, on_read, self.piece_bytes):
            yield rows, stored
            stored = 0

    def _make(self, number: int, rows: Rows, stored: int, made: Made) -> bool:
        """Makes a piece that is not there; returns whether to go on."""
        out = piece_path(self.folder, self.place, number)
        if out.exists():  # made before, perhaps by this task on a lost machine
            made.counts[number] = Piece(out).counts
            return True
        if (self.folder / ENOUGH).exists():
            return False

        maker = piece_maker(self.settings)  # one in a process
        try:
            counts = maker.make(self.source, self.name, rows, stored, out)
        except UserError as mistake:
            made.mistake = (number, str(mistake))
            return False
        made.counts[number] = counts
        return True


@dataclass(frozen=True)
class Check:
    """A task: verifies pieces of a file that are there, and removes damaged ones."""

    folder: Path
    place: int
    numbers: tuple[int, ...]

    def run(self, between: Between) -> dict[int, PieceCounts]:
        """Returns the counts of the sound pieces."""
        sound = {}
        for number in self.numbers:
            path = piece_path(self.folder, self.place, number)
            if read_sealed(path):
                sound[number] = Piece(path).counts
            else:
                path.unlink(missing_ok=True)  # the task may run again
            between()
        return sound
