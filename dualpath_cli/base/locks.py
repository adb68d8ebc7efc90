"""Locks of files and folders: one process at a time."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import say

FIT = "fit.lock"  # in a run folder, while a fit runs

_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of flock on a file system that has no locks."""

_held: set[int] = set()  # descriptors of locks; a forked process closes its copies

_uses = ExitStack()  # locks that end with this process


def _close_copies() -> None:
    while _held:
        os.close(_held.pop())


# A child that outlives this process would else keep its locks.
os.register_at_fork(after_in_child=_close_copies)


def open_without_links(path: str | Path, flags: int) -> int:
    """os.open that follows no link and does not wait at a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def locked(
    path: Path, create: int = 0, *, wait: bool = False, shared: bool = False
) -> Iterator[bool]:
    """Locks a file, never a link; yields whether the file system has locks.

    Any number of processes may hold a `shared` lock at the same time. If another
    process holds a lock that excludes this one, waits with `wait`, else raises
    BlockingIOError.
    """
    # A lock that lasts to the end of the interpreter outlives the names of modules.
    held = _held
    close = os.close
    while True:
        descriptor = open_without_links(path, os.O_RDWR | create)
        held.add(descriptor)
        try:
            has_locks = _flock(descriptor, wait, shared)
            # Another process may have removed the file before it was locked.
            if os.fstat(descriptor).st_nlink:
                yield has_locks
                return
        finally:
            # A fork inside the block has closed its copy.
            if descriptor in held:
                held.remove(descriptor)
                close(descriptor)


def _flock(descriptor: int, wait: bool, shared: bool) -> bool:
    """Locks an open file; returns whether the file system has locks."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            return False
        raise
    return True


@contextmanager
def exclusive(
    lock: Path,
    what: Path,
    way_out: str = "wait for its end",
    *,
    wait: bool = False,
    keep: bool = False,
) -> Iterator[None]:
    """Locks the file `lock` while the block writes to `what`.

    Raises UserError if another process writes to `what`; `wait` waits for its end
    instead. `keep` leaves the lock file. The lock is the operating system's (flock): it
    ends with its process. Over NFS it holds between machines (Linux; not with
    local_lock). On a file system without locks a warning is printed, and nothing is
    locked.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)

    with ExitStack() as stack:
        try:
            has_locks = stack.enter_context(locked(lock, os.O_CREAT, wait=wait))
        except BlockingIOError:
            raise UserError(
                f"'{what}' is being written by another process; {way_out}"
            ) from None

        if not has_locks:
            say(
                f"'{what}' is on a file system without locks: let nothing else write "
                "there"
            )

        try:
            yield
        finally:
            if not keep:
                # a process that waits for it makes a new one
                lock.unlink(missing_ok=True)


def is_locked(lock: Path) -> bool:
    """Whether a process has a lock file, as far as the file system knows."""
    try:
        with locked(lock):
            return False
    except OSError as error:
        return isinstance(error, BlockingIOError)


@cache
def keep_in_use(folder: Path) -> None:
    """Protects a folder from `remove_unused`, in any process, until this process ends.

    The folder need not exist yet. The lock lies beside the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = locked(_lock_of_users(folder), os.O_CREAT, wait=True, shared=True)
    _uses.enter_context(lock)


def remove_unused(folder: Path) -> None:
    """Deletes a folder unless a process keeps it in use.

    On a file system without locks the folder stays.
    """
    lock = _lock_of_users(folder)
    # BlockingIOError: it is in use
    with suppress(OSError), locked(lock, os.O_CREAT) as has_locks:
        if has_locks:
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink()  # a process that waits for it makes a new one


def _lock_of_users(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.used")
