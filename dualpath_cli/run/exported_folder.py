"""The files of an exported folder, and SHA256SUMS: their hashes, as `sha256sum -c` reads them.

By it whoever reads the folder sees what was changed, and `export --overwrite` what it may replace.
Torch-free.
"""

import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.files import read_json, read_text
from dualpath_cli.run.checkpoint_files import hash_file
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, VERSIONS

LISTING = "SHA256SUMS"
CONFIG = "config.json"
MODELING = "modeling_dualpath.py"
WEIGHTS = "model.safetensors"
CARD = "README.md"
SCORES = ".eval_results"
NAMES = {
    CONFIG, "generation_config.json", "tokenizer_config.json", TOKENIZER, RECIPE, VERSIONS,
    "configuration_dualpath.py", MODELING, WEIGHTS, CARD,
}  # fmt: skip
"""The files of every exported folder beside the list."""
PREFIX = "model."
"""The prefix of the names of weights, after the attribute of DualPathForCausalLM."""
_MORE_NAMES = re.compile(rf"own_\w+\.py|{re.escape(SCORES)}/\w+\.yaml")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def is_exported(folder: Path) -> bool:
    """Whether a folder is one that `export --format hf` wrote."""
    try:
        return read_json(folder / CONFIG).get("model_type") == "dualpath"
    except UserError:
        return False


def listing(hashes: Mapping[str, str]) -> str:
    """The text of SHA256SUMS, of hashes by the names of their files."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))


def changed(folder: Path, read: Callable[[int], object], free: Container[str] = ()) -> str | None:
    """The first file that is not as the list has it; None as well where there is no list.

    Those that are `free` may be. `read` is told how many bytes were just read.
    """
    listed = _listed(folder)
    if listed is None:
        return None
    for name in sorted(NAMES - listed.keys()):  # of a list that was cut
        if (folder / name).exists():
            return name
    for name, sha256 in listed.items():
        path = folder / name
        if name not in free and not (path.is_file() and hash_file(path, read) == sha256):
            return name
    return None


def check_unchanged(folder: Path, read: Callable[[int], object] = lambda count: None) -> None:
    """Compares an exported folder with its list, but for the model card, before it is read.

    `read` is told how many bytes were just read. A folder without a list is taken as it is.
    """
    if name := changed(folder, read, free={CARD}):
        raise UserError(
            f"'{folder}' is damaged: {name} is not as it was exported (sha256); copy it again, "
            f"or remove {LISTING} if the change was meant"
        )


def check_ours(folder: Path, shown: Path) -> None:
    """Checks that a folder, if there is one, may be replaced by an export.

    `shown` is what it is called.
    """
    listed = _listed(folder) or {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name == LISTING or (name == SCORES and path.is_dir()):
            continue  # what is in the latter comes next
        if not (path.is_file() and name in listed and listed[name] == hash_file(path)):
            raise UserError(
                f"'{shown}' holds '{name}', which is not as an export wrote it; move it away, or "
                "give another --out"
            )


def _is_ours(name: str) -> bool:
    return name in NAMES or _MORE_NAMES.fullmatch(name) is not None


def _listed(folder: Path) -> dict[str, str] | None:
    """Hashes by the names of files; None where there is no list."""
    path = folder / LISTING
    if not path.exists():
        return None
    hashes = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or not _is_ours(found[2]):
            raise UserError(f"{path} line {number} was not written by dualpath export")
        hashes[found[2]] = found[1]
    return hashes
