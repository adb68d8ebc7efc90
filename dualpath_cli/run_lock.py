"""The lock on a run folder: one `fit` at a time writes into it. Torch-free.

It is the operating system's (flock), on a file that names its holder: it goes with the process,
however that ends, and a file that a killed one left behind locks nothing. Over NFS it holds between
machines (Linux; not where mounted with local_lock), and ends some time after a machine that died.
Lustre has it where mounted with `flock`.
"""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpath_cli.errors import UserError, is_mistake

LOCK = "fit.lock"

_held: set[int] = set()


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# A loader's worker that outlives a killed `fit` must not keep its lock. Closing is not unlocking.
os.register_at_fork(after_in_child=_let_go)


@contextmanager
def alone_in(
    folder: Path,
    say: Callable[[str], None],
    name: str = LOCK,
    way_out: str = "wait for its end, or give this run a name (--run.name NAME)",
) -> Iterator[None]:
    """Holds the lock of a folder, a file of that name; the folder is made where it is missing.

    Where the file system has no locks, `say` is told, and the work goes on without.

    Raises:
        UserError: if another process holds it, or nothing can be written at such a path.
    """
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, locked = _open(path, way_out)
    except OSError as error:
        if not is_mistake(error):
            raise
        raise UserError(f"folder '{folder}' cannot be written: {error}") from error
    _held.add(descriptor)
    try:
        if not locked:
            say(f"{folder} is on a file system without locks: let nothing else write there")
        yield
    finally:
        path.unlink(missing_ok=True)
        _held.discard(descriptor)
        os.close(descriptor)


def holder_of(folder: Path) -> str | None:
    """The process that holds the lock of a run folder, as far as the file system knows, in words.

    None where no other one does.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # nobody has written there, or nobody does any more
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return _named_in(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _named_in(descriptor: int) -> str:
    """What a holder has written into the file of its lock."""
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"


def _open(path: Path, way_out: str) -> tuple[int, bool]:
    """Returns the open file with our name in it, and whether it could be locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # NFS locks what can be written
        locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = _named_in(descriptor)
            os.close(descriptor)
            raise UserError(f"'{path.parent}' is being written by {holder}; {way_out}") from None
        except OSError:
            locked = False
        # The holder before may have removed the file since it was opened.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            return descriptor, locked
        os.close(descriptor)
