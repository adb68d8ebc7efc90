"""Executors make pieces: in this process, in others of this machine, on a Dask cluster."""

import asyncio
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any
from uuid import uuid4

import data_prep
import dualpath_cli
from dualpath_cli.errors import UserError, one_line


class PieceExecutor(Executor, ABC):
    """Runs functions elsewhere. A context manager: leaving it by an exception ends what runs."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of functions that run at a time, now."""

    @abstractmethod
    def failure(self, error: Exception) -> str | None:
        """Returns in a line what failed where it was the workers; None for a function's error."""


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
    """Puts a Ctrl-C off to the end of the block: a half-started process is not known yet."""
    late: list[int] = []
    in_main_thread = current_thread() is main_thread()  # no other may set a handler, or needs one
    if in_main_thread:
        handler = signal.signal(signal.SIGINT, lambda number, frame: late.append(number))
    # A new process has the mask of the one that starts it. Blocking is not enough: a signal may
    # reach another thread and is then raised in this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)
    if late:
        raise KeyboardInterrupt


CONNECT_SECONDS = 10  # the time to wait for a scheduler

_PACKAGES = ("distributed", "numpy", "pyarrow", "tiktoken", "tokenizers", "datasketch")
"""Other packages that the bytes of pieces, or their way here, depend on."""

_Software = dict[str, str]


class Cluster(PieceExecutor):
    """The workers of a Dask scheduler, which runs again what a dead worker had begun."""

    def __init__(self, address: str, folder: Path) -> None:
        """Connects; `folder` is the one that all workers have to see as this machine does."""
        self._address = address
        self._software = _software()
        self._client = _connected(address, self._software)
        try:
            self._check(folder)
        except BaseException:
            self._client.close()
            raise
        # Not pure: a function that is wanted again is run again, not answered from memory.
        self._executor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        try:
            return sum(self._client.nthreads().values())
        except (OSError, CancelledError):
            raise OSError(self._lost()) from None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(_run, self._software, fn, *args, **kwargs)
        return future

    def failure(self, error: Exception) -> str | None:
        from distributed import KilledWorker

        if isinstance(error, KilledWorker):
            return (
                f"a piece was given up after {error.allowed_failures + 1} workers died making it, "
                "perhaps for want of memory: give each more"
            )
        if isinstance(error, CancelledError):
            return self._lost()
        if isinstance(error, ModuleNotFoundError):
            return f"a worker came that cannot make pieces: {error}"
        return None

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(wait=False)
        self._client.close()

    def _lost(self) -> str:
        return f"the scheduler at {self._address} went away"

    def _check(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".seen-{uuid4().hex}"
        probe.touch()
        try:
            found = self._client.run(_look, probe, on_error="return")
            if not found:
                raise UserError(
                    f"--scheduler '{self._address}' has no workers; start some: "
                    f"dask worker {self._address} --nthreads 1"
                )
            for worker, answer in found.items():
                _check_worker(worker, answer, self._software, folder)
        finally:
            for path in folder.glob(f"{probe.name}*"):
                path.unlink()


def _distributed() -> Any:
    """Imports Dask's package; its messages give way to the one line of this command."""
    try:
        import dask
        import distributed
    except ImportError:
        raise UserError(
            "--executor dask needs the package distributed: pip install 'dualpath[dask]'"
        ) from None
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"})  # a long row
    return distributed


def _connected(address: str, ours: _Software) -> Any:
    distributed, name = _distributed(), "distributed"

    async def version() -> str:
        security = distributed.Security().get_connection_args("client")  # for tls://, by its config
        async with distributed.core.rpc(address, connection_args=security) as scheduler:
            found = await asyncio.wait_for(scheduler.versions(), CONNECT_SECONDS)
            return str(found["packages"][name])

    # Asked before there is a client, which stays half alive where it finds no scheduler, or one
    # that does not understand it.
    try:
        theirs = asyncio.run(version())
    except (OSError, ValueError) as error:
        reason = one_line(str(error)) or f"nothing came within {CONNECT_SECONDS} s"
        raise UserError(
            f"--scheduler '{address}' does not answer ({reason}); start it by `dask scheduler` and "
            "give the address that it prints"
        ) from None
    _check_software("the scheduler", {name: theirs}, {name: ours[name]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks report differences, in one line
        return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)


def _look(probe: Path) -> _Software | Path:
    """Runs on a worker: returns its software, or the file if it cannot put another beside it."""
    if not probe.exists():
        return probe
    try:
        probe.with_name(f"{probe.name}-{uuid4().hex}").touch()
    except OSError:
        return probe
    return _software()


def _check_worker(worker: str, answer: Any, ours: _Software, folder: Path) -> None:
    if isinstance(answer, Path):
        raise UserError(
            f"worker {worker} does not see or cannot write '{folder}': --out must lie on a file "
            "system that all workers share"
        )
    if isinstance(answer, Exception):
        raise UserError(
            f"worker {worker} cannot run this package ({one_line(str(answer))}); install the same "
            "version there as here"
        )
    _check_software(f"worker {worker}", answer, ours)


def _check_software(who: str, theirs: _Software, ours: _Software) -> None:
    for name, own in ours.items():
        if (other := theirs.get(name)) != own:
            difference = f"{who} has {name} {other} instead of {own}"
            raise UserError(f"{difference}; install the same there as here")


@cache
def _software() -> _Software:
    """Returns the versions of what decides a piece; words follow Python's Unicode tables."""
    found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    digest = hashlib.sha256()
    for module in (data_prep, dualpath_cli):
        root = Path(str(module.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    # Checkouts have one version number and many contents.
    return found | {"dualpath": f"{dualpath_cli.__version__} ({digest.hexdigest()[:12]})"}


def _run(ours: _Software, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs on a worker, which may have come after the others were checked."""
    from distributed import get_worker

    _check_software(f"worker {get_worker().address}", _software(), ours)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    return fn(*args, **kwargs)
