"""Blocks of tokens of a data folder, on a disk or on S3, read by litdata one by one.

Chunks from S3 are fetched into the cache (`storage.cache_folder`) as they are read, the
next one ahead. A folder there is named by the location and the content of the data, so
replaced data never mix with the data before. All processes of a machine share the
chunks. Chunks of replaced data are deleted once the processes that read them have
ended.
"""

import hashlib
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import litdata
import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.base.locks import exclusive, keep_in_use, remove_unused
from dualpath_cli.data import storage
from dualpath_cli.data.manifest import (
    AGAIN,
    HEADER,
    INDEX,
    MANIFEST,
    Manifest,
    explaining_read_errors,
)
from dualpath_cli.data.order import SampleOrder
from dualpath_cli.data.verification import Chunks

Block = npt.NDArray[np.integer]  # token ids, (size,)

LEAST_FREE = 0.1
"""Part of the disk to leave free: with less, chunks that were read are deleted."""


class Blocks(Dataset[Block]):
    """A data folder's blocks of `size` tokens, in the order of its chunks.

    `verify` hashes a chunk as it is opened, unless the unchanged chunk was verified
    before.
    """

    def __init__(self, folder: str, size: int, *, verify: bool = True) -> None:
        manifest = Manifest.read(folder)
        self.chunk_blocks = manifest.chunk_blocks(size)
        self.names = [chunk.name for chunk in manifest.chunks]
        self.cache = ChunkCache(folder, manifest) if storage.is_remote(folder) else None

        place = Path(folder) if self.cache is None else self.cache.folder
        loader = TokensLoader(size, place, manifest, verify, self.cache)
        self._stream = litdata.StreamingDataset(
            str(place), item_loader=loader, shuffle=False
        )

        # Every rank sees all blocks: litdata would divide them among ranks.
        ranks = self._stream.distributed_env
        ranks.world_size = 1
        ranks.global_rank = 0
        ranks.num_nodes = 1

    def __len__(self) -> int:
        return sum(self.chunk_blocks)

    def __getitem__(self, index: int) -> Block:
        return self._stream[index]


class OrderedBlocks(Dataset[Block]):
    """Blocks by their position in the order of training, which has no end."""

    def __init__(self, blocks: Blocks, seed: int) -> None:
        self.blocks = blocks
        self.order = SampleOrder(blocks.chunk_blocks, seed)
        self._chunk: int | None = None

    def __getitem__(self, position: int) -> Block:
        """The block at a position.

        On the first block of a chunk from S3 the next chunk is fetched.
        """
        chunk, block = self.order.at(position)
        if self.blocks.cache is not None and chunk != self._chunk:
            self._chunk = chunk
            following = self.order.next_chunk(position)
            names = self.blocks.names
            self.blocks.cache.move_on(names[chunk], names[following])
        return self.blocks[block]


class ChunkCache:
    """The folder on this disk with the chunks of a folder on S3."""

    def __init__(self, url: str, manifest: Manifest) -> None:
        """Makes the folder with its index; deletes unused chunks of replaced data.

        A run that began before the data were replaced goes on with its own chunks.
        """
        self.url = url.rstrip("/")
        self._sha256 = {chunk.name: chunk.sha256 for chunk in manifest.chunks}
        self._read: list[str] = []  # by this process, the latest last

        # The index as well: equal tokens may lie in files of other names.
        content = f"{manifest.fingerprint}\n{manifest.index_sha256}"
        place = storage.cache_folder() / "chunks" / _short_hash(self.url)
        self.folder = place / _short_hash(content)

        keep_in_use(self.folder)

        for name in (MANIFEST, INDEX):
            if not (self.folder / name).exists():
                with replacing(self.folder / name, shared=True) as partial:
                    shutil.copyfile(storage.local_copy(f"{self.url}/{name}"), partial)

        for other in place.iterdir():
            if other.is_dir() and other != self.folder:
                remove_unused(other)

    def fetch(self, name: str) -> None:
        """Downloads a chunk unless it is here.

        One process downloads at a time, the others wait.
        """
        path = self.folder / name
        if path.exists():
            return

        with exclusive(Path(f"{path}.lock"), path, wait=True):
            if not path.exists():
                storage.download(f"{self.url}/{name}", path, self._sha256[name])

    def move_on(self, name: str, then: str) -> None:
        """Fetches the chunk `then` in the background, while this process reads `name`.

        On a full disk this deletes the chunk read before the last one.
        """
        self._read = [*self._read[-2:], name]
        if len(self._read) == 3:
            # A rank that lags so far behind, which is rare, fetches the chunk again.
            oldest, last, _ = self._read
            if oldest not in (last, name, then) and self._disk_is_full():
                (self.folder / oldest).unlink(missing_ok=True)

        threading.Thread(target=self._fetch_ahead, args=(then,), daemon=True).start()

    def _disk_is_full(self) -> bool:
        usage = shutil.disk_usage(self.folder)
        return usage.free < LEAST_FREE * usage.total

    def _fetch_ahead(self, name: str) -> None:
        with suppress(Exception):  # raised again when the chunk is read
            self.fetch(name)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TokensLoader(litdata.TokensLoader):
    """Reads blocks from the file, and verifies a chunk that is new or has changed.

    litdata finds a loader by the name of its class.
    """

    # litdata's own loader maps chunks into memory: if the file is cut, reading the map
    # kills the process silently.

    def __init__(
        self,
        block_size: int,
        folder: Path,
        manifest: Manifest,
        verify: bool,
        cache: ChunkCache | None,
    ) -> None:
        """`folder` has the chunks on this disk; a `cache` fetches them as needed."""
        super().__init__(block_size)
        self._token = np.dtype(manifest.dtype)
        self._bytes = block_size * self._token.itemsize
        self._cache = cache
        self._way_out = (
            f"delete '{folder}', and it is fetched again" if cache else AGAIN
        )
        self._verified = Chunks(folder, manifest, self._way_out) if verify else None

    def pre_load_chunk(self, chunk_index: int, chunk_filepath: str) -> None:
        """Maps nothing."""

    def load_item_from_chunk(
        self,
        index: int,
        chunk_index: int,
        chunk_filepath: str,
        begin: int,
        filesize_bytes: int,
    ) -> Block:
        name = os.path.basename(chunk_filepath)
        offset = HEADER + (index - begin) * self._bytes
        with (
            explaining_read_errors(chunk_filepath),
            self._open(chunk_filepath, name) as file,
        ):
            if self._verified:
                self._verified.check(name, file)
            content = os.pread(file.fileno(), self._bytes, offset)

        if len(content) < self._bytes:
            raise UserError(
                f"{chunk_filepath}: was cut while it was read; {self._way_out}"
            )
        return np.frombuffer(content, self._token)

    def _open(self, path: str, name: str) -> BinaryIO:
        """Opens a chunk; one from S3 is fetched before."""
        if self._cache is not None:
            # Again if another process deletes it first.
            for _ in range(10):
                self._cache.fetch(name)
                with suppress(FileNotFoundError):
                    return open(path, "rb", buffering=0)
        return open(path, "rb", buffering=0)
