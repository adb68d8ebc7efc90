"""Chunks of tokens that `litdata.StreamingDataset` reads with a `TokensLoader`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.pieces import Tokens, read_sealed, write_sealed
from dualpath_cli.base.files import replacing, write_text
from dualpath_cli.data.manifest import (
    HEADER,
    INDEX,
    LITDATA_FORMATS,
    StoredFile,
    index_entries,
)
from dualpath_cli.data.storage import sha256_of

_CONFIG: dict[str, Any] = {
    "chunk_bytes": None,
    "chunk_size": 1,
    "compression": None,
    "compression_batch_size": None,
    "compression_level": None,
    "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
    "encryption": None,
    "ipc_compression": None,
    "item_loader": "TokensLoader",
    "types": "json",
}
"""The other fields of litdata's index for chunks that hold one item each."""


def write_shards(
    folder: Path,
    journal: Path,
    dtype: type[np.uint16 | np.uint32],
    chunk_tokens: int,
    stream: Iterable[Tokens],
    total: int,
) -> tuple[list[StoredFile], str]:
    """Writes `total` tokens, in arrays of any length, as chunks of equal length, the
    last shorter.

    Tokens are stored as a bare array, which a `TokensLoader` cuts into blocks of any
    length; the tail of each chunk that fills no block is not read. Equal streams give
    equal bytes, those of litdata's own writer given each chunk as one item. That one
    holds a chunk several times in memory, and importing it costs seconds and half a
    gigabyte.

    Each finished chunk is noted in `journal`; of those that an interrupted writer
    noted, and that are as they were, the tokens are passed over. Returns the chunks and
    the sha256 of the index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal.mkdir(parents=True, exist_ok=True)
    arrays = iter(stream)
    rest: Tokens = np.empty(0, np.uint16)

    def take(count: int) -> Iterator[Tokens]:
        nonlocal rest
        while count:
            if not len(rest):
                rest = next(arrays)
            taken, rest = rest[:count], rest[count:]
            count -= len(taken)
            yield taken

    chunks, lengths = [], []
    for number, start in enumerate(range(0, total, chunk_tokens)):
        length = min(chunk_tokens, total - start)
        note = journal / f"{number}.json"
        path, noted = (
            folder / f"chunk-0-{number}.bin",
            json.loads(read_sealed(note) or "null"),
        )
        if noted and path.is_file() and sha256_of(path) == noted["sha256"]:
            for _ in take(length):
                pass
            file = StoredFile(**noted)
        else:
            file = _write_chunk(path, take(length), length * np.dtype(dtype).itemsize)
            write_sealed(note, json.dumps(asdict(file)).encode())
        lengths.append(length)
        chunks.append(file)
    write_text(
        folder / INDEX, _index(chunks, lengths, LITDATA_FORMATS[np.dtype(dtype).name])
    )
    return chunks, sha256_of(folder / INDEX)


def _write_chunk(path: Path, tokens: Iterable[Tokens], size: int) -> StoredFile:
    # litdata's header: the number of items, where each begins, where the last one ends.
    header = np.array([1, HEADER, HEADER + size], "<u4")
    digest = hashlib.sha256()
    with replacing(path) as partial, open(partial, "wb", buffering=1 << 20) as file:
        for array in chain([header], tokens):
            digest.update(array.data)
            file.write(array.data)
    return StoredFile(path.name, header.nbytes + size, digest.hexdigest())


def _index(chunks: list[StoredFile], lengths: list[int], format: str) -> str:
    # litdata keys its cache of remote data by `updated_at`, and would put the time
    # there: a digest of the content does the same and keeps the index equal for equal
    # data.
    digest = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode())
    config = _CONFIG | {"data_format": [format]}
    entries = index_entries(chunks, lengths)
    index = {"chunks": entries, "config": config, "updated_at": digest.hexdigest()[:16]}
    return json.dumps(index, sort_keys=True)
