"""Verification: are the chunks on this disk, byte for byte, those that were prepared?

A chunk is read once on a machine. Then a file in `verified/` of the cache
(`storage.cache`) holds the size, inode and time of change of each chunk of a data
folder. While these stay the same, the chunk is not read again. Threads read in
parallel: hashlib and numpy release Python's lock.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_bytes, write_text
from dualpath_cli.base.locks import exclusive
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import cores
from dualpath_cli.data.manifest import AGAIN, HEADER, Manifest, StoredFile, readable
from dualpath_cli.data.storage import cache

Verify = Literal["never", "first", "always"]

Stamp = tuple[int, int, int]
"""Size, inode and time of change (ctime, which no program can set back, in ns) of a
file."""

# bytes in memory at a time, of each thread; a multiple of every token's size
_SLICE = 1 << 20


class Chunks:
    """The chunks of a data folder on a disk, and which of them are known to be as
    prepared."""

    def __init__(self, folder: Path, manifest: Manifest, way_out: str = AGAIN) -> None:
        """Recalls earlier verifications; `way_out` ends messages about a damaged
        chunk."""
        self.folder = folder
        self._manifest = manifest
        self._way_out = way_out
        self._stored = {chunk.name: chunk for chunk in manifest.chunks}
        self._memory = _memory_of(folder)
        self._known: dict[str, Stamp] = {}
        # A chunk whose entry cannot be read is verified again.
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            noted = json.loads(read_bytes(self._memory))["chunks"]
            self._known = {
                name: (size, inode, changed)
                for name, (size, inode, changed, sha256) in noted.items()
                if name in self._stored and self._stored[name].sha256 == sha256
            }

    def check(self, name: str, file: BinaryIO) -> None:
        """Checks that an open chunk is as prepared; a known chunk is not read."""
        if self._known.get(name) != stamp_of(file):
            self._known[name] = self._read(self._stored[name], file)

    def verify(self) -> None:
        """Reads every chunk that is not known, and remembers those that are as
        prepared."""
        unknown = [
            chunk for chunk in self._manifest.chunks if not self._is_known(chunk)
        ]
        if not unknown:
            return

        from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console

        total = sum(chunk.bytes for chunk in unknown)
        console, title = plain_console(stderr=True), f"verifying '{self.folder}'"
        try:
            with (
                Progress(
                    console, title, bytes_of_bytes, total, transient=True
                ) as progress,
                # more threads read no faster
                ThreadPoolExecutor(min(8, cores())) as pool,
            ):
                for chunk, stamp in zip(
                    unknown, pool.map(self._open, unknown), strict=True
                ):
                    self._known[chunk.name] = stamp
                    progress.advance(chunk.bytes)
        finally:  # also after Ctrl-C
            self._remember()

    def forget(self) -> None:
        self._known = {}

    def _is_known(self, chunk: StoredFile) -> bool:
        path = self.folder / chunk.name
        with readable(path), open(path, "rb") as file:
            return self._known.get(chunk.name) == stamp_of(file)

    def _open(self, chunk: StoredFile) -> Stamp:
        path = self.folder / chunk.name
        with readable(path), open(path, "rb") as file:
            return self._read(chunk, file)

    def _read(self, chunk: StoredFile, file: BinaryIO) -> Stamp:
        """Returns the stamp of a chunk that is as prepared."""
        path, before = self.folder / chunk.name, stamp_of(file)
        with readable(path):
            digest, highest = _digest_and_highest_id(file, self._manifest.dtype)
        if stamp_of(file) != before:
            raise UserError(
                f"{path}: is written to while it is read; wait until that has ended"
            )
        if digest != chunk.sha256:
            difference = "changed since it was prepared (its sha256 differs)"
            raise UserError(f"{path}: {difference}; {self._way_out}")
        if highest >= self._manifest.vocab_size:
            raise UserError(
                f"{path}: holds the token id {highest}, beyond the vocabulary of "
                f"{self._manifest.vocab_size} entries: its preparation went wrong; "
                f"{AGAIN}"
            )
        return before

    def _remember(self) -> None:
        noted = {
            name: [*stamp, self._stored[name].sha256]
            for name, stamp in sorted(self._known.items())
        }
        content = {"folder": os.path.realpath(self.folder), "chunks": noted}
        try:
            write_text(self._memory, json.dumps(content, indent=1))
        except OSError as error:
            say(
                f"{self._memory} cannot be written ({error.strerror}): the data will "
                "be verified again at each start; set DUALPATH_CACHE to a folder that "
                "can be"
            )


def verify_chunks(folder: Path, manifest: Manifest, how: Verify) -> None:
    """Verifies a data folder on a disk, once for all processes of this machine.

    Of ranks that start together the first one to come reads the chunks; the others find
    these remembered.
    """
    if how == "never":
        return
    memory = _memory_of(folder)
    with ExitStack() as held:
        # where nothing can be remembered, each process reads for itself
        with suppress(OSError):
            held.enter_context(exclusive(Path(f"{memory}.lock"), memory, wait=True))
        chunks = Chunks(folder, manifest)
        # The first rank of the node, by torchrun and Lightning, or by Slurm.
        first = all(
            os.environ.get(rank, "0") == "0" for rank in ("LOCAL_RANK", "SLURM_LOCALID")
        )
        if how == "always" and first:
            chunks.forget()
        chunks.verify()


def stamp_of(file: BinaryIO) -> Stamp:
    """Returns numbers that change with an open file's content."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_ino, status.st_ctime_ns


def _memory_of(folder: Path) -> Path:
    key = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return cache() / "verified" / f"{key}.json"


def _digest_and_highest_id(file: BinaryIO, dtype: str) -> tuple[str, int]:
    """Reads a chunk to its end; returns its sha256 and its largest id."""
    width, highest = np.dtype(dtype).itemsize, 0
    digest = hashlib.sha256(file.read(HEADER))
    while block := file.read(_SLICE):
        digest.update(block)
        if count := len(block) // width:
            highest = max(highest, int(np.frombuffer(block, dtype, count).max()))
    return digest.hexdigest(), highest
