"""Executors of `concurrent.futures` make pieces: in this process, in others, on a Dask cluster."""

import asyncio
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import data_prep
import dualpath_cli
from dualpath_cli.base.errors import UserError, one_line


class PieceExecutor(Executor):
    """Runs functions. A context manager: leaving it by an exception ends the functions that run.

    A failure of a worker, not of a function, becomes an OSError at that end.
    """

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of functions that run at a time, now."""


def on_this_machine(workers: int) -> PieceExecutor:
    """Returns an executor of a number of processes; one is this process itself."""
    return ProcessPool(workers) if workers > 1 else Here()


class Here(PieceExecutor):
    """Runs each function at once, in this process."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised where the result is wanted, as a pool does
            future.set_exception(error)
        return future


class ProcessPool(ProcessPoolExecutor, PieceExecutor):
    """Starts processes as they are needed; they ignore Ctrl-C, which this process handles."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, get_context("spawn"), _follow_parent)
        self._count = workers

    @property
    def workers(self) -> int:
        return self._count

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # A new process has the mask of the thread that starts it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        # Pieces are whole or not there, so unfinished ones are made again after a failure. Waiting
        # for them would hold up Ctrl-C.
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise OSError(
                "a worker process was killed, perhaps for want of memory: use fewer --workers"
            ) from None


def _follow_parent() -> None:
    """Prepares a process of a pool to end with its parent, even if the parent is killed."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism


CONNECT_SECONDS = 10  # the time to wait for a scheduler

_PACKAGES = ("distributed", "numpy", "pyarrow", "tiktoken", "tokenizers", "datasketch")
"""Packages on which the bytes of pieces, or their way here, depend."""


class DaskCluster(PieceExecutor):
    """The workers of a Dask scheduler, which gives the work of a dead worker to another one."""

    def __init__(self, address: str) -> None:
        try:
            import dask
            import distributed
        except ImportError:
            raise UserError(
                "--executor dask needs the package distributed: pip install 'dualpath[dask]'"
            ) from None
        for name in ("distributed", "distributed.client", "tornado.application"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # in favour of the command's line
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"})  # a long row
        self._address, self._software = address, _software()

        async def ask() -> None:
            security = distributed.Security().get_connection_args("client")  # for tls://
            async with distributed.core.rpc(address, connection_args=security) as scheduler:
                await asyncio.wait_for(scheduler.identity(), CONNECT_SECONDS)

        try:
            asyncio.run(ask())  # before there is a client, which else stays half alive
        except (OSError, ValueError) as error:
            reason = one_line(str(error)) or f"nothing came within {CONNECT_SECONDS} s"
            raise UserError(
                f"--scheduler '{address}' does not answer ({reason}); start it by `dask scheduler` "
                "and give the address that it prints"
            ) from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions, which every task compares
            self._client = distributed.Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False
            )
        if not self.workers:
            self._client.close()
            raise UserError(
                f"--scheduler '{address}' has no workers; start some: "
                f"dask worker {address} --nthreads 1"
            )
        # Not pure: a function that is wanted again is run again, not answered from memory.
        self._executor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        return sum(self._client.nthreads().values())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(_run, self._software, fn, *args, **kwargs)
        return future

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        self._executor.shutdown(wait=False)
        self._client.close()
        if isinstance(error, KilledWorker):
            raise OSError(
                f"a piece was given up after {error.allowed_failures + 1} workers died making it, "
                "perhaps for want of memory: give each more"
            ) from None
        if isinstance(error, CancelledError | CommClosedError):
            raise OSError(f"the scheduler at {self._address} went away") from None
        if isinstance(error, ModuleNotFoundError):
            raise OSError(f"a worker cannot make pieces: {error}") from None


@cache
def _software() -> dict[str, str]:
    """Returns the versions on which pieces depend; words follow Python's Unicode tables."""
    found = {name: version(name) if find_spec(name) else "none" for name in _PACKAGES}
    digest = hashlib.sha256()
    for module in (data_prep, dualpath_cli):
        root = Path(str(module.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    # Checkouts have one version number and many contents.
    found["dualpath"] = f"{dualpath_cli.__version__} ({digest.hexdigest()[:12]})"
    return found | {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def _run(ours: dict[str, str], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function on a worker, if its software is that of the command's machine."""
    from distributed import get_worker

    theirs = _software()
    if other := next((name for name in ours if theirs.get(name) != ours[name]), None):
        raise UserError(
            f"worker {get_worker().address} has {other} {theirs.get(other)} instead of "
            f"{ours[other]}; install the same there as here"
        )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    return fn(*args, **kwargs)
