"""The data folder: made in another one that can be continued, renamed when whole, and uploaded."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import OURS, alone, read_json, remove, sync, unfinished, write_text
from dualpath_cli.data import storage
from dualpath_cli.data.manifest import INDEX, MANIFEST, Manifest
from dualpath_cli.data.tokenizer import TOKENIZER

_REQUEST, _REPLACED = "request.json", "replaced"


@contextmanager
def work_folder(out: Path, content: dict[str, Any], overwrite: bool) -> Iterator[Path]:
    """Yields OUT.partial, which one process uses at a time.

    `content` identifies the preparation; files of another content are not used.
    """
    work = _partial(out)
    with alone(_lock(work), work):
        work.mkdir(exist_ok=True)
        _claim(work, out, content, overwrite)
        yield work


def publish(folder: Path, work: Path, out: Path) -> None:
    """Gives a finished folder its name; a previous OUT moves into the work folder."""
    if out.exists():  # a folder cannot be replaced in one step as a file can
        remove(work / _REPLACED)
        out.rename(work / _REPLACED)
    folder.rename(out)
    sync(out.parent)


def discard(work: Path) -> None:
    """Deletes a work folder, last the note of its content, by which a part is recognised."""
    for path in work.iterdir():
        if path.name != _REQUEST:
            remove(path)
    remove(work)


def _claim(work: Path, out: Path, content: dict[str, Any], overwrite: bool) -> None:
    note = work / _REQUEST
    before = _noted(work)
    held = set(work.iterdir()) - set(unfinished(note))
    if held and (before is None or before.keys() != content.keys()):
        raise UserError(f"'{work}' is wanted for unfinished work and holds something else; move it")
    if (old := work / _REPLACED).exists() and not out.exists():
        old.rename(out)  # it was killed between the two renames
    if before == content:
        return
    if before is not None and not overwrite:
        raise UserError(
            f"'{work}' holds an unfinished preparation of something else "
            f"({_difference(before, content)}); finish it with the settings it was begun with, or "
            "discard it with --overwrite"
        )
    for path in held:
        if path != note:
            remove(path)
    write_text(note, json.dumps(content, indent=1))


def _noted(path: Path) -> dict[str, Any] | None:
    """The content of the preparation that a folder is of; None for another file of that name."""
    with suppress(UserError):
        return read_json(path / _REQUEST)
    return None


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Returns the first setting that differs."""
    old, new = ({**content, **content["settings"]} for content in (before, now))
    for key in new:
        if key != "settings" and old.get(key) != new[key]:
            return f"{key}: {old.get(key)!s:.60} then, {new[key]!s:.60} now"
    return "other settings"


def remove_leftovers(out: Path, content: dict[str, Any]) -> None:
    """Deletes the leftovers of a preparation that was killed after its folder got its name."""
    work = _partial(out)
    with suppress(OSError):
        work.rmdir()  # left empty: it was killed just before
    # Under its lock, and the lock with it: the preparation may be about to do the same.
    with suppress(UserError, OSError), alone(_lock(work), work):
        if _noted(work) == content:
            discard(work)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _lock(work: Path) -> Path:
    return work.with_name(f"{work.name}{OURS}.lock")


LAST = (INDEX, TOKENIZER, MANIFEST)  # files that are uploaded last, in this order


def finished_remote(url: str) -> Manifest | None:
    """Returns the manifest of a complete data folder at s3://bucket/prefix; None without one."""
    if not storage.exists(f"{url}/{MANIFEST}"):
        return None
    manifest = Manifest.read(url)
    manifest.check_sizes(url)
    return manifest


def upload(
    folder: Path, url: str, on_bytes: Callable[[int], None], *, overwrite: bool = False
) -> None:
    """Uploads every file of a finished data folder, except those that are there already.

    `on_bytes` gets the size of each file that is there. Objects that no manifest there ever named
    are left alone.
    """
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    local = storage.sizes(folder)
    remote = _make_room(manifest, url, local, storage.sizes(url), overwrite)
    known = {chunk.name: chunk.sha256 for chunk in manifest.chunks}
    others = sorted(local.keys() - known.keys() - set(LAST))
    for name in (*known, *others, *LAST):
        path, target = folder / name, f"{url}/{name}"
        sha256 = known.get(name) or storage.sha256_of(path)
        same_size = remote.get(name) == local[name]
        if not same_size or storage.uploaded_sha256(target) != sha256:
            if name in known and storage.sha256_of(path) != sha256:
                raise UserError(
                    f"{path}: changed since it was prepared (its sha256 differs); prepare it again "
                    "with `dualpath prepare ... --overwrite`"
                )
            storage.upload(path, target, sha256)
        on_bytes(local[name])


def _make_room(
    manifest: Manifest, url: str, local: dict[str, int], remote: dict[str, int], overwrite: bool
) -> dict[str, int]:
    """Deletes objects of other data, if that is allowed, and returns the remaining ones."""
    before = None
    with suppress(UserError) if overwrite else nullcontext():
        before = Manifest.read(url) if MANIFEST in remote else None
    if before == manifest:
        return remote
    if before is not None and before.fingerprint != manifest.fingerprint and not overwrite:
        raise UserError(
            f"'{url}' holds other data ({before.summary}); choose another prefix or add --overwrite"
        )
    # The objects of a killed upload of these data are all equal to files here.
    strangers = sorted(name for name, _ in remote.items() - local.items())
    if MANIFEST not in remote and strangers and not overwrite:
        raise UserError(
            f"'{url}' holds '{strangers[0]}', which does not belong to these data, and no "
            f"{MANIFEST}; choose another prefix or add --overwrite"
        )
    stale = {name for name in remote if name.startswith("chunk-") and name.endswith(".bin")}
    stale |= {file.name for file in before.beside} if before else set()
    stale &= remote.keys() - local.keys()
    # The manifest goes first, alone: without it the rest is not taken for data.
    if MANIFEST in remote:
        storage.delete([f"{url}/{MANIFEST}"])
    storage.delete(f"{url}/{name}" for name in sorted(stale))
    return {name: size for name, size in remote.items() if name not in stale | {MANIFEST}}
