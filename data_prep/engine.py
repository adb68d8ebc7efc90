"""Tasks over files, in this process or in several of this machine.

A task reads files, writes others that are whole or not there, and returns something
small. So a task may run anywhere that sees the files, and again after it was killed.
"""

import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from dualpath_cli.base.files import replacing

Between = Callable[[], None]
"""Called now and then while tasks run."""

POLL_SECONDS = 0.5
AHEAD = 2  # tasks that are begun beyond one for each worker


class Task(Protocol):
    def run(self, between: Between) -> Any:
        """Does the work; calls `between` where the work can be watched."""


class Engine:
    """Runs tasks; this one in its own process, one after the other."""

    workers = 1

    def run(
        self, tasks: Iterable[Task | None], between: Between = lambda: None
    ) -> Iterator[tuple[Any, Any]]:
        """Yields each task with what it returned, in the order in which they end.

        `tasks` is read as there is room for more; None means that the next one cannot
        be begun yet. What a task raises is raised here.
        """
        for task in tasks:
            between()
            if task is not None:
                yield task, task.run(between)
        between()


class ParallelEngine(Engine):
    """Runs tasks at the same time, wherever its methods begin them."""

    def run(
        self, tasks: Iterable[Task | None], between: Between = lambda: None
    ) -> Iterator[tuple[Any, Any]]:
        running: dict[Any, Task] = {}
        for task in tasks:
            if task is None:
                yield from self._ended(running, between)
                continue

            running[self.begin(task)] = task
            while len(running) >= self.workers + AHEAD:
                yield from self._ended(running, between)

        while running:
            yield from self._ended(running, between)

    def _ended(
        self, running: dict[Any, Task], between: Between
    ) -> list[tuple[Task, Any]]:
        """Waits a little; returns the tasks that have ended, with their results."""
        handles = self.wait(list(running), POLL_SECONDS)
        between()
        return [(running.pop(handle), self.result(handle)) for handle in handles]

    def begin(self, task: Task) -> Any:
        """Begins a task; returns a handle of it."""
        raise NotImplementedError

    def wait(self, handles: Sequence[Any], seconds: float) -> Iterable[Any]:
        """Waits until some tasks have ended, or for a time; returns their handles."""
        raise NotImplementedError

    def result(self, handle: Any) -> Any:
        """What a task that has ended returned; raises what the task raised."""
        raise NotImplementedError


@contextmanager
def local_engine(workers: int) -> Iterator[Engine]:
    """Yields an engine of `workers` processes, or of this one.

    Leaving the context by an exception ends the processes; the exception of a process
    that was killed becomes an OSError.
    """
    if workers == 1:
        yield Engine()
        return

    with ProcessPoolExecutor(workers, get_context("spawn"), _follow_parent) as pool:
        try:
            yield _Processes(pool, workers)
        except BaseException as error:
            # Files are whole or not there, so unfinished ones are made again after a
            # failure. Waiting for them would hold up Ctrl-C.
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)

            if isinstance(error, BrokenProcessPool):
                raise OSError(
                    "a worker process was killed, perhaps because memory ran out: use "
                    "fewer --workers"
                ) from None
            raise


class _Processes(ParallelEngine):
    def __init__(self, pool: ProcessPoolExecutor, workers: int) -> None:
        self.workers = workers
        self._pool = pool

    def begin(self, task: Task) -> Future[Any]:
        # A new process has the mask of the thread that starts it: this process handles
        # Ctrl-C.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return self._pool.submit(run_unwatched, task)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def wait(
        self, handles: Sequence[Future[Any]], seconds: float
    ) -> Iterable[Future[Any]]:
        return futures.wait(handles, seconds, futures.FIRST_COMPLETED).done

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()


def run_unwatched(task: Task) -> Any:
    """Runs a task in a process that nobody watches from inside."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    return task.run(lambda: None)


def _follow_parent() -> None:
    """Prepares a process of a pool to end with its parent, also a killed one."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# What all tasks of a stage need is in a file: a pool's initargs would leave this
# process writing to a pipe for ever, where a process is killed before it reads them.


def write_shared(folder: Path, name: str, content: Any) -> Path:
    """Writes what many tasks need, for `read_shared`; returns the path."""
    pickled = pickle.dumps(content)
    digest = hashlib.sha256(pickled).hexdigest()[:16]
    path = folder / f"{name}-{digest}.pickle"
    with replacing(path) as partial:
        partial.write_bytes(pickled)
    return path


@lru_cache(maxsize=4)
def read_shared(path: Path) -> Any:
    """What `write_shared` wrote, read once in a process."""
    return pickle.loads(path.read_bytes())
