"""Chunks of tokens that `litdata.StreamingDataset` reads with a `TokensLoader`."""

import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter

from dualpath_cli.atomic import sync
from dualpath_cli.text.manifest import INDEX, Chunk, sha256_of

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class ShardWriter:
    """Writes one stream of tokens as chunks of equal length, the last one shorter.

    Tokens are stored as a bare array, which a `TokensLoader` cuts into blocks of any length; the
    tail of each chunk that fills no block is not read. Equal streams give equal bytes.
    """

    def __init__(self, folder: Path, dtype: type[np.uint16 | np.uint32], chunk_tokens: int) -> None:
        self._folder = folder
        self._buffer = np.empty(chunk_tokens, dtype)
        self._filled = 0
        self._items = 0
        # A chunk is one item that we fill ourselves. litdata's own way, an item a document, adds
        # four bytes for each and ends chunks where documents end.
        self._writer = BinaryWriter(str(folder), chunk_size=1, item_loader=TokensLoader())

    def add(self, ids: npt.NDArray[np.uint32]) -> None:
        """Appends ids, all of which fit the type."""
        start = 0
        while start < len(ids):
            count = min(len(ids) - start, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = ids[start : start + count]
            self._filled += count
            start += count
            if self._filled == len(self._buffer):
                self._flush()

    def close(self) -> tuple[list[Chunk], str]:
        """Writes what is left and the index; returns the chunks and the index's sha256."""
        self._flush()
        self._writer.done()
        self._writer.merge()
        index_path = self._folder / INDEX
        index = json.loads(index_path.read_text())
        paths = [self._folder / entry["filename"] for entry in index["chunks"]]
        chunks = [Chunk(path.name, path.stat().st_size, sha256_of(path)) for path in paths]
        # litdata keys its cache of remote data by this value, and would put the time here: a
        # digest of the content does the same and keeps the index equal for equal data.
        digest = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode())
        index["updated_at"] = digest.hexdigest()[:16]
        index_path.write_text(json.dumps(index, sort_keys=True))
        for path in [*paths, index_path]:
            sync(path)
        return chunks, sha256_of(index_path)

    def _flush(self) -> None:
        if self._filled:
            self._writer.add_item(self._items, self._buffer[: self._filled])
            self._items += 1
            self._filled = 0
