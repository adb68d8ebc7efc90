"""The folder that an unfinished preparation is kept in, so that it can be continued."""

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError
from dualpath_cli.files import alone, remove, sync, write_text

_REQUEST = "request.json"


class WorkFolder:
    """A folder that only one preparation uses at a time; a context manager.

    The lock goes with the process, however that ends, and what it made stays for the next one.
    """

    def __init__(self, path: Path, content: dict[str, Any], overwrite: bool) -> None:
        """`content` identifies the preparation; files made for another are not used.

        Entering raises UserError where another process uses the folder, and where it holds the
        work on another content and may not be overwritten.
        """
        self.path = path
        self._content = content
        self._overwrite = overwrite

    def __enter__(self) -> "WorkFolder":
        with ExitStack() as stack:
            self._make(self.path.parent)  # of the lock
            stack.enter_context(alone(_lock(self.path), self.path))
            self._make(self.path)
            self._claim()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def remove(self) -> None:
        """Deletes the folder, the note of its content last: a part of it is still recognised."""
        for path in self.path.iterdir():
            if path.name != _REQUEST:
                remove(path)
        remove(self.path)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(
                f"'{self.path}' cannot be made a folder: a file is in its way; choose another "
                "--out or move the file"
            ) from None

    def _claim(self) -> None:
        note = self.path / _REQUEST
        before = json.loads(note.read_text()) if note.exists() else None
        if before == self._content:
            return
        held = [path for path in self.path.iterdir() if path.name != f"{_REQUEST}.partial"]
        if held and before is None:
            raise UserError(
                f"'{self.path}' is wanted for unfinished work and holds something else; move it"
            )
        if before is not None and not self._overwrite:
            raise UserError(
                f"'{self.path}' holds an unfinished preparation of something else "
                f"({_difference(before, self._content)}); finish it with the settings it was begun "
                "with, or discard it with --overwrite"
            )
        for path in held:
            if path != note:
                remove(path)
        write_text(note, json.dumps(self._content, indent=1))


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Returns what differs first, as KEY BEFORE instead of NOW."""
    old = {**before, **before.get("settings", {})}
    new = {**now, **now.get("settings", {})}
    for key in new:
        if key != "settings" and old.get(key) != new[key]:
            if isinstance(new[key], str | int | float | None):
                return f"{key}: {old.get(key)} then, {new[key]} now"
            return f"other {key}"
    return "other settings"


def replace(folder: Path, out: Path) -> None:
    """Gives a finished folder its name; a folder cannot be replaced in one step as a file can."""
    old = _replaced(out)
    if out.exists():
        remove(old)
        out.rename(old)
    folder.rename(out)
    sync(out.parent)
    remove(old)


def remove_leftovers(path: Path, out: Path, content: dict[str, Any]) -> None:
    """Deletes what a preparation left that was killed after its folder got its name."""
    with suppress(OSError):
        path.rmdir()  # it was killed just before doing so: nothing is in it
    note = path / _REQUEST
    if note.exists() and json.loads(note.read_text()) == content:
        # Under its lock: the preparation may be about to do the same.
        with suppress(UserError), WorkFolder(path, content, overwrite=False) as work:
            remove(_replaced(out))
            work.remove()
    elif _lock(path).exists():
        with suppress(UserError, OSError), alone(_lock(path), path):
            pass  # which removes it


def _lock(path: Path) -> Path:
    """Beside the folder, which comes and goes under it."""
    return path.with_name(f"{path.name}.lock")


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")
