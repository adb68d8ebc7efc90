"""Chunks of tokens that `litdata.StreamingDataset` reads with a `TokensLoader`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.pieces import TokenArray, read_sealed, write_sealed
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
    stream: Iterable[TokenArray],
    total: int,
) -> tuple[list[StoredFile], str]:
    """Writes `total` tokens as chunks of equal length, the last one shorter.

    `stream` has the tokens in arrays of any length. They are stored as a bare array,
    which a `TokensLoader` cuts into blocks of any length; the tail of each chunk that
    fills no block is not read. Equal streams give equal bytes, those of litdata's own
    writer given each chunk as one item.

    Each finished chunk is noted in `journal`; of those that an interrupted writer
    noted, and that are as they were, the tokens are passed over. Returns the chunks and
    the sha256 of the index.
    """
    # litdata's own writer holds a chunk several times in memory, and importing it costs
    # seconds and half a gigabyte.
    folder.mkdir(parents=True, exist_ok=True)
    journal.mkdir(parents=True, exist_ok=True)
    token = np.dtype(dtype)
    tokens = _TokenStream(stream)

    chunks = []
    lengths = []
    for number, start in enumerate(range(0, total, chunk_tokens)):
        length = min(chunk_tokens, total - start)
        path = folder / f"chunk-0-{number}.bin"
        note = journal / f"{number}.json"
        chunk = _noted_chunk(note, path)
        if chunk:
            tokens.pass_over(length)
        else:
            chunk = _write_chunk(path, tokens.take(length), length * token.itemsize)
            write_sealed(note, json.dumps(asdict(chunk)).encode())

        lengths.append(length)
        chunks.append(chunk)

    index = _index(chunks, lengths, LITDATA_FORMATS[token.name])
    write_text(folder / INDEX, index)
    return chunks, sha256_of(folder / INDEX)


class _TokenStream:
    """Arrays of tokens, of any length, cut into parts of given lengths."""

    def __init__(self, arrays: Iterable[TokenArray]) -> None:
        self._arrays = iter(arrays)
        self._rest: TokenArray = np.empty(0, np.uint16)

    def take(self, count: int) -> Iterator[TokenArray]:
        """Yields the next `count` tokens, in arrays."""
        while count:
            if not len(self._rest):
                self._rest = next(self._arrays)
            taken = self._rest[:count]
            self._rest = self._rest[count:]
            count -= len(taken)
            yield taken

    def pass_over(self, count: int) -> None:
        """Leaves out the next `count` tokens."""
        for _ in self.take(count):
            pass


def _noted_chunk(note: Path, path: Path) -> StoredFile | None:
    """The chunk that an interrupted writer noted, if its file is as it was."""
    noted = json.loads(read_sealed(note) or "null")
    if noted and path.is_file() and sha256_of(path) == noted["sha256"]:
        return StoredFile(**noted)
    return None


def _write_chunk(path: Path, tokens: Iterable[TokenArray], size: int) -> StoredFile:
    # litdata's header: the number of items, where each begins, where the last one ends.
    items = 1
    header = np.array([items, HEADER, HEADER + size], "<u4")
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
