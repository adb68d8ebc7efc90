"""Locks on files and folders: one process at a time writes there. Torch-free.

They are the operating system's (flock): they go with the process, however that ends, and a file
that a killed one left behind locks nothing. Over NFS they hold between machines (Linux; not where
mounted with local_lock), and end some time after a machine that died. Lustre has them where mounted
with `flock`.
"""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpath_cli.errors import UserError, is_mistake

FIT = "fit.lock"
"""In a run folder, while a fit runs."""

_held: set[int] = set()


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# A child that outlives its killed parent must not keep the lock. Closing is not unlocking.
os.register_at_fork(after_in_child=_let_go)


class Held(Exception):
    """Another process has the lock."""


@contextmanager
def locked(path: Path, opened: Callable[[], int]) -> Iterator[tuple[int, bool]]:
    """Holds the lock of what lies at `path`, which `opened` opens, and makes where it is missing.

    Yields the descriptor, and whether the file system has locks; without them nothing is held.

    Raises:
        Held: if another process has it.
    """
    while True:
        descriptor, has_locks = opened(), True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            raise Held from None
        except OSError:
            has_locks = False
        # The holder before may have removed it since it was opened.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            break
        os.close(descriptor)
    _held.add(descriptor)
    try:
        yield descriptor, has_locks
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path, say: Callable[[str], None], name: str, way_out: str) -> Iterator[None]:
    """Holds the lock of a folder, a file of that name; the folder is made where it is missing.

    The file names its holder. Where the file system has no locks, `say` is told, and the work goes
    on without.

    Raises:
        UserError: if another process holds it, or nothing can be written at such a path.
    """
    path = folder / name

    def opened() -> int:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # NFS locks what can be written
        except OSError as error:
            if not is_mistake(error):
                raise
            raise UserError(f"folder '{folder}' cannot be written: {error}") from error

    try:
        with locked(path, opened) as (descriptor, has_locks):
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            try:
                if not has_locks:
                    say(f"{folder} is on a file system without locks: let nothing else write there")
                yield
            finally:
                path.unlink(missing_ok=True)
    except Held:
        raise UserError(f"'{folder}' is being written by {_named_in(path)}; {way_out}") from None


def holder_of(path: Path) -> str | None:
    """The process that holds the lock of a file, as far as the file system knows, in words.

    None where no other one does.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # nobody has written there, or nobody does any more
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return _named_in(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _named_in(path: Path) -> str:
    """The text that a holder has written into the file of its lock."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") or "another process"
    except OSError:  # it has let go by now
        return "another process"
