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


def no_link(path: str | Path, flags: int) -> int:
    """os.open that follows no link and does not wait at a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


_held: set[int] = set()  # descriptors of locks; a forked process closes its copies


_uses = ExitStack()  # locks that end with this process


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(
    path: Path, create: int = 0, *, wait: bool = False, shared: bool = False
) -> Iterator[bool]:
    """Holds a file, never a link; yields whether the file system has locks.

    Any number may hold a file `shared` at the same time. Raises BlockingIOError if
    another process holds it otherwise, unless `wait`.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        descriptor = no_link(path, os.O_RDWR | create)
        _held.add(descriptor)
        try:
            try:
                fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
                known = True
            except OSError as error:
                if error.errno not in (
                    errno.ENOSYS,
                    errno.ENOLCK,
                    errno.EOPNOTSUPP,
                    errno.EINVAL,
                ):
                    raise
                known = False
            if os.fstat(descriptor).st_nlink:  # else removed before it was locked
                yield known
                return
        finally:
            if descriptor in _held:  # else this is a fork, which has let it go
                _held.remove(descriptor)
                os.close(descriptor)


@contextmanager
def alone(
    lock: Path,
    what: Path,
    way_out: str = "wait for its end",
    *,
    wait: bool = False,
    keep: bool = False,
) -> Iterator[None]:
    """Holds a lock file while the block runs.

    Raises UserError if another process writes `what`; `wait` waits for its end instead.
    `keep` leaves the file. The lock is the operating system's (flock): it ends with its
    process. Over NFS it holds between machines (Linux; not with local_lock). On a file
    system without locks a warning is printed, and nothing is held.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            known = held.enter_context(locked(lock, os.O_CREAT, wait=wait))
        except BlockingIOError:
            raise UserError(
                f"'{what}' is being written by another process; {way_out}"
            ) from None
        if not known:
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


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock file, as far as the file system knows."""
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
    _uses.enter_context(locked(_use_of(folder), os.O_CREAT, wait=True, shared=True))


def remove_unused(folder: Path) -> None:
    """Deletes a folder unless a process keeps it in use, or the file system has no
    locks."""
    lock = _use_of(folder)
    # BlockingIOError: it is in use
    with suppress(OSError), locked(lock, os.O_CREAT) as known:
        if known:
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink()  # a process that waits for it makes a new one


def _use_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.used")
