"""The files of a checkpoint, what they must hold, and which checkpoints are whole. Torch-free.

Beside the checkpoints, `manifests/step-N.json` holds the size and the sha256 of each file of
`step-N`, which is a file or a folder of shards.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, of_content
from dualpath_cli.files import open_regular, read_json, write_text

Files = dict[str, dict[str, Any]]
"""By name inside the checkpoint, empty for one that is a file: `bytes` and `sha256`."""


def manifest_of(checkpoint: Path) -> Path:
    return checkpoint.parent / "manifests" / f"{checkpoint.name}.json"


def files_of(checkpoint: Path) -> list[Path]:
    if not checkpoint.is_dir():
        return [checkpoint]
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def describe(checkpoint: Path, paths: Iterable[Path]) -> Files:
    """Sizes and hashes of some of a checkpoint's files."""
    return {
        _name(checkpoint, path): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in paths
    }


def write_manifest(checkpoint: Path, files: Files, facts: dict[str, Any]) -> None:
    """Writes the list of a checkpoint's files, and the facts of the run that wrote it."""
    text = json.dumps({"files": dict(sorted(files.items())), "run": facts}, indent=2)
    write_text(manifest_of(checkpoint), text + "\n")


def facts_of(checkpoint: Path) -> dict[str, Any] | None:
    """The facts of the run that wrote a checkpoint; None where its manifest has none."""
    try:
        facts = read_json(manifest_of(checkpoint)).get("run")
    except UserError:
        return None
    return facts if facts and isinstance(facts, dict) else None


def rows_of(checkpoint: Path) -> dict[str, int]:
    """The number of rows of the run's tables, by name, where the checkpoint's facts have it."""
    rows = (facts_of(checkpoint) or {}).get("rows")
    return {k: n for k, n in rows.items() if type(n) is int} if isinstance(rows, dict) else {}


def fault_of(checkpoint: Path) -> str | None:
    """The fault of a checkpoint as far as names and sizes tell; None if there is none."""
    try:
        files = _read_manifest(checkpoint)
    except ValueError as error:
        return str(error)
    for path in (checkpoint, *checkpoint.rglob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            return f"{_name(checkpoint, path) or 'it'} is a pipe or a device, no file"
    if files is None:
        return None if all(path.stat().st_size for path in files_of(checkpoint)) else "it is empty"
    for name, expected in files.items():
        path = checkpoint / name if name else checkpoint
        if not path.is_file():
            return f"{name or 'its file'} is missing"
        if path.stat().st_size != expected["bytes"]:
            size = f"{path.stat().st_size:,} bytes instead of {expected['bytes']:,}"
            return f"{name} has {size}" if name else f"it has {size}"
    return None


def damaged(
    checkpoint: Path, rank: int = 0, ranks: int = 1, read: Callable[[int], object] | None = None
) -> list[str]:
    """Hashes this rank's part of the files; returns the names of those that were changed.

    Of an earlier version's checkpoint nothing is known.
    """
    files = _read_manifest(checkpoint) or {}
    own = sorted(files)[rank::ranks]
    paths = {name: checkpoint / name if name else checkpoint for name in own}
    return [name for name, path in paths.items() if hash_file(path, read) != files[name]["sha256"]]


def _read_manifest(checkpoint: Path) -> Files | None:
    path = manifest_of(checkpoint)
    if not path.exists():
        return None
    try:
        files = read_json(path)["files"]
        for name, facts in files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"it names '{name}'")
            if type(facts["bytes"]) is not int or type(facts["sha256"]) is not str:
                raise ValueError(f"'{name}' has no size or no hash")
    except UserError as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} cannot be read: {of_content(error)}") from None
    return dict(files)


def _name(checkpoint: Path, path: Path) -> str:
    return "" if path == checkpoint else path.relative_to(checkpoint).as_posix()


def hash_file(path: Path, read: Callable[[int], object] | None = None) -> str:
    """The sha256 of a file in hexadecimal digits; `read` gets the number of bytes just read."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while content := file.read(1 << 22):
            digest.update(content)
            if read is not None:
                read(len(content))
    return digest.hexdigest()
