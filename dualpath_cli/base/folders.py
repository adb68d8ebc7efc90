"""Folders that a command owns: filled by one process, replaced as a whole, marked."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import (
    find_unfinished,
    naming_disk_errors,
    remove,
    sync,
    unfinished_name,
)
from dualpath_cli.base.locks import exclusive, open_without_links
from dualpath_cli.base.processes import is_first_rank

OURS = ".dualpath"  # marks a folder whose files a command may replace


@contextmanager
def replacing_folder(path: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a folder beside `path` to fill; the folder then replaces `path`.

    If the block raises, `path` stays as it was, and the unfinished folder is removed.
    The next writer removes the unfinished folder of a killed process. `check` gets the
    old folder just before the end, and raises if it must stay. Raises
    NotADirectoryError if `path` is not a folder.
    """
    lock = path.with_name(f"{path.name}{OURS}.lock")
    with exclusive(lock, path), naming_disk_errors(path):
        _end_killed_writers(path)

        work = unfinished_name(path)
        new = work / "new"
        before = work / "before"
        work.mkdir()
        try:
            (work / OURS).touch()  # without this mark the folder is not removed
            new.mkdir()
            yield new

            for file in (*new.rglob("*"), new):
                sync(file)

            # A folder cannot be replaced in one step, as a file can.
            if set_aside(path, before):
                check(before)
            new.rename(path)
        finally:
            _end_replacing(work, path)


def _end_killed_writers(path: Path) -> None:
    for left in find_unfinished(path):
        with suppress(OSError):
            left.rmdir()  # the writer was killed before marking it
        if not left.is_symlink() and (left / OURS).is_file():
            _end_replacing(left, path)


def _end_replacing(work: Path, path: Path) -> None:
    """Removes an unfinished folder; gives the old folder its name back."""
    before = work / "before"
    ended_between_renames = before.exists() and not path.exists()
    if ended_between_renames:
        before.rename(path)

    # The mark goes last: without it the rest would stay.
    for place in (work / "new", before, work):
        remove(place)


def set_aside(folder: Path, place: Path) -> bool:
    """Moves a folder to `place`; returns whether there was one.

    Another folder can then get its name. Raises NotADirectoryError for all else: a
    file, a pipe, a socket, a device, a link to any.
    """
    if folder.is_dir():
        folder.rename(place)
        return True

    if os.path.lexists(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))

    return False


def check_inside(folder: Path, path: Path, way_out: str = "remove the link") -> Path:
    """Returns `path`, a place to write to, which is below `folder`.

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


def folder_inside(home: Path, *names: str) -> Path:
    """The folder below `home` that a command writes to without --out.

    Raises UserError as `check_inside` does.
    """
    way_out = "remove the link, or give a folder by --out"
    return check_inside(home, home.joinpath(*names), way_out)


@contextmanager
def claimed_folder(folder: Path) -> Iterator[None]:
    """Claims a new, empty or marked folder while the block writes files into it.

    Raises UserError for any other folder, for one with a link to a folder outside of
    it, and if another process writes to the folder. The ranks of a command share it:
    the first one has the lock, and each sets the mark before any other file.
    """
    mark = folder / OURS
    _check_is_ours(folder, mark)
    folder.mkdir(parents=True, exist_ok=True)

    # Each rank sets the mark, as each may have a folder of its own.
    os.close(open_without_links(mark, os.O_RDWR | os.O_CREAT))

    with exclusive(mark, folder, keep=True) if is_first_rank() else nullcontext():
        yield


def _check_is_ours(folder: Path, mark: Path) -> None:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and not mark.exists():
        raise UserError(
            f"--out '{folder}' holds '{names[0]}' and is not marked as written by "
            f"dualpath: give a new or empty folder, or `touch {mark}` if its files may "
            "be replaced"
        )

    for path in folder.rglob("*"):
        if path.is_dir():
            check_inside(folder, path)
