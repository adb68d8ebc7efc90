"""Whole files and folders: written under another name, synced, then renamed; read with
guards."""

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.locks import alone, locked, no_link
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.base.ranges import check_path

PARTIAL = ".partial"  # the ending of the names of unfinished files and folders


NO_ROOM = 1 << 20
"""Free bytes below which a disk counts as full: an unfinished file still takes its
part."""


MOST_BYTES = 1 << 30
"""Most bytes of a file that is read at once; the largest are tables of long runs."""


OURS = ".dualpath"  # marks a folder whose files a command may replace


def path_of(option: str, text: str) -> Path:
    """Returns the path of a text. Raises UserError unless the text can be a path
    here."""
    try:
        check_path(option, text)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Path(text)


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
        with suppress(OSError), locked(left) as known:
            if known:
                left.unlink()
    partial = _new_name(path)
    # Another writer that clears up may hold the new file for a moment, and remove it.
    with naming(path), locked(partial, os.O_CREAT | os.O_EXCL, wait=True):
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


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes text files into a folder, by their names; returns their paths."""
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


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
