"""Chunks of tokens that `litdata.StreamingDataset` reads with a `TokensLoader`."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter

from dualpath_cli.atomic import sync, write_text
from dualpath_cli.text.manifest import INDEX, StoredFile, sha256_of

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class ShardWriter:
    """Writes one stream of tokens as chunks of equal length, the last one shorter.

    Tokens are stored as a bare array, which a `TokensLoader` cuts into blocks of any length; the
    tail of each chunk that fills no block is not read. Equal streams give equal bytes. A writer
    that is given the folder and journal of one that was interrupted passes over the tokens of the
    chunks that are there.
    """

    def __init__(
        self, folder: Path, journal: Path, dtype: type[np.uint16 | np.uint32], chunk_tokens: int
    ) -> None:
        """Writes chunks into `folder` and notes each finished one in `journal`."""
        self._folder = folder
        self._journal = journal
        self._buffer = np.empty(chunk_tokens, dtype)
        self._filled = 0
        self._chunks = 0
        while self._note(self._chunks).exists():
            self._chunks += 1
        self._skip = self._chunks * chunk_tokens
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, ids: Tokens) -> None:
        """Appends ids, all of which fit the type."""
        start = min(self._skip, len(ids))
        self._skip -= start
        while start < len(ids):
            count = min(len(ids) - start, len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = ids[start : start + count]
            self._filled += count
            start += count
            if self._filled == len(self._buffer):
                self._flush()

    def close(self) -> tuple[list[StoredFile], str]:
        """Writes what is left and the index; returns the chunks and the index's sha256."""
        if self._filled:
            self._flush()
        notes = [json.loads(self._note(number).read_text()) for number in range(self._chunks)]
        chunks = [StoredFile(**note["file"]) for note in notes]
        # litdata keys its cache of remote data by this value, and would put the time here: a
        # digest of the content does the same and keeps the index equal for equal data.
        digest = hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode())
        index = {
            "chunks": [note["entry"] for note in notes],
            "config": notes[0]["config"],
            "updated_at": digest.hexdigest()[:16],
        }
        write_text(self._folder / INDEX, json.dumps(index, sort_keys=True))
        return chunks, sha256_of(self._folder / INDEX)

    def _flush(self) -> None:
        # A chunk is one item that we fill ourselves. litdata's own way, an item a document, adds
        # four bytes for each and ends chunks where documents end. A writer of its own for each
        # chunk leaves nothing open between chunks.
        desk = self._journal / "writing"
        shutil.rmtree(desk, ignore_errors=True)
        writer = BinaryWriter(
            str(desk), chunk_size=1, item_loader=TokensLoader(), chunk_index=self._chunks
        )
        writer.add_item(0, self._buffer[: self._filled])
        writer.done()
        writer.merge()
        index: dict[str, Any] = json.loads((desk / INDEX).read_text())
        (entry,) = index["chunks"]
        written, path = desk / entry["filename"], self._folder / entry["filename"]
        sync(written)
        written.replace(path)
        file = {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        note = {"file": file, "entry": entry, "config": index["config"]}
        write_text(self._note(self._chunks), json.dumps(note))
        self._chunks += 1
        self._filled = 0

    def _note(self, number: int) -> Path:
        return self._journal / f"{number}.json"
