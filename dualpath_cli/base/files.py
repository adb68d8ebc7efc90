"""Whole files: written under another name, synced, renamed; read with guards."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.locks import locked
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.base.ranges import check_path

PARTIAL = ".partial"  # the ending of the names of unfinished files and folders

FULL_BELOW_BYTES = 1 << 20
"""Free bytes below which a disk counts as full: an unfinished file still takes its
part."""

MOST_BYTES = 1 << 30
"""Most bytes of a file that is read at once; the largest are tables of long runs."""

_DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def path_of(option: str, text: str) -> Path:
    """Returns the path of a text. Raises UserError unless the text can be a path
    here."""
    try:
        check_path(option, text)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Path(text)


def near_sibling(path: Path) -> str:
    """Suggests a file or folder beside a missing path, for the end of a message; empty
    without one."""
    if not path.parent.is_dir():
        return ""
    return did_you_mean(path.name, (near.name for near in path.parent.iterdir()))


def folder_of(option: str, text: str | Path) -> Path:
    """A folder that exists or can be made. Raises UserError where a file is in the
    way."""
    folder = path_of(option, str(text))
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{option} '{folder}': '{existing}' is a file; give a folder")
    return folder


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yields a path beside `path` to write to; the written file then replaces `path`.

    If the block raises, `path` stays as it was, and the unfinished file is removed. Of
    several writers the last one to finish wins. Unfinished files of killed writers are
    removed, unless `shared`: locks may not hold between machines. A missing folder is
    made. Raises UserError if `path` is a pipe, a socket or a device.
    """
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)

    if not shared:
        for left in find_unfinished(path):
            # A writer that is alive holds the lock of its file.
            with suppress(OSError), locked(left) as has_locks:
                if has_locks:
                    left.unlink()

    partial = unfinished_name(path)
    # Another writer that clears up may hold the new file for a moment, and remove it.
    own_file = locked(partial, os.O_CREAT | os.O_EXCL, wait=True)
    with naming_disk_errors(path), own_file:
        try:
            yield partial
            sync(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


class _NothingToWrite(Exception):
    """Ends a block of `replacing` without a file."""


def check_can_write(path: Path) -> None:
    """Raises what `replacing` would for a path that cannot be written; writes
    nothing."""
    with suppress(_NothingToWrite), replacing(path):
        raise _NothingToWrite


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device, also behind links."""
    return path.exists() and not (path.is_file() or path.is_dir())


def check_replaceable(path: Path) -> None:
    """Raises UserError for a pipe, a socket or a device.

    A rename would put a file in its place: as root, of the machine's /dev/null.
    """
    if is_special(path):
        raise UserError(f"'{path}' is a pipe, a socket or a device; give another name")


def unfinished_name(path: Path) -> Path:
    """A new name beside `path`, for the file or folder that will replace it."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def find_unfinished(path: Path) -> list[Path]:
    """Unfinished files or folders of writers of `path`, killed or still writing."""
    pattern = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{16}}{re.escape(PARTIAL)}")
    return [near for near in path.parent.iterdir() if pattern.fullmatch(near.name)]


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file or none; makes a missing folder."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes text files into a folder, by their names; returns their paths.

    A file whose text is empty is removed: it would be of an earlier call.
    """
    written = []
    for name, text in texts.items():
        path = folder / name
        if text:
            write_text(path, text)
            written.append(path)
        else:
            path.unlink(missing_ok=True)
    return written


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
def naming_disk_errors(path: Path) -> Iterator[None]:
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
        number = _disk_failure(error, path)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _disk_failure(error: BaseException, path: Path) -> int | None:
    """The system's error number of a failure of the disk; None for other failures."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK_FAILURES:
            return cause.errno
        cause = cause.__context__

    is_full = shutil.disk_usage(path.parent).free < FULL_BELOW_BYTES
    return errno.ENOSPC if is_full else None


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that is open for reading, also through links.

    Raises OSError for a missing file, and for pipes and devices, which may never end;
    StandIn for a pointer of Git LFS or git-annex.
    """
    refuse_pointer(path)

    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(
                errno.EINVAL, "it is a pipe or a device, not a file", str(path)
            )

        yield file


def _open_without_waiting(name: str, flags: int) -> int:
    # Without O_NONBLOCK, open waits at a pipe until somebody writes to it.
    return os.open(name, flags | os.O_NONBLOCK)


def hash_file(path: Path, read: Callable[[int], object] = lambda count: None) -> str:
    """The sha256 of a file in hexadecimal digits; `read` gets the number of bytes just
    read."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while content := file.read(1 << 22):
            digest.update(content)
            read(len(content))
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises OSError for a pipe, and for more than `MOST_BYTES`.
    """
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)

    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return content


def read_text(path: Path, way_out: str = "") -> str:
    """The text of a file, unchanged.

    Raises UserError, ending with `way_out`, if it cannot be read or is not UTF-8.
    """
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
        raise _unreadable(path, f"not JSON: {error}", way_out) from None

    if not isinstance(content, dict):
        raise _unreadable(path, "not a JSON object", way_out)
    return content


def _unreadable(path: Path, reason: str | None, way_out: str) -> UserError:
    message = f"{path} cannot be read ({reason})"
    return UserError(f"{message}; {way_out}" if way_out else message)
