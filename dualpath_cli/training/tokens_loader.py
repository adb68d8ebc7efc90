"""TokensLoader: litdata's, with reads that find a chunk that was cut, changed or lost meanwhile."""

import os
from pathlib import Path

import litdata
import numpy as np
import numpy.typing as npt

from dualpath_cli.errors import UserError
from dualpath_cli.text.manifest import AGAIN, HEADER, Manifest, readable
from dualpath_cli.text.verification import Chunks


class TokensLoader(litdata.TokensLoader):
    """Reads each block from the file, and verifies a chunk when it is opened first or has changed.

    litdata maps chunks into memory: a process that reads such a map beyond the end of a file that
    was cut meanwhile is killed, without a word. It looks the loader up by the name of this class.
    """

    def __init__(
        self,
        block_size: int,
        folder: Path,
        manifest: Manifest,
        verify: bool,
        way_out: str = AGAIN,
    ) -> None:
        """`folder` is where chunks are on this disk; `verify` says whether they are verified."""
        super().__init__(block_size)
        self._block = block_size
        self._token = np.dtype(manifest.dtype)
        self._verified = Chunks(folder, manifest, way_out) if verify else None
        self._way_out = way_out

    def pre_load_chunk(self, chunk_index: int, chunk_filepath: str) -> None:
        """Maps nothing."""

    def load_item_from_chunk(
        self, index: int, chunk_index: int, chunk_filepath: str, begin: int, filesize_bytes: int
    ) -> npt.NDArray[np.integer]:
        """Reads one block. Raises UserError where the chunk is not what was prepared."""
        if self._chunk_ready_provider is not None and not os.path.exists(chunk_filepath):
            self._wait_until_chunk_ready(chunk_index, chunk_filepath, filesize_bytes)
        size = self._block * self._token.itemsize
        with readable(chunk_filepath), open(chunk_filepath, "rb", buffering=0) as file:
            if self._verified:
                self._verified.check(os.path.basename(chunk_filepath), file)
            content = os.pread(file.fileno(), size, HEADER + (index - begin) * size)
        if len(content) < size:
            raise UserError(f"{chunk_filepath}: was cut while it was read; {self._way_out}")
        return np.frombuffer(content, self._token)
