"""Encoding: the files of corpora -> pieces, in order, by workers."""

import json
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.filesize import decimal

from data_prep.download import Unavailable
from data_prep.input_files import Corpus, InputFile
from data_prep.pieces import Piece, piece_path, read_sealed, write_sealed
from data_prep.workers import BeginPiece, PieceTask
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import IDS, format_of
from dualpath_cli.data.rows import OnRead, UnreadableFile, kind_of, read_rows
from dualpath_cli.report.console import Progress, bytes_of_bytes, counted, plain_console

PIECE_BYTES = 8 << 20
"""Uncompressed size of the rows that make a piece; a longer row goes by itself."""


@dataclass(frozen=True)
class Job:
    """A corpus to encode."""

    corpus: Corpus
    folder: Path  # the folder of its pieces
    until: int | None  # tokens that are enough; None: all there are

    def note(self, place: int) -> Path:
        """The note that a file, by its place in the corpus, is done."""
        return self.folder / f"{place:05d}.json"


@dataclass(frozen=True)
class FileEnd:
    """Follows a file's last piece."""

    file: int
    pieces: int
    fault: str | None  # why the file could not be read to its end
    fetched: bool = True


PieceOrEnd = Callable[[], Path] | Path | FileEnd
"""A piece that is begun, or is there, or the end of a file."""


@dataclass
class Encoded:
    """The pieces of a corpus, from its beginning on."""

    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    tokens: int = 0
    complete: bool = True  # whether every file was read
    fetched: bool = True  # whether every file was there to be read


class _EncodingProgress(Progress):
    """Shows on stderr how much of the corpora is read, or of the tokens wanted."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        tokens = sum(job.until or 0 for job in jobs)
        size = sum(file.size for job in jobs for file in job.corpus.files)
        self._by_bytes = not tokens
        self._tokens = 0
        self._received = 0
        self._begun = time.monotonic()

        amounts = counted("tokens") if tokens else bytes_of_bytes
        total = tokens or size or None
        console = plain_console(stderr=True)
        super().__init__(console, "reading", amounts, total, transient=True)

    def add_read(self, size: int) -> None:
        self._show_more(size if self._by_bytes else 0)

    def add_received(self, size: int) -> None:
        """Counts bytes downloaded; called from other threads."""
        self._received += size
        self._show_more(0)

    def add_encoded(self, tokens: int) -> None:
        self._tokens += tokens
        self._show_more(0 if self._by_bytes else tokens)

    def _show_more(self, amount: int) -> None:
        speed = self._tokens / max(time.monotonic() - self._begun, 1e-9)
        downloaded = f", {decimal(self._received)} downloaded" if self._received else ""
        self.advance(amount, status=f"{speed:,.0f} tokens/s{downloaded}")


@dataclass(frozen=True)
class Encoder:
    """Makes the pieces that are not there yet.

    Pieces depend on the files and settings only.
    """

    begin: BeginPiece
    ahead: int  # pieces that are begun before the first of them is waited for
    fetch: Callable[[InputFile, OnRead], Path]  # `Fetcher.get`
    strict: bool

    def encode(self, jobs: Sequence[Job]) -> list[Encoded]:
        """Encodes each corpus's documents in order, until they hold enough tokens.

        Pieces that are there are not made again. Raises UserError where `strict` is set
        and something cannot be read, OSError where the disk is full or a server does
        not answer for long.
        """
        enough: set[int] = set()  # numbers of jobs whose tokens are enough
        encoded = [Encoded() for _ in jobs]

        # All jobs go through one queue: no worker waits for a corpus's last piece.
        with _EncodingProgress(jobs) as progress:
            begun = self._begin_all(jobs, enough, progress)
            with closing(self._some_ahead(begun)) as parts:
                for number, part in parts:
                    if number in enough:
                        continue  # begun before it was known that it is not needed

                    job = jobs[number]
                    corpus = encoded[number]
                    if isinstance(part, FileEnd):
                        self._end_file(part, job, corpus)
                        continue

                    piece = Piece(part if isinstance(part, Path) else part())
                    corpus.pieces.append(piece)
                    corpus.tokens += piece.counts.tokens
                    progress.add_encoded(piece.counts.tokens)

                    if job.until is not None and corpus.tokens >= job.until:
                        corpus.complete = False
                        enough.add(number)
        return encoded

    def _some_ahead(
        self, parts: Iterator[tuple[int, PieceOrEnd]]
    ) -> Generator[tuple[int, PieceOrEnd], None, None]:
        """Yields items some time after they were begun: workers stay busy."""
        waiting: deque[tuple[int, PieceOrEnd]] = deque()
        for part in parts:
            waiting.append(part)
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting

    def _begin_all(
        self, jobs: Sequence[Job], enough: Container[int], progress: _EncodingProgress
    ) -> Iterator[tuple[int, PieceOrEnd]]:
        """Yields the pieces and ends of all files, each with its job's number."""
        for number, job in enumerate(jobs):
            job.folder.mkdir(parents=True, exist_ok=True)
            for place, file in enumerate(job.corpus.files):
                noted = _noted_parts(job, place)
                for part in noted or self._begin_file(job, place, progress):
                    yield number, part
                    if number in enough:
                        break

                if noted:
                    progress.add_read(file.size)
                if number in enough:
                    break

    def _begin_file(
        self, job: Job, place: int, progress: _EncodingProgress
    ) -> Iterator[PieceOrEnd]:
        """Yields the pieces of a corpus's file, as they are there or begun; its end."""
        file = job.corpus.files[place]
        source = job.corpus.settings
        try:
            path = self.fetch(file, progress.add_received)
        except Unavailable as error:
            yield FileEnd(place, 0, f"{file.name}: {error}", fetched=False)
            return

        fields = format_of(source.name, kind_of(path), source.field).fields
        count = 0
        fault = None
        try:
            for rows in read_rows(path, fields, IDS, progress.add_read, PIECE_BYTES):
                out = piece_path(job.folder, place, count)
                count += 1
                if read_sealed(out):
                    yield out
                else:
                    yield self.begin(PieceTask(source, file.name, rows, out))
            if not count:
                fault = f"{file.name}: empty"
        except UnreadableFile as error:
            fault = str(error)
        yield FileEnd(place, count, fault)

    def _end_file(self, end: FileEnd, job: Job, encoded: Encoded) -> None:
        """Notes that a file is done, all of whose pieces are there by now."""
        file = job.corpus.files[end.file]
        if file.has_changed():
            raise UserError(
                f"{file.name}: changed while it was prepared; start again with "
                "--overwrite"
            )

        if end.fault:
            if self.strict:
                raise UserError(end.fault)
            encoded.faults.append(end.fault)
        encoded.fetched &= end.fetched

        note = job.note(end.file)
        if end.fetched and not note.exists():
            content = json.dumps({"pieces": end.pieces, "fault": end.fault})
            write_sealed(note, content.encode())


def _noted_parts(job: Job, place: int) -> list[PieceOrEnd] | None:
    """The pieces and the end of a file that was noted as done; None if any is lost."""
    note = job.note(place)
    noted = read_sealed(note)
    if noted:
        end = FileEnd(place, **json.loads(noted))
        pieces = [piece_path(job.folder, place, n) for n in range(end.pieces)]
        if all(map(read_sealed, pieces)):
            return [*pieces, end]

    note.unlink(missing_ok=True)
    return None
