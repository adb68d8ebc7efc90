"""The operating system: whole files, guarded reads, locks, cores, signals, standard
output."""

import csv
import ctypes
import errno
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, TextIO

from dualpath_cli.base.errors import UserError, printable
from dualpath_cli.base.pointers import refuse_pointer

PARTIAL = ".partial"  # the ending of the names of unfinished files and folders
NO_ROOM = 1 << 20
"""Free bytes below which a disk counts as full: an unfinished file still takes its
part."""
MOST_BYTES = 1 << 30
"""Most bytes of a file that is read at once; the largest are tables of long runs."""
FIT = "fit.lock"  # in a run folder, while a fit runs
OURS = ".dualpath"  # marks a folder whose files a command may replace


# Written whole or not at all: beside the name, synced, then renamed


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yields a path beside `path` to write a file to; the file then gets the name
    `path`.

    If the block raises, `path` stays as it was, and the unfinished file is removed. Of
    several writers the last one to finish wins. Unfinished files of killed writers are
    removed, unless `shared`: locks may not hold between machines. A missing folder is
    made. Raises UserError if `path` is a pipe, a socket or a device.
    """
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in () if shared else unfinished(path):
        # which fails where its writer lives
        with suppress(OSError), _locked(left) as known:
            if known:
                left.unlink()
    partial = _new_name(path)
    # Another writer that clears up may hold the new file for a moment, and remove it.
    with naming(path), _locked(partial, os.O_CREAT | os.O_EXCL, wait=True):
        try:
            yield partial
            sync(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def unfinished(path: Path) -> list[Path]:
    """Unfinished files or folders of writers of `path`, killed or still writing."""
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}{re.escape(PARTIAL)}")
    return [one for one in path.parent.iterdir() if pattern.fullmatch(one.name)]


def _new_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def no_link(path: str | Path, flags: int) -> int:
    """os.open that follows no link and does not wait at a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def replacing_folder(path: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a folder beside `path` to fill; the folder then replaces `path`.

    If the block raises, `path` stays as it was, and the unfinished folder is removed.
    The next writer removes the unfinished folder of a killed process. `check` gets the
    old folder just before the end, and raises if it must stay. Raises
    NotADirectoryError if `path` is no folder.
    """
    with alone(path.with_name(f"{path.name}{OURS}.lock"), path), naming(path):
        for left in unfinished(path):
            with suppress(OSError):
                left.rmdir()  # the writer was killed before marking it
            if not left.is_symlink() and (left / OURS).is_file():
                _end_replacing(left, path)
        work = _new_name(path)
        new, before = work / "new", work / "before"
        work.mkdir()
        try:
            (work / OURS).touch()  # without this mark the folder is not removed
            new.mkdir()
            yield new
            for file in (*new.rglob("*"), new):
                sync(file)
            if set_aside(path, before):
                check(before)
            new.rename(path)
        finally:
            _end_replacing(work, path)


def set_aside(folder: Path, place: Path) -> bool:
    """Moves a folder to `place`, so that another can get its name; returns whether
    there was one.

    Raises NotADirectoryError for all else: a file, a pipe, a socket, a device, a link
    to any.
    """
    if folder.is_dir():
        folder.rename(place)
        return True

    if os.path.lexists(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))

    return False


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device, also behind links."""
    return path.exists() and not (path.is_file() or path.is_dir())


def check_replaceable(path: Path) -> None:
    """Raises UserError for a pipe, a socket or a device.

    A rename would put a file in its place: as root, of the machine's /dev/null.
    """
    if is_special(path):
        raise UserError(f"'{path}' is a pipe, a socket or a device; give another name")


def _end_replacing(work: Path, path: Path) -> None:
    """Removes an unfinished folder; gives the old folder its name back."""
    # ended between the two renames
    if (work / "before").exists() and not path.exists():
        (work / "before").rename(path)
    for one in (work / "new", work / "before", work):  # the mark last
        remove(one)


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file or none; makes a missing folder."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def inside(folder: Path, path: Path, way_out: str = "remove the link") -> Path:
    """Returns the path of a folder to write files to, which is below another folder.

    Raises UserError if a link on the way from `folder` to `path` leads out of `folder`:
    a command would replace the files of others there.
    """
    home = os.path.realpath(folder)
    way = [place for place in (path, *path.parents) if place.is_relative_to(folder)]
    for place in reversed(way):
        real = os.path.realpath(place)
        if not Path(real).is_relative_to(home):
            raise UserError(
                f"'{place}' is a link to '{real}', outside of '{folder}', and nothing "
                f"is written there; {way_out}"
            )
    return path


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds a new, empty or marked folder while the block writes files into it.

    Raises UserError for any other folder, for one with a link to a folder outside of
    it, and if another process holds the folder. The ranks of a command share it: the
    first one holds it, and each sets the mark before any other file.
    """
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    mark = folder / OURS
    if held and not mark.exists():
        raise UserError(
            f"--out '{folder}' holds '{held[0]}' and is not marked as written by "
            f"dualpath: give a new or empty folder, or `touch {mark}` if its files may "
            "be replaced"
        )
    for path in folder.rglob("*"):
        if path.is_dir():
            inside(folder, path)
    folder.mkdir(parents=True, exist_ok=True)
    # each rank may have a folder of its own
    os.close(no_link(mark, os.O_RDWR | os.O_CREAT))
    first = is_first_rank() and os.environ.get("NODE_RANK", "0") == "0"
    with alone(mark, folder, keep=True) if first else nullcontext():
        yield


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes text files into a folder, by their names; returns their paths."""
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Deletes a file, a link or a whole folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns a failure of the disk inside the block into an OSError that names `path`.

    Libraries that tidy up after a full disk raise other errors; torch does not mention
    the disk.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except UserError:
        raise
    except Exception as error:
        number = _failure_of_disk(error, path)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _failure_of_disk(error: BaseException, path: Path) -> int | None:
    """The system's error number of a failure of the disk; None for other failures."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EIO,
        ):
            return cause.errno
        cause = cause.__context__
    return errno.ENOSPC if shutil.disk_usage(path.parent).free < NO_ROOM else None


# One process at a time


_held: set[int] = set()  # descriptors of locks; a forked process closes its copies


_uses = ExitStack()  # locks that end with this process


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def _locked(
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
            known = held.enter_context(_locked(lock, os.O_CREAT, wait=wait))
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
        with _locked(lock):
            return False
    except OSError as error:
        return isinstance(error, BlockingIOError)


@cache
def keep_in_use(folder: Path) -> None:
    """Protects a folder from `remove_unused`, in any process, until this process ends.

    The folder need not exist yet. The lock lies beside the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _uses.enter_context(_locked(_use_of(folder), os.O_CREAT, wait=True, shared=True))


def remove_unused(folder: Path) -> None:
    """Deletes a folder unless a process keeps it in use, or the file system has no
    locks."""
    lock = _use_of(folder)
    # BlockingIOError: it is in use
    with suppress(OSError), _locked(lock, os.O_CREAT) as known:
        if known:
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink()  # a process that waits for it makes a new one


def _use_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.used")


# Reading files of unknown origin


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that is open for reading, also through links.

    Raises OSError for a missing file, and for pipes and devices, which may never end;
    StandIn for a pointer of Git LFS or git-annex.
    """
    refuse_pointer(path)
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, no file", str(path))
        yield file


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError for a pipe, and for more than
    `MOST_BYTES`."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return content


def read_text(path: Path, way_out: str = "") -> str:
    """The text of a file, unchanged. Raises UserError, ending with `way_out`, for no
    text file."""
    try:
        return read_bytes(path).decode()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError as error:
        reason = str(error)
    raise _unreadable(path, reason, way_out)


def read_json(path: Path, way_out: str = "") -> dict[str, Any]:
    """The JSON object in a file, read as by `read_text`."""
    text = read_text(path, way_out)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"no JSON: {error}", way_out) from None
    if not isinstance(content, dict):
        raise _unreadable(path, "no JSON object", way_out)
    return content


def _unreadable(path: Path, reason: str | None, way_out: str) -> UserError:
    return UserError(
        f"{path} cannot be read ({reason})" + (f"; {way_out}" if way_out else "")
    )


# Tables


def format_csv(
    records: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    header: bool = True,
) -> str:
    """Returns records as CSV text, None as nothing.

    `columns` are by default the keys of the first record. Other keys are left out, and
    missing ones stay empty.
    """
    text = io.StringIO()
    names = list(records[0]) if columns is None else columns
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with None for nan: null in JSON, empty in CSV."""
    return {key: None if value != value else value for key, value in record.items()}


# Cores, GPUs, and how processes end each other

_PARENT = "DUALPATH_PARENT"  # the process that a child must not outlive
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def cores() -> int:
    """Number of cores that this process may use: SLURM and taskset give a part of the
    machine."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def visible_gpus() -> int | None:
    """Number of GPUs that CUDA's driver shows to this process; None if unknown."""
    if Path("/dev/kfd").exists():  # AMD's GPUs, which only ROCm counts
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


STOPPING = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
    if hasattr(signal, name)
]
"""Signals that a training ends by at the end of a step."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: finished work is kept, its
    processes end."""


