"""An exported folder: its run, its files, and SHA256SUMS, as `sha256sum -c` reads it.
Torch-free.

SHA256SUMS shows readers a changed file, and `export --overwrite` the files that it may
replace.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dualpath_cli.base.errors import UserError, content_fault
from dualpath_cli.base.files import hash_file, read_json, read_text
from dualpath_cli.base.pointers import StandIn
from dualpath_cli.run.checkpoint_files import sizes_and_hashes
from dualpath_cli.run.run_folder import (
    RECIPE,
    TOKENIZER,
    VERSIONS,
    Run,
    check_same_recipe,
    read_recipe,
    read_run,
)
from dualpath_cli.spec.config import RENAMED, ModelConfig

LISTING = "SHA256SUMS"
CONFIG = "config.json"
MODELING = "modeling_dualpath.py"
WEIGHTS = "model.safetensors"
SHARDS = f"{WEIGHTS}.index.json"  # names the files of weights that are in several
CARD = "README.md"
# the prefix of the names of weights, after the attribute of DualPathForCausalLM
PREFIX = "model."
_READ = {".json", ".py", ".safetensors", ".yaml"}  # suffixes of files that readers use
_LINE = re.compile(r"([0-9a-f]{64})  (\w[\w.-]*)")  # no path leads elsewhere


def is_exported(folder: Path) -> bool:
    try:
        return read_json(folder / CONFIG).get("model_type") == "dualpath"
    except StandIn:
        raise
    except UserError:
        return False


def read_folder(folder: Path) -> Run:
    """The run that was exported to a folder."""
    for name in (RECIPE, VERSIONS, TOKENIZER):
        if not (folder / name).is_file():
            hint = "; copy it from the folder that the export wrote"
            if name == TOKENIZER:
                hint = ""
            raise UserError(f"'{folder}' holds no {name}{hint}")

    try:
        config = read_json(folder / CONFIG)
        step = config["dualpath"]["step"]
        if type(step) is not int or not 0 <= step < 10**18:
            raise ValueError(f"its step is {step!r:.40}")
        names = [field.name for field in dataclasses.fields(ModelConfig)]
        written = {name: RENAMED.get(name, name) for name in names}
        model = {name: config[key] for name, key in written.items() if key in config}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{folder / CONFIG}' describes no model of dualpath: "
            f"{content_fault(error)}"
        ) from None

    way_out = f"put {CONFIG} back, or export the run again"
    check_same_recipe(
        folder, read_recipe(folder), {"model": model}, ("model",), way_out=way_out
    )
    return read_run(folder, folder, step)


def listing(hashes: Mapping[str, str]) -> str:
    """The text of SHA256SUMS, of hashes by the names of their files."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))


def check_unchanged(folder: Path, read: Callable[[int], object]) -> None:
    """Compares an exported folder with its list, if it has one, except for the model
    card.

    `read` is called with the number of bytes just read.
    """
    listed = _listed(folder)
    if listed is None:
        return

    found = {path.name for path in folder.iterdir() if path.suffix in _READ}
    added = found - listed.keys()
    if added:
        raise UserError(
            f"'{folder}' is damaged: {min(added)} is not in {LISTING}; move the file "
            "away, or copy the folder again"
        )

    for name, sha256 in listed.items():
        path = folder / name
        if name == CARD or (path.is_file() and hash_file(path, read) == sha256):
            continue
        raise UserError(
            f"'{folder}' is damaged: {name} is not as it was exported (sha256); copy "
            f"it again, or remove {LISTING} if the change was meant"
        )


def hash_of_weights(folder: Path) -> str:
    """One hash of a checkpoint's or an exported folder's weights, from the hashes in
    its list.

    Loading compares the files with the list. Files without a list are hashed here.
    """
    if is_exported(folder):
        hashes = _listed(folder) or {}
    else:
        files = sizes_and_hashes(folder)
        hashes = {name: facts["sha256"] for name, facts in files.items()}

    own = [
        hashes.get(path.name) or hash_file(path)
        for path in folder.glob("*.safetensors")
    ]
    return hashlib.sha256("".join(sorted(own)).encode()).hexdigest()


def check_ours(folder: Path, shown: Path) -> None:
    """Raises UserError if a folder has a file that no export wrote; `shown` is its
    name."""
    listed: dict[str, str] = {}
    if is_exported(folder):
        listed = _listed(folder) or {}

    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name == LISTING:
            continue
        is_listed = path.is_file() and name in listed
        if not is_listed or listed[name] != hash_file(path):
            raise UserError(
                f"'{shown}' holds '{name}', which is not as an export wrote it; move "
                "it away, or give another --out"
            )


def part_of(folder: Path, name: str) -> Path:
    """The file of that name in a folder.

    Raises UserError for a path, and for a link that leads out of the folder. The links
    of the hub's cache lead to the blobs beside its snapshots.
    """
    home = folder.resolve()
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parents[1] / "blobs")

    path = home / name
    leads_to = path.resolve()
    if path.name != name or not any(leads_to.is_relative_to(one) for one in homes):
        raise UserError(
            f"'{folder}': the weights '{name}' lie elsewhere ('{leads_to}'), and are "
            "not followed; copy the file into the folder, under its plain name"
        )
    return path


def shards_of(folder: Path) -> list[Path]:
    """The files that the index of a folder's weights names; none without an index.

    Raises UserError unless each is a safetensors file in the folder.
    """
    if not (folder / SHARDS).exists():
        return []

    try:
        names = sorted({*read_json(folder / SHARDS)["weight_map"].values()})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / SHARDS} names no files: {content_fault(error)}"
        ) from None

    for name in names:
        if not (isinstance(name, str) and name.endswith(".safetensors")):
            raise UserError(
                f"{folder / SHARDS} names '{name}'; weights are read from safetensors"
            )
    return [part_of(folder, name) for name in names]


def _listed(folder: Path) -> dict[str, str] | None:
    path = folder / LISTING
    if not path.exists():
        return None

    hashes: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise UserError(
                f"{path} line {number} was not written by dualpath export; export "
                "again, or remove the file"
            )
        hashes[found[2]] = found[1]
    return hashes
