"""Pieces made on this machine: by this process, or by a pool of others."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from threading import current_thread, main_thread
from typing import Any

from data_prep.executors import PieceExecutor


def on_this_machine(workers: int) -> PieceExecutor:
    """Returns an executor of a number of processes; one is this process itself."""
    return Pool(workers) if workers > 1 else Here()


class Here(PieceExecutor):
    """Does the work at once, in this process."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised where the result is wanted, as a pool does
            future.set_exception(error)
        return future

    def failure(self, error: Exception) -> None:
        """None: there is no worker to fail."""


class Pool(ProcessPoolExecutor, PieceExecutor):
    """Starts processes as they are needed, deaf to Ctrl-C: that is this process's to handle."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, get_context("spawn"), _follow_parent)
        self._count = workers

    @property
    def workers(self) -> int:
        return self._count

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with _uninterrupted():
            try:
                return super().submit(fn, *args, **kwargs)
            except BrokenProcessPool as error:  # raised where the result is wanted, as any other
                future: Future[Any] = Future()
                future.set_exception(error)
                return future

    def failure(self, error: Exception) -> str | None:
        if isinstance(error, BrokenProcessPool):
            return "a worker process was killed, perhaps for want of memory: use fewer --workers"
        return None

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # Unfinished work is repeated anyway after a failure: pieces are whole or
        # not there. Waiting for it would hold up Ctrl-C.
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Prepares a process of a pool; it ends when its parent ends, even if that was killed."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism


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
