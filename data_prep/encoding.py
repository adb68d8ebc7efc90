"""Encoding: the files of corpora -> pieces, in order, by workers."""

import json
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from data_prep.corpora import Corpus, InputFile
from data_prep.download import Unavailable
from data_prep.pieces import Piece, piece_path, read_sealed, write_sealed
from data_prep.workers import Batch, Begin
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import IDS, format_of
from dualpath_cli.data.rows import OnRead, UnreadableFile, kind_of, read_rows
from dualpath_cli.report.console import Progress, bytes_of_bytes, counted, plain_console

# uncompressed size of the rows that make a piece; a longer row goes alone
PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Job:
    corpus: Corpus
    folder: Path  # the folder of its pieces
    until: int | None  # tokens that are enough; None: all there are


@dataclass(frozen=True)
class FileEnd:
    """Follows a file's last piece."""

    file: int
    pieces: int
    fault: str | None  # why the file could not be read to its end
    fetched: bool = True


Work = Callable[[], Path] | Path | FileEnd
"""A piece that is begun or is there, or the end of a file."""


@dataclass
class Encoded:
    """The pieces of a corpus, from its beginning on."""

    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    tokens: int = 0
    complete: bool = True  # whether every file was read
    fetched: bool = True  # whether every file was there to be read


class _Reading(Progress):
    """Shows how much of the corpora is read, or of the tokens wanted of them, on
    stderr."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        tokens = sum(job.until or 0 for job in jobs)
        size = sum(file.size for job in jobs for file in job.corpus.files)
        self._by_bytes = not tokens
        self._tokens = self._received = 0
        self._begun = time.monotonic()
        amounts = counted("tokens") if tokens else bytes_of_bytes
        super().__init__(
            plain_console(stderr=True),
            "reading",
            amounts,
            tokens or size or None,
            transient=True,
        )

    def read(self, size: int) -> None:
        self._count(size if self._by_bytes else 0)

    def received(self, size: int) -> None:
        """Counts bytes downloaded; called from other threads."""
        self._received += size
        self._count(0)

    def encoded(self, tokens: int) -> None:
        self._tokens += tokens
        self._count(0 if self._by_bytes else tokens)

    def _count(self, amount: int) -> None:
        speed = self._tokens / max(time.monotonic() - self._begun, 1e-9)
        downloaded = f", {decimal(self._received)} downloaded" if self._received else ""
        self.advance(amount, status=f"{speed:,.0f} tokens/s{downloaded}")


@dataclass(frozen=True)
class Encoder:
    """Makes the pieces that are not there yet; they depend on the files and settings
    alone."""

    begin: Begin
    ahead: int  # pieces that are begun before the first of them is waited for
    fetch: Callable[[InputFile, OnRead], Path]  # `Fetcher.get`
    strict: bool

    def encode(self, jobs: Sequence[Job]) -> list[Encoded]:
        """Encodes each corpus's documents in order until they hold as many tokens as
        asked for.

        All jobs go through one queue: no worker waits for a corpus's last piece. Pieces
        that are there are not made again. Raises UserError where `strict` is set and
        something cannot be read, OSError where the disk is full or a server does not
        answer for long.
        """
        enough: set[int] = set()  # numbers of jobs whose tokens are enough
        encoded = [Encoded() for _ in jobs]
        with (
            _Reading(jobs) as progress,
            closing(self._ahead(self._work(jobs, enough, progress))) as work,
        ):
            for number, part in work:
                if number in enough:
                    continue  # begun before it was known that it is not needed
                job, corpus = jobs[number], encoded[number]
                if isinstance(part, FileEnd):
                    self._end(part, job, corpus)
                    continue
                piece = Piece(part if isinstance(part, Path) else part())
                corpus.pieces.append(piece)
                corpus.tokens += piece.counts.tokens
                progress.encoded(piece.counts.tokens)
                if job.until is not None and corpus.tokens >= job.until:
                    corpus.complete = False
                    enough.add(number)
        return encoded

    def _ahead(
        self, work: Iterator[tuple[int, Any]]
    ) -> Generator[tuple[int, Any], None, None]:
        """Yields items some time after they were begun, which keeps the workers
        busy."""
        waiting: deque[tuple[int, Any]] = deque()
        for item in work:
            waiting.append(item)
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting

    def _work(
        self, jobs: Sequence[Job], enough: Container[int], progress: _Reading
    ) -> Iterator[tuple[int, Work]]:
        for number, job in enumerate(jobs):
            job.folder.mkdir(parents=True, exist_ok=True)
            for place, file in enumerate(job.corpus.files):
                made = _made(job.folder / f"{place:05d}.json", place)
                for part in made or self._parts(job, place, progress):
                    yield number, part
                    if number in enough:
                        break
                if made:
                    progress.read(file.size)
                if number in enough:
                    break

    def _parts(self, job: Job, place: int, progress: _Reading) -> Iterator[Work]:
        """Yields the pieces and the end of a corpus's file, as they are there or
        begun."""
        file, source = job.corpus.files[place], job.corpus.settings
        try:
            path = self.fetch(file, progress.received)
        except Unavailable as error:
            yield FileEnd(place, 0, f"{file.name}: {error}", fetched=False)
            return
        format = format_of(source.name, kind_of(path), source.field)
        count, fault = 0, None
        try:
            read = read_rows(path, format.fields, IDS, progress.read, PIECE_BYTES)
            for count, rows in enumerate(read, 1):
                out = piece_path(job.folder, place, count - 1)
                if read_sealed(out):
                    yield out
                else:
                    yield self.begin(Batch(source, file.name, rows, out))
            if not count:
                fault = f"{file.name}: empty"
        except UnreadableFile as error:
            fault = str(error)
        yield FileEnd(place, count, fault)

    def _end(self, end: FileEnd, job: Job, encoded: Encoded) -> None:
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
        note = job.folder / f"{end.file:05d}.json"
        if end.fetched and not note.exists():
            content = json.dumps({"pieces": end.pieces, "fault": end.fault})
            write_sealed(note, content.encode())


def _made(note: Path, place: int) -> list[Work] | None:
    """Returns the pieces and the end of a file that was noted as done; None if any is
    lost."""
    if noted := read_sealed(note):
        end = FileEnd(place, **json.loads(noted))
        made = [piece_path(note.parent, place, n) for n in range(end.pieces)]
        if all(map(read_sealed, made)):
            return [*made, end]
    note.unlink(missing_ok=True)
    return None
