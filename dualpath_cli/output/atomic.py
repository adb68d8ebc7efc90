"""Files that are whole or not there: written beside their name, synced, then renamed."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"
"""What the names of unfinished files end in."""


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yields a path beside `path` to write a file to, which then gets the name `path`.

    The folder is made where it is missing. Where the block raises, `path` stays as it was and the
    unfinished file is removed. `shared`: other threads and processes may write the same file at
    the same time, so each has an unfinished one of its own; the last one to finish wins.
    """
    writer = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    partial = path.with_name(f"{path.name}{writer}{PARTIAL}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    except OSError as error:
        if error.filename is None:  # as of a disk that is full
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a whole text file or none; its folder is made where it is missing."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


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
