"""A run in one file: its weights as safetensors, in the header all else that reading them needs.

`dualpath export` writes it, and it is a RUN like a run folder. Torch-free. A file of safetensors
begins with the length of its header (8 bytes, little-endian), the header as JSON, which says where
each tensor lies in the bytes that follow, and under `__metadata__` further text:

    format          "pt", which tools for PyTorch look for
    dualpath        the layout of this text, "1"
    run             recipe/name of the run
    step, tokens    optimizer steps made, and tokens trained on
    recipe          recipe.yaml of the run folder, as it was
    versions        versions.json: packages, git commit, data fingerprint; `averaged_steps` are
                    those of the checkpoints whose mean weights these are, where there are several
    tokenizer       tokenizer.json
    exported_with   the version of dualpath that wrote the file
    sha256          of the whole file, with 64 zeros in the place of this hash
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualpath_cli import __version__
from dualpath_cli.errors import UserError, of_content
from dualpath_cli.files import read_text, replacing
from dualpath_cli.ranges import check_name, check_range
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_folder
from dualpath_cli.run.run_folder import PUT_BACK, RECIPE, TOKENIZER, VERSIONS, Run
from dualpath_cli.text.storage import cache

SUFFIX = ".safetensors"
LAYOUT = "1"
NO_HASH = "0" * 64  # the place of the sha256 until all is written
LONGEST_HEADER = 100_000_000  # bytes; safetensors itself reads no longer one
MOST_STEPS = 10**18
_TEXTS = {RECIPE: "recipe", VERSIONS: "versions", TOKENIZER: "tokenizer"}


def is_run_file(path: Path) -> bool:
    return path.suffix == SUFFIX and path.is_file()


def find(path: str) -> Run:
    """Understands any RUN: a run folder, a checkpoint inside one, or a run in one file."""
    run = _open(Path(path)) if is_run_file(Path(path)) else run_folder.find_run(path)
    run_folder.check_as_written(run.folder, run.checkpoint)
    return run


def describe(run: Run, settings: Settings) -> dict[str, str]:
    """The header of a file of this run; its hash is filled in once all is written."""
    facts = run_folder.facts_at(run.folder, run.checkpoint)
    if run.average:
        facts |= {"averaged_steps": [run_folder.step_of(path) for path in run.average]}
    return {
        "format": "pt",
        "dualpath": LAYOUT,
        "run": f"{settings.run.recipe}/{settings.run.name}",
        "step": str(run.step),
        "tokens": str(run.step * settings.run.batch_tokens),
        **{key: read_text(run.folder / name, PUT_BACK) for name, key in _TEXTS.items()},
        _TEXTS[VERSIONS]: json.dumps(facts, indent=2),
        "exported_with": __version__,
        "sha256": NO_HASH,  # the last, as a text before it may hold as many zeros
    }


def header(tensors: Mapping[str, Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the tensors: of each `dtype`, `shape` and `data_offsets`, in their order."""
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":"))
    content = text.encode()
    content += b" " * (-len(content) % 8)  # tensors begin at a multiple of 8
    if len(content) > LONGEST_HEADER:
        size = f"{len(metadata['tokenizer']) / 1e6:.0f} MB"
        raise UserError(f"the tokenizer ({size}) is too large for the header of one file")
    return len(content).to_bytes(8, "little") + content


def was_changed(path: Path) -> bool:
    content, metadata = _read(path)
    zeros = content.replace(metadata["sha256"].encode(), NO_HASH.encode(), 1)
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(8) + zeros)
        file.seek(len(content), os.SEEK_CUR)
        return hashlib.file_digest(file, lambda: digest).hexdigest() != metadata["sha256"]


def _open(path: Path) -> Run:
    """A run in one file. Its small files are laid into the cache, where commands read them."""
    content, metadata = _read(path)
    recipe, _, name = metadata["run"].partition("/")
    try:
        check_name("the recipe's name in its header", recipe)
        check_name("the run's name in its header", name)
        check_range("the step in its header", int(metadata["step"]), (0, MOST_STEPS))
    except ValueError as error:
        raise UserError(f"'{path}' is no run of dualpath: {error}") from None
    folder = cache() / "runs" / hashlib.sha256(content).hexdigest()[:32] / recipe / name
    for file, key in _TEXTS.items():
        if not (folder / file).exists():
            with replacing(folder / file, shared=True) as partial:
                partial.write_text(metadata[key], encoding="utf-8")
    return Run(folder, path.resolve(), int(metadata["step"]), home=path.with_suffix(""))


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """The header after its length, and its facts on the run."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError(f"it has {length:,} bytes")
            content = file.read(length)
        entries = json.loads(content)
        metadata: dict[str, str] = entries.pop("__metadata__", {})
        if not all(type(text) is str for text in metadata.values()):
            raise ValueError("its facts on the run are no text")
        end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        reason = f"{of_content(error):.160}"
        raise UserError(f"'{path}' is no file of safetensors (its header: {reason})") from None
    if end != path.stat().st_size:
        raise UserError(
            f"'{path}' is damaged: it has {path.stat().st_size:,} bytes instead of {end:,}; "
            "copy it here again"
        )
    lacking = [key for key in ("run", "step", "sha256", *_TEXTS.values()) if key not in metadata]
    if lacking or metadata.get("dualpath") != LAYOUT:
        fault = f"its header lacks {lacking[0]}" if lacking else "its layout is another"
        raise UserError(f"'{path}' was not written by this version's dualpath export: {fault}")
    return content, metadata
