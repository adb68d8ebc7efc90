"""Encoding: the files of corpora -> pieces, in order, by a pool of processes."""

import json
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from data_prep.documents import worker
from data_prep.documents.piece import Piece
from data_prep.documents.progress import ReadingProgress
from data_prep.documents.worker import Batch, PieceSettings
from data_prep.download.remote_file import Unavailable
from data_prep.sources.corpora import Corpus, InputFile
from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.text.byte_stream import OnRead
from dualpath_cli.text.documents import IDS, format_of
from dualpath_cli.text.rows import UnreadableFile, kind_of, read_rows

PIECE_BYTES = 8 << 20
"""Uncompressed size of the rows that make a piece; a longer row goes alone."""


@dataclass(frozen=True)
class Job:
    """A corpus to encode."""

    corpus: Corpus
    folder: Path
    """Where its pieces are."""
    until: int | None
    """Tokens that are enough; None: all there are."""


@dataclass
class Encoded:
    """What a corpus gave, from its beginning on."""

    pieces: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    complete: bool = True
    """Whether every file was read."""


@dataclass(frozen=True)
class _FileEnd:
    """Follows a file's last piece."""

    note: Path
    pieces: int
    fault: str | None


_Item = Future[Path] | Path | _FileEnd


class Encoder:
    """Makes the pieces that are not there yet. A context manager that owns the processes.

    Which pieces there are, and what is in them, depends on the files and settings alone.
    """

    def __init__(
        self, settings: PieceSettings, workers: int, fetch: Callable[[InputFile, OnRead], Path]
    ) -> None:
        """`fetch` is `Fetcher.get`."""
        self._settings = settings
        self._workers = workers
        self._fetch = fetch
        self._executor: Executor = (
            _Pool(workers, get_context("spawn"), worker.start, (settings,))
            if workers > 1
            else _Here(settings)
        )

    def __enter__(self) -> "Encoder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # What is half done when something goes wrong is done again anyway: pieces are whole or
        # not there. Waiting for it would hold up Ctrl-C.
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def encode(self, jobs: Sequence[Job], progress: ReadingProgress) -> list[Encoded]:
        """Encodes each corpus's documents in order until they hold as many tokens as asked for.

        All go through one queue: no process waits for a corpus's last piece. Pieces that are there
        are not made again. Raises UserError where `strict` is set and something cannot be read,
        OSError where a process dies, the disk is full or a server does not answer for long.
        """
        enough: set[int] = set()
        tokens = [0] * len(jobs)
        encoded = [Encoded() for _ in jobs]
        try:
            with closing(self._ahead(self._work(jobs, enough, progress))) as items:
                for number, item in items:
                    if number in enough:
                        continue  # begun before it was known that it is not needed
                    if isinstance(item, _FileEnd):
                        self._end(item, encoded[number])
                        continue
                    piece = Piece(item.result() if isinstance(item, Future) else item)
                    encoded[number].pieces.append(piece)
                    tokens[number] += piece.counts.tokens
                    progress.encoded(piece.counts.tokens)
                    until = jobs[number].until
                    if until is not None and tokens[number] >= until:
                        encoded[number].complete = False
                        enough.add(number)
        except BrokenProcessPool:
            raise OSError(
                "a worker process was killed, perhaps for want of memory: use fewer --workers"
            ) from None
        return encoded

    def _ahead(self, work: Iterator[tuple[int, _Item]]) -> Generator[tuple[int, _Item], None, None]:
        """Yields items some time after they were begun, so that the processes are kept busy."""
        waiting: deque[tuple[int, _Item]] = deque()
        for item in work:
            waiting.append(item)
            if len(waiting) > self._workers + 2:
                yield waiting.popleft()
        yield from waiting

    def _work(
        self, jobs: Sequence[Job], enough: Container[int], progress: ReadingProgress
    ) -> Iterator[tuple[int, _Item]]:
        for number, job in enumerate(jobs):
            job.folder.mkdir(parents=True, exist_ok=True)
            for item in self._items(job, progress):
                yield number, item
                if number in enough:
                    break

    def _items(self, job: Job, progress: ReadingProgress) -> Iterator[_Item]:
        for number, file in enumerate(job.corpus.files):
            note = job.folder / f"{number:05d}.json"
            if note.exists():
                self._check_unchanged(file)
                known = json.loads(note.read_text())
                for piece in range(known["pieces"]):
                    yield job.folder / _piece_name(number, piece)
                yield _FileEnd(note, **known)
                progress.read(file.size or 0)
                continue
            count, fault = 0, None
            try:
                for batch in self._batches(job, file, number, progress):
                    count += 1
                    finished = batch.out.exists()
                    yield batch.out if finished else self._executor.submit(worker.make, batch)
                if not count:
                    fault = f"{file.name}: empty"
            except UnreadableFile as error:
                fault = str(error)
            except Unavailable as error:
                fault = f"{file.name}: {error}"
            self._check_unchanged(file)
            yield _FileEnd(note, count, fault)

    def _end(self, end: _FileEnd, encoded: Encoded) -> None:
        """Notes that a file is done, all of whose pieces are there by now."""
        if end.fault:
            if self._settings.strict:
                raise UserError(end.fault)
            encoded.faults.append(end.fault)
        if not end.note.exists():
            write_text(end.note, json.dumps({"pieces": end.pieces, "fault": end.fault}))

    def _check_unchanged(self, file: InputFile) -> None:
        if file.has_changed():
            raise UserError(
                f"{file.name}: changed while it was prepared; begin anew with --overwrite"
            )

    def _batches(
        self, job: Job, file: InputFile, number: int, progress: ReadingProgress
    ) -> Iterator[Batch]:
        path = self._fetch(file, progress.received)
        name, field = job.corpus.settings.name, job.corpus.settings.field
        format = format_of(name, kind_of(path), field)
        batches = read_rows(path, format.fields, IDS, progress.read, PIECE_BYTES, format.advice)
        for piece, rows in enumerate(batches):
            yield Batch(name, field, file.name, rows, job.folder / _piece_name(number, piece))


def file_number(piece: Piece) -> int:
    """Returns which of its corpus's files a piece is of."""
    return int(piece.path.name.partition("-")[0])


def _piece_name(file: int, piece: int) -> str:
    return f"{file:05d}-{piece:05d}.arrow"


class _Pool(ProcessPoolExecutor):
    """Starts processes as they are needed, deaf to Ctrl-C: that is this process's to handle."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with _uninterrupted():
            return super().submit(fn, *args, **kwargs)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts a Ctrl-C off to the end of the block: a process that is half started is not known yet.

    A blocked signal is not enough, for it may reach another thread and is then raised in this one.
    """
    late: list[int] = []
    in_main_thread = current_thread() is main_thread()  # no other may set a handler, or needs one
    if in_main_thread:
        handler = signal.signal(signal.SIGINT, lambda number, frame: late.append(number))
    # A new process has the mask of the one that starts it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
    if late:
        raise KeyboardInterrupt


class _Here(Executor):
    """Does the work at once, in this process."""

    def __init__(self, settings: PieceSettings) -> None:
        worker.load(settings)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised where the result is wanted, as a pool does
            future.set_exception(error)
        return future
