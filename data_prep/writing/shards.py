"""Chunks of tokens that `litdata.StreamingDataset` reads with a `TokensLoader`."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.documents.piece import Tokens
from dualpath_cli.files import replacing, write_text
from dualpath_cli.text.manifest import FORMATS, HEADER, INDEX, StoredFile
from dualpath_cli.text.storage import sha256_of

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


class ShardWriter:
    """Writes one stream of tokens as chunks of equal length, the last one shorter.

    Tokens are stored as a bare array, which a `TokensLoader` cuts into blocks of any length; the
    tail of each chunk that fills no block is not read. Equal streams give equal bytes, those of
    litdata's own writer given each chunk as one item. That one holds a chunk several times in
    memory, and importing it costs seconds and half a gigabyte.
    """

    def __init__(
        self, folder: Path, journal: Path, dtype: type[np.uint16 | np.uint32], chunk_tokens: int
    ) -> None:
        """Writes chunks into `folder` and notes each finished one in `journal`."""
        self._folder = folder
        self._journal = journal
        self._dtype = dtype
        self._chunk_tokens = chunk_tokens

    def write(self, stream: Iterable[Tokens], total: int) -> tuple[list[StoredFile], str]:
        """Writes `total` tokens, in arrays of any length, and the index.

        Of chunks that the journal has from an interrupted writer, the tokens are passed over.
        Returns the chunks and the index's sha256.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        source = _Stream(stream)
        notes = []
        for number, start in enumerate(range(0, total, self._chunk_tokens)):
            length = min(self._chunk_tokens, total - start)
            note = self._journal / f"{number}.json"
            if note.exists():
                for _ in source.take(length):
                    pass
            else:
                file = self._write_chunk(f"chunk-0-{number}.bin", source.take(length), length)
                write_text(note, json.dumps(asdict(file) | {"tokens": length}))
            notes.append(json.loads(note.read_text()))
        lengths = [note.pop("tokens") for note in notes]
        chunks = [StoredFile(**note) for note in notes]
        write_text(self._folder / INDEX, self._index(chunks, lengths))
        return chunks, sha256_of(self._folder / INDEX)

    def _write_chunk(self, name: str, tokens: Iterable[Tokens], length: int) -> StoredFile:
        size = length * np.dtype(self._dtype).itemsize
        # litdata's header: the number of items, where each begins, where the last one ends.
        header = np.array([1, HEADER, HEADER + size], "<u4")
        digest = hashlib.sha256()
        with (
            replacing(self._folder / name) as partial,
            open(partial, "wb", buffering=1 << 20) as file,
        ):
            for array in chain([header], tokens):
                digest.update(array.data)
                file.write(array.data)
        return StoredFile(name, header.nbytes + size, digest.hexdigest())

    def _index(self, chunks: list[StoredFile], lengths: list[int]) -> str:
        # litdata keys its cache of remote data by `updated_at`, and would put the time there: a
        # digest of the content does the same and keeps the index equal for equal data.
        digest = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode())
        entries = [
            {"chunk_bytes": chunk.bytes, "chunk_size": 1, "dim": length, "filename": chunk.name}
            for chunk, length in zip(chunks, lengths, strict=True)
        ]
        index = {
            "chunks": entries,
            "config": _CONFIG | {"data_format": [FORMATS[np.dtype(self._dtype).name]]},
            "updated_at": digest.hexdigest()[:16],
        }
        return json.dumps(index, sort_keys=True)


class _Stream:
    """Arrays of any length, given out again in runs of as many tokens as asked for."""

    def __init__(self, arrays: Iterable[Tokens]) -> None:
        self._arrays = iter(arrays)
        self._rest: Tokens = np.empty(0, np.uint16)

    def take(self, count: int) -> Iterator[Tokens]:
        """Yields the next `count` tokens."""
        while count:
            if not len(self._rest):
                self._rest = next(self._arrays)
            taken, self._rest = self._rest[:count], self._rest[count:]
            count -= len(taken)
            yield taken