@contextmanager
def ended_by_signals() -> Iterator[list[KeyboardInterrupt]]:
    """Makes SIGTERM raise Terminated inside the block.

    Yields the exceptions raised for SIGTERM and Ctrl-C: a library may turn one into
    another.
    """
    came: list[KeyboardInterrupt] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        # once: a parent of several threads sends one for each
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
        raise came[-1]

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    in_main = threading.current_thread() is threading.main_thread()
    # Handlers that others have set stay.
    taken = [
        n for n, before in usual.items() if in_main and signal.getsignal(n) is before
    ]
    try:
        for number in taken:
            signal.signal(number, end)
        yield came
    finally:
        for number in taken:
            signal.signal(number, usual[number])  # type: ignore[arg-type]


@contextmanager
def of_children() -> Iterator[None]:
    """Commands that are started inside the block end with this process."""
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[_PARENT]


def end_with_parent() -> None:
    """Sends this process SIGTERM when the parent that started it by `of_children` ends.

    Raises Terminated if the parent has ended by now.
    """
    parent = os.environ.pop(_PARENT, None)  # children of this process do not inherit it
    if parent is None or not parent.isdecimal() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    # the parent has ended, and another process took its place
    if os.getppid() != int(parent):
        raise Terminated


# Standard output: unprintable characters, a reader that leaves, one process of many


def escape_unprintable() -> None:
    """Escapes characters that the output's encoding lacks; a closed output goes
    nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as we live
    if sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Prints a line, on stderr by default; a terminal gets it `printable`, a file as it
    is."""
    stream = stream or sys.stderr
    on_terminal = stream is not None and stream.isatty()
    print(printable(text) if on_terminal else text, end=end, file=stream, flush=True)


def is_first_rank() -> bool:
    """Whether this process is the first of all, by torchrun, SLURM or Lightning."""
    return all(
        os.environ.get(n, "0") == "0" for n in ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    )


def to_nobody(stream: TextIO) -> None:
    """Sends the rest of a stream, whose reader has left, nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
