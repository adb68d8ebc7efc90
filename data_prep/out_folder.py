"""The data folder: made in another one that can be continued, renamed when whole."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import (
    find_unfinished,
    is_special,
    read_json,
    remove,
    sync,
    write_text,
)
from dualpath_cli.base.folders import OURS, set_aside
from dualpath_cli.base.locks import exclusive
from dualpath_cli.base.output import say

_REQUEST = "request.json"  # the note of a work folder's content
_REPLACED = "replaced"  # the data folder that was replaced


@contextmanager
def work_folder(out: Path, content: dict[str, Any], overwrite: bool) -> Iterator[Path]:
    """Yields OUT.partial, which one process uses at a time.

    `content` identifies the preparation; files of another content are not used.
    """
    work = _partial(out)
    with exclusive(_lock(work), work):
        work.mkdir(exist_ok=True)
        _claim(work, out, content, overwrite)
        yield work


def bytes_made(out: Path) -> int:
    """Bytes that an unfinished preparation of OUT has on the disk."""
    made = 0
    for folder, _, names in os.walk(_partial(out.resolve())):
        for name in names:
            # Another process may be at work there.
            with suppress(OSError):
                made += os.path.getsize(os.path.join(folder, name))
    return made


def publish(folder: Path, work: Path, out: Path) -> None:
    """Syncs a finished folder of synced files, and gives it its name.

    A previous OUT moves into the work folder.
    """
    sync(folder)
    remove(work / _REPLACED)
    # a folder cannot be replaced in one step as a file can
    set_aside(out, work / _REPLACED)
    folder.rename(out)
    sync(out.parent)


def discard(work: Path) -> None:
    """Deletes a work folder, last the note by which a part of it is recognised."""
    for path in work.iterdir():
        if path.name != _REQUEST:
            remove(path)
    remove(work)


def _claim(work: Path, out: Path, content: dict[str, Any], overwrite: bool) -> None:
    """Prepares a work folder for a content: continues, or removes other work.

    Raises UserError for files of others, and for other work without `overwrite`.
    """
    note = work / _REQUEST
    before = _noted_content(work)
    files = set(work.iterdir()) - set(find_unfinished(note))
    is_ours = before is not None and before.keys() == content.keys()
    if files and not is_ours:
        raise UserError(
            f"'{work}' is the place of unfinished work, but holds something else; "
            "move that away"
        )

    replaced = work / _REPLACED
    if replaced.exists() and not out.exists():
        replaced.rename(out)  # it was killed between the two renames

    if before == content:
        # A pipe or a device counts as damage: the file of this name is made again.
        for path in work.rglob("*"):
            if is_special(path):
                path.unlink()
        return

    if before is not None and not overwrite:
        raise UserError(
            f"'{work}' holds an unfinished preparation of other data "
            f"({_difference(before, content)}); finish it as it was begun, or "
            "discard it with --overwrite"
        )

    others = files - {note}
    if others:
        say_removing(work)
    for path in others:
        remove(path)
    write_text(note, json.dumps(content, indent=1))


def say_removing(work: Path) -> None:
    """Says that work is discarded, and why the command is busy: many pieces take
    minutes."""
    say(f"removing the unfinished work in '{work}'")


def _noted_content(path: Path) -> dict[str, Any] | None:
    """The content of the preparation that a folder is of; None without a note."""
    with suppress(UserError):
        return read_json(path / _REQUEST)
    return None


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Returns the first setting that differs, or else what was read and has changed."""
    old = _leaves(before)
    new = _leaves(now)
    key = next(key for key in old | new if old.get(key) != new.get(key))

    kind, _, name = key.partition(".")
    changed = {
        "files": f"the files of '{name}' have changed",
        "tokenizer": "the tokenizer has changed",
        "contamination": "the texts of --decontaminate have changed",
        "pipeline": "another version of dualpath began it",
    }
    if kind in changed:
        return changed[kind]
    return f"{name or kind}: {old.get(key)!s:.60} then, {new.get(key)!s:.60} now"


def _leaves(content: dict[str, Any] | list[Any], above: str = "") -> dict[str, Any]:
    """The single values of nested mappings and lists, by their joined keys."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    leaves: dict[str, Any] = {}
    for key, value in pairs:
        name = f"{above}{key}"
        if isinstance(value, dict | list):
            leaves |= _leaves(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


def remove_leftovers(out: Path, content: dict[str, Any]) -> None:
    """Deletes what a preparation left that was killed after the last rename."""
    work = _partial(out)
    with suppress(OSError):
        work.rmdir()  # left empty: it was killed just before

    # Under its lock, and the lock with it: the preparation may be about to do the same.
    with suppress(UserError, OSError), exclusive(_lock(work), work):
        if _noted_content(work) == content:
            say_removing(work)
            discard(work)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _lock(work: Path) -> Path:
    return work.with_name(f"{work.name}{OURS}.lock")
