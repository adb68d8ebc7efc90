"""Data folders and their manifests, what may be done to a folder, and what a message
must be."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from data_prep.shards import write_chunk, write_index
from dualpath_cli.base.files import hash_file
from dualpath_cli.data.manifest import MANIFEST, Manifest, SourceCount, StoredFile
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from tests.data.small_tokenizer import tokenizer_with
from tests.training.tiny_run import MERGES, SEQ_LEN

Damage = Callable[[Path], object]

CHUNKS, BLOCKS = 8, 12  # of a data folder: chunks, and blocks in each


def ids(seed: int, highest: int = 255) -> np.ndarray:
    count = CHUNKS * BLOCKS * (SEQ_LEN + 1)
    return np.random.default_rng(seed).integers(0, highest, count, endpoint=True)


def write_shards(
    folder: Path, tokens: np.ndarray, chunk_tokens: int
) -> tuple[list[StoredFile], str]:
    """Writes tokens as chunks of equal length; returns these, and the index's hash."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks, lengths = [], []
    for number, start in enumerate(range(0, len(tokens), chunk_tokens)):
        own = tokens[start : start + chunk_tokens]
        path = folder / f"chunk-0-{number}.bin"
        chunks.append(write_chunk(path, [own], len(own), tokens.dtype.type))
        lengths.append(len(own))
    return chunks, write_index(folder, chunks, lengths, tokens.dtype.type)


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


def flip(path: Path, position: int = 50, mask: int = 1) -> None:
    """Changes one bit, or those of `mask`, in place; a negative position counts from
    the end."""
    place = position % path.stat().st_size
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ mask]))


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
    return lambda folder: os.truncate(
        folder / name, (folder / name).stat().st_size // 2
    )


def edited(name: str, *path: Any) -> Damage:
    """Sets the value at a path of keys in a JSON file: `edited(name, key, ...,
    value)`."""
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


CHANGED = (
    r"changed since it was prepared \(its sha256 differs\); copy the folder here again"
)


# Manifests, which are right unless a test says otherwise


def source_count(name: str, **counts: Any) -> SourceCount:
    """Returns counts of a source `name`; those that are not given are zero."""
    unset = dict.fromkeys((field.name for field in fields(SourceCount)), 0)
    known = {
        "name": name,
        "path": f"{name}.txt",
        "passes": 1.0,
        "rejected": {},
        "faults": [],
    }
    return SourceCount(**unset | known | {"read": counts.get("documents", 0)} | counts)


def intact(manifest: Manifest, folder: Path) -> bool:
    """Whether every byte of a data folder is as its manifest says; reads all of
    them."""
    manifest.check_files(folder)
    manifest.check_tokenizer(folder)
    files = (*manifest.chunks, *manifest.beside)
    return all(hash_file(folder / file.name) == file.sha256 for file in files)


def write_data_folder(
    folder: Path,
    ids: npt.ArrayLike,
    tokenizer: Tokenizer,
    chunk_tokens: int,
    **stated: Any,
) -> Manifest:
    """Writes a data folder of these tokens, in chunks, as a preparation would, beside
    other files.

    `stated` are further fields of the manifest, true or not.
    """
    tokens = np.asarray(ids, np.uint16)
    beside = [
        StoredFile(
            path.relative_to(folder).as_posix(), path.stat().st_size, hash_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    chunks, index = write_shards(folder, tokens, chunk_tokens)
    tokenizer.save(folder)
    counts = {"documents": 1, "tokens": len(tokens), "text_bytes": len(tokens)}
    content: dict[str, Any] = {
        **counts,
        "dtype": "uint16",
        "vocab_size": tokenizer.vocab_size,
        "eot_id": tokenizer.eot_id,
        "tokenizer": tokenizer.fingerprint,
        "sources": [source_count("a", **counts)],
        "chunks": chunks,
        "index_sha256": index,
        "beside": beside,
        "request": "request",
        "settings": {"seed": 0},
    }
    manifest = Manifest(**content | stated)
    manifest.write(folder)
    return manifest
