"""Shards, the third stage: chunks of tokens that litdata's `TokensLoader` reads."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.engine import Between, read_shared
from data_prep.mix import Portion, interleave
from data_prep.pieces import TokenArray, read_sealed, write_sealed
from dualpath_cli.base.files import hash_file, replacing, write_text
from dualpath_cli.data.manifest import (
    HEADER,
    INDEX,
    LITDATA_FORMATS,
    StoredFile,
    index_entries,
)

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


@dataclass(frozen=True)
class Plan:
    """The tokens of a data folder, and where they go."""

    folder: Path
    journal: Path  # a folder for notes of finished chunks
    dtype: type[np.uint16 | np.uint32]
    chunk_tokens: int
    portions: Sequence[Portion]
    seed: int

    @property
    def tokens(self) -> int:
        return sum(portion.tokens for portion in self.portions)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each chunk: equal, but for the last one."""
        whole, rest = divmod(self.tokens, self.chunk_tokens)
        return [self.chunk_tokens] * whole + [rest] * bool(rest)

    def chunk_path(self, number: int) -> Path:
        """Where a chunk is written."""
        return self.folder / f"chunk-0-{number}.bin"


@dataclass(frozen=True)
class WriteChunk:
    """A task: one chunk of a shared `Plan`, a slice of the order of all documents."""

    plan: Path
    number: int

    def run(self, between: Between) -> StoredFile:
        """A chunk that was noted before, and that is as it was, stays."""
        plan: Plan = read_shared(self.plan)
        path = plan.chunk_path(self.number)
        note = plan.journal / f"{self.number}.json"
        chunk = _noted_chunk(note, path)
        if not chunk:
            begin = self.number * plan.chunk_tokens
            tokens = interleave(plan.portions, plan.seed, begin)
            length = plan.lengths[self.number]
            chunk = write_chunk(path, _first(length, tokens), length, plan.dtype)
            write_sealed(note, json.dumps(asdict(chunk)).encode())
        return chunk


def _first(count: int, arrays: Iterable[TokenArray]) -> Iterator[TokenArray]:
    """Yields the first tokens of some arrays."""
    for tokens in arrays:
        yield tokens[:count]
        count -= len(tokens)
        if count <= 0:
            return


def _noted_chunk(note: Path, path: Path) -> StoredFile | None:
    """The chunk that an interrupted writer noted, if its file is as it was."""
    noted = json.loads(read_sealed(note) or "null")
    if noted and path.is_file() and hash_file(path) == noted["sha256"]:
        return StoredFile(**noted)
    return None


def write_chunk(
    path: Path,
    arrays: Iterable[TokenArray],
    length: int,
    dtype: type[np.uint16 | np.uint32],
) -> StoredFile:
    """Writes `length` tokens, in arrays of any length, as one chunk.

    They are stored as a bare array, which a `TokensLoader` cuts into blocks of any
    length; the tail that fills no block is not read. The bytes are those of litdata's
    own writer given the chunk as one item.
    """
    # litdata's own writer holds a chunk several times in memory, and importing it costs
    # seconds and half a gigabyte. Its header: the number of items, where each begins,
    # where the last one ends.
    items = 1
    size = length * np.dtype(dtype).itemsize
    header = np.array([items, HEADER, HEADER + size], "<u4")
    digest = hashlib.sha256()

    # Shared: other machines may write into the folder, whose unfinished files go when a
    # preparation begins.
    with replacing(path, shared=True) as partial, open(partial, "wb", 1 << 20) as file:
        for array in chain([header], arrays):
            digest.update(array.data)
            file.write(array.data)
    return StoredFile(path.name, header.nbytes + size, digest.hexdigest())


def write_index(
    folder: Path,
    chunks: Sequence[StoredFile],
    lengths: Sequence[int],
    dtype: type[np.uint16 | np.uint32],
) -> str:
    """Writes litdata's index of chunks of some lengths; returns its sha256."""
    # litdata keys its cache of remote data by `updated_at`, and would put the time
    # there: a digest of the content does the same and keeps the index equal for equal
    # data.
    digest = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode())
    config = _CONFIG | {"data_format": [LITDATA_FORMATS[np.dtype(dtype).name]]}
    entries = index_entries([*chunks], [*lengths])
    index = {"chunks": entries, "config": config, "updated_at": digest.hexdigest()[:16]}
    write_text(folder / INDEX, json.dumps(index, sort_keys=True))
    return hash_file(folder / INDEX)
