"""Encoding: the files of corpora -> pieces, in order, by the workers of an executor."""

import json
import pickle
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.filesize import decimal

from data_prep.documents import pieces
from data_prep.documents.pieces import CorpusFile, FileEnd, Made, Piece, PieceSettings, piece_path
from data_prep.download import Unavailable
from data_prep.executors import PieceExecutor
from data_prep.sources.corpora import Corpus, InputFile
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import replacing
from dualpath_cli.data.rows import OnRead
from dualpath_cli.report.console import Progress, bytes_of_bytes, counted

PIECE_BYTES = 8 << 20  # uncompressed size of the rows that make a piece; a longer row goes alone

FILES_A_WORKER = 8
"""Workers read files themselves where each gets this many of the largest: then all end together."""


@dataclass(frozen=True)
class Job:
    corpus: Corpus
    folder: Path  # the folder of its pieces
    until: int | None  # tokens that are enough; None: all there are


@dataclass
class Encoded:
    """The pieces of a corpus, from its beginning on."""

    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    complete: bool = True  # whether every file was read
    fetched: bool = True  # whether every file was there to be read


class ReadingProgress(Progress):
    """Shows how much of the corpora is read, or of the tokens wanted of them, on stderr."""

    def __init__(self, size: int, tokens: int | None) -> None:
        """`size` in bytes is what `read` adds up to; `tokens` are those asked for, None for all."""
        self._by_bytes = tokens is None
        self._tokens = self._received = 0
        self._begun = time.monotonic()
        amounts = bytes_of_bytes if self._by_bytes else counted("tokens")
        total = (size if tokens is None else tokens) or None
        super().__init__(Console(stderr=True), "reading", amounts, total, transient=True)

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


class Encoder:
    """Makes the pieces that are not there yet; they depend on the files and settings alone."""

    def __init__(
        self,
        settings: PieceSettings,
        executor: PieceExecutor,
        folder: Path,
        fetch: Callable[[InputFile, OnRead], Path],
    ) -> None:
        """`folder` takes the settings, where all workers find them; `fetch` is `Fetcher.get`."""
        self._settings = settings
        self._executor = executor
        self._orders = folder / f"orders-{uuid4().hex}"
        self._fetch = fetch

    def __enter__(self) -> "Encoder":
        # Workers of a killed run stop where its orders are gone; no other run is alive.
        for old in self._orders.parent.glob("orders-*"):
            old.unlink()
        with replacing(self._orders) as partial:
            partial.write_bytes(pickle.dumps(self._settings))
        return self

    def __exit__(self, *error: object) -> None:
        self._orders.unlink(missing_ok=True)

    def encode(self, jobs: Sequence[Job], progress: ReadingProgress) -> list[Encoded]:
        """Encodes each corpus's documents in order until they hold as many tokens as asked for.

        All go through one queue: no worker waits for a corpus's last piece. Pieces that are there
        are not made again. Raises UserError where `strict` is set and something cannot be read,
        OSError where the disk is full or a server does not answer for long.
        """
        enough: set[int] = set()
        tokens = [0] * len(jobs)
        encoded = [Encoded() for _ in jobs]
        with closing(self._ahead(self._work(jobs, enough, progress))) as work:
            for number, made in work:
                if number in enough:
                    continue  # begun before it was known that it is not needed
                job, corpus = jobs[number], encoded[number]
                for item in made.result() if isinstance(made, Future) else made:
                    if isinstance(item, FileEnd):
                        self._end(item, job, corpus)
                        continue
                    piece = Piece(item)
                    corpus.pieces.append(piece)
                    tokens[number] += piece.counts.tokens
                    progress.encoded(piece.counts.tokens)
                    if job.until is not None and tokens[number] >= job.until:
                        corpus.complete = False
                        enough.add(number)
                        break
        return encoded

    def _ahead(self, work: Iterator[tuple[int, Any]]) -> Generator[tuple[int, Any], None, None]:
        """Yields items some time after they were begun, so that the workers are kept busy."""
        waiting: deque[tuple[int, Any]] = deque()
        for item in work:
            waiting.append(item)
            if len(waiting) > self._executor.workers + 2:
                yield waiting.popleft()
        yield from waiting

    def _work(
        self, jobs: Sequence[Job], enough: Container[int], progress: ReadingProgress
    ) -> Iterator[tuple[int, Future[Made] | Made]]:
        for number, job in enumerate(jobs):
            job.folder.mkdir(parents=True, exist_ok=True)
            for made in self._made(job, progress):
                yield number, made
                if number in enough:
                    break

    def _made(self, job: Job, progress: ReadingProgress) -> Iterator[Future[Made] | Made]:
        """Yields the pieces and the end of each file of a corpus, as they are there or begun."""
        # Listed, for a file that was asked after by its name may stay missing on NFS for a minute.
        notes = {path.stem for path in job.folder.glob("*.json")}
        there = {path for path in job.folder.glob("*.arrow") if Piece(path).is_usable()}
        by_file = self._workers_read(job)
        for number, file in enumerate(job.corpus.files):
            note = job.folder / f"{number:05d}.json"
            if note.stem in notes and (noted := pieces.read_sealed(note)):
                end = FileEnd(number, **json.loads(noted))
                made = [piece_path(job.folder, number, n) for n in range(end.pieces)]
                if there.issuperset(made):
                    yield [*made, end]
                    progress.read(file.size)
                    continue
            note.unlink(missing_ok=True)  # of pieces that were lost
            try:
                path = self._fetch(file, progress.received)
            except Unavailable as error:
                yield [FileEnd(number, 0, f"{file.name}: {error}", fetched=False)]
                continue
            given = path.absolute(), str(path)
            settings = job.corpus.settings
            work = CorpusFile(settings, file.name, number, *given, job.folder, PIECE_BYTES)
            if by_file:
                size = path.stat().st_size
                yield self._executor.submit(pieces.make_file, self._orders, work, size)
                progress.read(file.size)
                continue
            for part in work.parts(progress.read):
                if isinstance(part, FileEnd):
                    yield [part]
                elif part.out in there:
                    yield [part.out]
                else:
                    yield self._executor.submit(pieces.make, self._orders, part)

    def _workers_read(self, job: Job) -> bool:
        """Whether workers get files to read, so that this process's reading does not limit them."""
        sizes = [file.size for file in job.corpus.files if file.size]
        workers = self._executor.workers
        # How many files the head of a corpus is shows as they are read.
        if job.until is not None or workers == 1 or not sizes:
            return False
        total = sum(sizes) / len(sizes) * len(job.corpus.files)
        return total >= FILES_A_WORKER * workers * max(sizes)

    def _end(self, end: FileEnd, job: Job, encoded: Encoded) -> None:
        """Notes that a file is done, all of whose pieces are there by now."""
        file = job.corpus.files[end.file]
        if file.has_changed():
            raise UserError(
                f"{file.name}: changed while it was prepared; start again with --overwrite"
            )
        if end.fault:
            if self._settings.strict:
                raise UserError(end.fault)
            encoded.faults.append(end.fault)
        encoded.fetched &= end.fetched
        note = job.folder / f"{end.file:05d}.json"
        if end.fetched and not note.exists():
            content = json.dumps({"pieces": end.pieces, "fault": end.fault})
            pieces.write_sealed(note, content.encode())
