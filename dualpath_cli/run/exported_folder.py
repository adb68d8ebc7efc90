"""An exported folder: its run, its files, and SHA256SUMS, as `sha256sum -c` reads it. Torch-free.

By the latter readers see what was changed, and `export --overwrite` what it may replace.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.base.ranges import check_range
from dualpath_cli.base.system import read_json, read_text
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import hash_file, sizes_and_hashes
from dualpath_cli.run.run_folder import RECIPE, TABLES, TOKENIZER, VERSIONS, Run
from dualpath_cli.spec.config import RENAMED, ModelConfig

LISTING = "SHA256SUMS"
CONFIG = "config.json"
MODELING = "modeling_dualpath.py"
WEIGHTS = "model.safetensors"
MOST_STEPS = 10**18
CARD = "README.md"
NAMES = {
    CONFIG, "generation_config.json", "tokenizer_config.json", TOKENIZER, RECIPE, VERSIONS,
    "configuration_dualpath.py", MODELING, WEIGHTS, CARD,
}  # fmt: skip
"""The files of most exported folders beside the list."""
PREFIX = "model."  # the prefix of the names of weights, after the attribute of DualPathForCausalLM
_MORE_NAMES = re.compile(
    r"own_\w+\.py|model-[\d-]+of-\d+\.safetensors"
    rf"|{re.escape(WEIGHTS)}\.index\.json|{'|'.join(map(re.escape, TABLES))}"
)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def is_exported(folder: Path) -> bool:
    try:
        return read_json(folder / CONFIG).get("model_type") == "dualpath"
    except UserError:
        return False


def read_folder(folder: Path) -> Run:
    """The run that a folder is of."""
    for name in (RECIPE, VERSIONS, TOKENIZER):
        if not (folder / name).is_file():
            hint = "" if name == TOKENIZER else "; copy it from the folder that the export wrote"
            raise UserError(f"'{folder}' holds no {name}{hint}")
    try:
        config = read_json(folder / CONFIG)
        step = config["dualpath"]["step"]
        if type(step) is not int:
            raise ValueError(f"its step is {step!r:.40}")
        check_range("its step", step, (0, MOST_STEPS))
        names = [field.name for field in dataclasses.fields(ModelConfig)]
        written = {name: RENAMED.get(name, name) for name in names}
        # Earlier versions lack fields that came later, with their defaults.
        model = {name: config[key] for name, key in written.items() if key in config}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{folder / CONFIG}' is not of a model of dualpath: {of_content(error)}"
        ) from None
    way_out = f"put {CONFIG} back, or export the run again"
    run_folder.check_same_recipe(folder, {"model": model}, ("model",), way_out=way_out)
    run_folder.check_as_written(folder, folder)
    return Run(folder, folder, step)


def listing(hashes: Mapping[str, str]) -> str:
    """The text of SHA256SUMS, of hashes by the names of their files."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))


def check_unchanged(folder: Path, read: Callable[[int], object] = lambda count: None) -> None:
    """Compares an exported folder with its list, if it has one, but for the model card.

    `read` is told how many bytes were just read.
    """
    listed = _listed(folder)
    if listed is None:
        return
    unlisted = {*NAMES, *(p.name for p in folder.glob("*.safetensors"))} - listed.keys()
    # Put there since, or of a list that was cut.
    added = (name for name in sorted(unlisted) if (folder / name).exists())
    changed = (
        name for name, sha256 in listed.items()
        if name != CARD
        and not ((folder / name).is_file() and hash_file(folder / name, read) == sha256)
    )  # fmt: skip
    if name := next(chain(added, changed), None):
        raise UserError(
            f"'{folder}' is damaged: {name} is not as it was exported (sha256); copy it again, "
            f"or remove {LISTING} if the change was meant"
        )


def hash_of_weights(folder: Path) -> str:
    """One hash of a checkpoint's or an exported folder's weights.

    It comes of the hashes in its list, with which loading compares the files.
    """
    if is_exported(folder):
        hashes = _listed(folder) or {}
    else:
        hashes = {name: facts["sha256"] for name, facts in sizes_and_hashes(folder).items()}
    # Without a list, after a change that was meant, from the files.
    own = [hashes.get(path.name) or hash_file(path) for path in folder.glob("*.safetensors")]
    return hashlib.sha256("".join(sorted(own)).encode()).hexdigest()


def check_ours(folder: Path, shown: Path) -> None:
    """Checks that a folder, called `shown`, may be replaced by an export, if there is one."""
    listed = _listed(folder) or {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        same = path.is_file() and name in listed and listed[name] == hash_file(path)
        if name != LISTING and not same:
            raise UserError(
                f"'{shown}' holds '{name}', which is not as an export wrote it; move it away, or "
                "give another --out"
            )


def _listed(folder: Path) -> dict[str, str] | None:
    path = folder / LISTING
    if not path.exists():
        return None
    hashes = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or not (found[2] in NAMES or _MORE_NAMES.fullmatch(found[2])):
            raise UserError(f"{path} line {number} was not written by dualpath export")
        hashes[found[2]] = found[1]
    return hashes
