"""The folder that an unfinished preparation is kept in, so that it can be continued."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from dualpath_cli.atomic import sync, write_text
from dualpath_cli.errors import UserError

_REQUEST = "request.json"


class WorkFolder:
    """A folder that only one preparation uses at a time; a context manager.

    The lock goes with the process, however that ends, and what it made stays for the next one.
    """

    def __init__(self, path: Path, content: dict[str, Any], overwrite: bool) -> None:
        """`content` is what is prepared; nothing that was made for another content is used.

        Entering raises UserError where another process uses the folder, and where it holds the
        work on another content and may not be overwritten.
        """
        self.path = path
        self._content = content
        self._overwrite = overwrite

    def __enter__(self) -> "WorkFolder":
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another preparation is writing '{self.path}'; wait for it to end"
                ) from None
            self._claim()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def remove(self) -> None:
        """Deletes the folder, the note of its content last: a part of it is still recognised."""
        for path in self.path.iterdir():
            if path.name != _REQUEST:
                _delete(path)
        shutil.rmtree(self.path)

    def _claim(self) -> None:
        note = self.path / _REQUEST
        before = json.loads(note.read_text()) if note.exists() else None
        if before == self._content:
            return
        if any(self.path.iterdir()) and not self._overwrite:
            what = f" ({_difference(before, self._content)})" if before else ""
            raise UserError(
                f"'{self.path}' holds an unfinished preparation of something else{what}; finish "
                "it with the settings it was begun with, or discard it with --overwrite"
            )
        for path in self.path.iterdir():
            _delete(path)
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


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace(folder: Path, out: Path) -> None:
    """Gives a finished folder its name; a folder cannot be replaced in one step as a file can."""
    old = out.with_name(f".{out.name}.replaced")
    if out.exists():
        if old.exists():
            shutil.rmtree(old)
        out.rename(old)
    folder.rename(out)
    sync(out.parent)
    if old.exists():
        shutil.rmtree(old)


def remove_leftover(path: Path, content: dict[str, Any]) -> None:
    """Deletes what was left of a preparation that was killed after its folder got its name."""
    note = path / _REQUEST
    if note.exists() and json.loads(note.read_text()) == content:
        shutil.rmtree(path)
