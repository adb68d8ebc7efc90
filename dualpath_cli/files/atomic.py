"""Files that are whole or not there: written beside their name, synced, then renamed."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from dualpath_cli.errors import UserError

PARTIAL = ".partial"
"""The ending of the names of unfinished files."""
NO_ROOM = 1 << 20
"""Bytes: a disk with less is full, while the file that was too much for it is still there."""


@contextmanager
def replacing(path: Path, *, shared: bool = False, new_folder: bool = True) -> Iterator[Path]:
    """Yields a path beside `path` to write a file to, which then gets the name `path`.

    The folder is made where it is missing, if `new_folder`. Where the block raises, `path` stays as
    it was and the unfinished file is removed. `shared`: others, also on other machines, may write
    the same file at the same time, so each has a separate unfinished one; the last one to finish
    wins.
    """
    writer = f".{uuid4().hex}" if shared else ""
    partial = path.with_name(f"{path.name}{writer}{PARTIAL}")
    if new_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(path):
            yield partial
            sync(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names `path` in what the block raises where the disk fails it, as an OSError.

    Libraries that tidy up after a full disk raise something else; torch says nothing of the disk.
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
    """The number of the system's error that caused an exception, where it is known."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return cause.errno
        cause = cause.__context__
    return errno.ENOSPC if shutil.disk_usage(path.parent).free < NO_ROOM else None


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file or none; its folder is made where it is missing."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes whole text files into a folder, by their names; returns their paths."""
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def remove(path: Path) -> None:
    """Deletes a file, a link, or a folder with all that is in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
