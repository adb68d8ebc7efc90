"""A data folder without fault, what may be done to it, and what a message must be."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.data.manifest import MANIFEST
from dualpath_cli.data.tokenizer import TOKENIZER
from tests.data.manifests import write_data_folder
from tests.data.small_tokenizer import tokenizer_with
from tests.training.tiny_run import MERGES, SEQ_LEN

Damage = Callable[[Path], object]

CHUNKS, BLOCKS = 8, 12  # of a data folder: chunks, and blocks in each


def ids(seed: int, highest: int = 255) -> np.ndarray:
    count = CHUNKS * BLOCKS * (SEQ_LEN + 1)
    return np.random.default_rng(seed).integers(0, highest, count, endpoint=True)


def write(folder: Path, tokens: Any, **stated: Any) -> Path:
    chunk_tokens = BLOCKS * (SEQ_LEN + 1)
    write_data_folder(folder, tokens, tokenizer_with(MERGES), chunk_tokens, **stated)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder without fault."""
    return write(tmp_path_factory.mktemp("whole") / "data", ids(0))


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(whole, tmp_path / "data")


def one_line(said: str, message: str) -> None:
    assert re.search(message, said), said
    assert said.startswith("dualpath ")
    assert len(said.splitlines()) == 1


# Damages


def flip(path: Path) -> None:
    """Changes one bit in place."""
    with path.open("r+b") as file:
        file.seek(50)
        byte = file.read(1)[0]
        file.seek(50)
        file.write(bytes([byte ^ 1]))


def swap(folder: Path) -> None:
    first, second = folder / "chunk-0-0.bin", folder / "chunk-0-1.bin"
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def of_another_set(folder: Path) -> None:
    other = write(folder.with_name("other"), ids(1))
    for chunk in other.glob("chunk-*"):
        shutil.copy(chunk, folder)


def swap_ids(folder: Path) -> None:
    content = json.loads((folder / TOKENIZER).read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / TOKENIZER).write_text(json.dumps(content))


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def put(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def edited(name: str, *path: Any) -> Damage:
    """Sets the value at a path of keys in a JSON file: `edited(name, key, ..., value)`."""
    *keys, last, value = path

    def damage(folder: Path) -> None:
        content = part = json.loads((folder / name).read_text())
        for key in keys:
            part = part[key]
        part[last] = value
        (folder / name).write_text(json.dumps(content))

    return damage


def index_edited(*path: Any) -> Damage:
    """The same in the index, with the manifest's hash of it made to fit."""

    def damage(folder: Path) -> None:
        edited("index.json", *path)(folder)
        sha256 = hashlib.sha256((folder / "index.json").read_bytes()).hexdigest()
        edited(MANIFEST, "index_sha256", sha256)(folder)

    return damage


CHANGED = r"changed since it was prepared \(its sha256 differs\); copy the folder here again"
