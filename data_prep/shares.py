"""Tasks of the first stage: a share of a file's pieces to make, or pieces to verify."""

from dataclasses import dataclass, field
from pathlib import Path

from data_prep.engine import Between
from data_prep.input_files import readable
from data_prep.piece_maker import piece_maker
from data_prep.pieces import Piece, PieceCounts, piece_path, read_sealed
from data_prep.settings import SourceSettings
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import IDS, format_of
from dualpath_cli.data.rows import UnreadableFile, kind_of, read_rows

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
        read = 0  # stored bytes since the piece before

        def on_read(size: int) -> None:
            nonlocal read
            read += size

        fields = format_of(self.source.name, kind_of(self.path), self.source.field)
        batches = read_rows(self.path, fields.fields, IDS, on_read, self.piece_bytes)
        maker = piece_maker(self.settings)
        count = 0
        fault = None
        try:
            for number, rows in enumerate(batches):
                count = number + 1
                stored = read
                read = 0
                out = piece_path(self.folder, self.place, number)
                if number % self.of != self.first:
                    continue
                if out.exists():  # made before, perhaps by this task on a lost machine
                    made.counts[number] = Piece(out).counts
                    continue
                if (self.folder / ENOUGH).exists():
                    return made

                try:
                    made.counts[number] = maker.make(
                        self.source, self.name, rows, stored, out
                    )
                except UserError as mistake:
                    made.mistake = (number, str(mistake))
                    return made
                between()

            if not count:
                fault = f"{self.name}: empty"
        except UnreadableFile as error:
            fault = readable(str(error))

        made.end = FileEnd(count, fault)
        return made


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
