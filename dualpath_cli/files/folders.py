"""Folders that are whole or not there: filled beside their name, synced, then renamed."""

import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from dualpath_cli.files.atomic import PARTIAL, naming, remove, sync

REPLACED = ".replaced"
"""Stands in the name of a folder that is put aside for the moment of a rename."""


@contextmanager
def replacing_folder(path: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a folder beside `path` to fill, which then takes the place of `path` with all in it.

    Where the block raises, `path` stays as it was and the unfinished folder is removed. Those that
    killed processes left beside are removed, too: a living one holds its own by a lock (flock).
    `check` raises where the folder that is to be replaced must stay: it may have got more since.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    with naming(path), _unfinished(path) as partial:
        before = partial.with_name(partial.name.removesuffix(PARTIAL) + REPLACED + PARTIAL)
        try:
            yield partial
            for file in (*partial.rglob("*"), partial):
                sync(file)
            if path.exists():
                path.rename(before)
                check(before)
            partial.rename(path)
            remove(before)
            _clear(path, REPLACED)
        finally:
            if not path.exists() and before.exists():
                before.rename(path)
            remove(partial)


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A new folder with a unique name, held as long as the block runs."""
    while True:
        partial = path.with_name(f"{path.name}.{uuid4().hex}{PARTIAL}")
        partial.mkdir()
        with _held(partial, fcntl.LOCK_EX):
            if partial.exists():  # it was not cleared away before it was held
                yield partial
                return


def _clear(path: Path, kind: str = "") -> None:
    """Removes unfinished folders for `path` that no process holds any more."""
    for left in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 32}{kind}{PARTIAL}"):
        with _held(left, fcntl.LOCK_EX | fcntl.LOCK_NB) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _held(folder: Path, how: int) -> Iterator[bool]:
    """Locks a folder, if it is one, no other process has it, and its file system knows locks."""
    descriptor, locked = None, False
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, how)
        locked = True
    try:
        yield locked
    finally:
        if descriptor is not None:
            os.close(descriptor)
