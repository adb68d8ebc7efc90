"""The files of a checkpoint, their sizes and hashes. Torch-free.

A checkpoint is a folder (`checkpoint_folder.py`). Beside the checkpoints,
`manifests/step-N.json` holds the size and the sha256 of each file of `step-N`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError, content_fault
from dualpath_cli.base.files import hash_file, is_special, read_json, write_text
from dualpath_cli.base.pointers import refuse_pointer

Files = dict[str, dict[str, Any]]
"""By name inside the checkpoint: `bytes` and `sha256`."""
STATE = "state.json"  # in a checkpoint: all but tensors


def manifest_of(checkpoint: Path) -> Path:
    return checkpoint.parent / "manifests" / f"{checkpoint.name}.json"


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def describe(checkpoint: Path, paths: Iterable[Path]) -> Files:
    """Sizes and hashes of some of a checkpoint's files."""
    files: Files = {}
    for path in paths:
        name = path.relative_to(checkpoint).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    return files


def write_manifest(checkpoint: Path, files: Files, facts: dict[str, Any]) -> None:
    """Writes a checkpoint's manifest: its files, and the facts of its run."""
    text = json.dumps({"files": dict(sorted(files.items())), "run": facts}, indent=2)
    write_text(manifest_of(checkpoint), text + "\n")


def facts_of(checkpoint: Path) -> dict[str, Any]:
    facts = read_json(manifest_of(checkpoint)).get("run")
    return facts if isinstance(facts, dict) else {}


def fault_of(checkpoint: Path) -> str | None:
    """The fault of a checkpoint that names and sizes show; None if there is none."""
    try:
        files = sizes_and_hashes(checkpoint)
        for name in files:
            refuse_pointer(checkpoint / name)
    except UserError as error:
        return str(error)

    for path in (checkpoint, *checkpoint.rglob("*")):
        if is_special(path):
            return f"{path.name} is a pipe or a device, not a file"

    for name in (STATE, *files):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    for name, expected in files.items():
        size = (checkpoint / name).stat().st_size
        if size != expected["bytes"]:
            return f"{name} has {size:,} bytes instead of {expected['bytes']:,}"

    # A file that is not listed would be compared with nothing.
    weights = {path.name for path in checkpoint.glob("*.safetensors")}
    unlisted = {STATE, *weights} - files.keys()
    if unlisted:
        return f"{manifest_of(checkpoint).name} does not list {min(unlisted)}"
    return None


def damaged(
    checkpoint: Path, rank: int, ranks: int, read: Callable[[int], object]
) -> list[str]:
    """Hashes this rank's part of the files; returns the names of changed ones.

    `read` is called with the number of bytes just read.
    """
    files = sizes_and_hashes(checkpoint)
    own = sorted(files)[rank::ranks]
    return [
        name
        for name in own
        if hash_file(checkpoint / name, read) != files[name]["sha256"]
    ]


def sizes_and_hashes(checkpoint: Path) -> Files:
    """The sizes and hashes in a checkpoint's manifest."""
    path = manifest_of(checkpoint)
    try:
        files = read_json(path)["files"]
        for name, facts in files.items():
            inside = Path(name)
            if inside.is_absolute() or ".." in inside.parts:
                raise ValueError(f"it names '{name}'")
            if type(facts["bytes"]) is not int or type(facts["sha256"]) is not str:
                raise ValueError(f"'{name}' has no size or no hash")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path.name} cannot be read: {content_fault(error)}") from None
    return dict(files)
