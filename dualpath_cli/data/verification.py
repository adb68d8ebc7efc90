"""Verification: are the chunks on this disk, byte for byte, those that were prepared?

A chunk is read once on a machine. Then a file in `verified/` of the cache
(`storage.cache_folder`) notes the size, inode and time of change of each chunk of a
data folder. While these stay the same, the chunk is not read again. Threads read in
parallel: hashlib and numpy release Python's lock.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_bytes, write_text
from dualpath_cli.base.locks import exclusive
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import cores, is_first_of_node
from dualpath_cli.data.manifest import (
    AGAIN,
    HEADER,
    Manifest,
    StoredFile,
    explaining_read_errors,
)
from dualpath_cli.data.storage import cache_folder

Verify = Literal["never", "first", "always"]

FileStamp = tuple[int, int, int]
"""Size, inode and time of change (ctime, which no program can set back, in ns) of a
file."""

_SLICE = 1 << 20
"""Bytes in memory at a time, of each thread; a multiple of every token's size."""


class Chunks:
    """The chunks of a data folder on a disk, and those known to be as prepared."""

    def __init__(self, folder: Path, manifest: Manifest, way_out: str = AGAIN) -> None:
        """Recalls earlier verifications.

        `way_out` ends messages about a damaged chunk.
        """
        self.folder = folder
        self._manifest = manifest
        self._way_out = way_out
        self._stored = {chunk.name: chunk for chunk in manifest.chunks}
        self._memory = _memory_of(folder)
        self._known: dict[str, FileStamp] = {}

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
        """Reads every chunk that is not known, and remembers those as prepared."""
        unknown = []
        for chunk in self._manifest.chunks:
            with self._open(chunk) as file:
                if self._known.get(chunk.name) != stamp_of(file):
                    unknown.append(chunk)
        if not unknown:
            return

        from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console

        console = plain_console(goes_on=True, stderr=True)
        title = f"verifying '{self.folder}'"
        total = sum(chunk.bytes for chunk in unknown)
        progress = Progress(console, title, bytes_of_bytes, total, transient=True)
        # More threads read no faster.
        pool = ThreadPoolExecutor(min(8, cores()))
        try:
            with progress, pool:
                stamps = pool.map(self._open_and_read, unknown)
                for chunk, stamp in zip(unknown, stamps, strict=True):
                    self._known[chunk.name] = stamp
                    progress.advance(chunk.bytes)
        finally:  # also after Ctrl-C
            self._remember()

    def forget(self) -> None:
        """Forgets earlier verifications."""
        self._known = {}

    @contextmanager
    def _open(self, chunk: StoredFile) -> Iterator[BinaryIO]:
        path = self.folder / chunk.name
        with explaining_read_errors(path), open(path, "rb") as file:
            yield file

    def _open_and_read(self, chunk: StoredFile) -> FileStamp:
        with self._open(chunk) as file:
            return self._read(chunk, file)

    def _read(self, chunk: StoredFile, file: BinaryIO) -> FileStamp:
        """Returns the stamp of a chunk that is as prepared."""
        path = self.folder / chunk.name
        before = stamp_of(file)
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
    """Verifies a data folder on a disk, once for all processes of this machine."""
    if how == "never":
        return

    # Of ranks that start together the first one to come reads the chunks; the others
    # find these remembered.
    memory = _memory_of(folder)
    with ExitStack() as locks:
        # where nothing can be remembered, each process reads for itself
        with suppress(OSError):
            locks.enter_context(exclusive(Path(f"{memory}.lock"), memory, wait=True))

        chunks = Chunks(folder, manifest)
        if how == "always" and is_first_of_node():
            chunks.forget()
        chunks.verify()


def stamp_of(file: BinaryIO) -> FileStamp:
    """Returns numbers that change with an open file's content."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_ino, status.st_ctime_ns


def _memory_of(folder: Path) -> Path:
    """The file that remembers the verified chunks of a data folder."""
    real = os.fsencode(os.path.realpath(folder))
    key = hashlib.sha256(real).hexdigest()[:16]
    return cache_folder() / "verified" / f"{key}.json"


def _digest_and_highest_id(file: BinaryIO, dtype: str) -> tuple[str, int]:
    """Reads a chunk to its end; returns its sha256 and its largest id."""
    width = np.dtype(dtype).itemsize
    digest = hashlib.sha256(file.read(HEADER))
    highest = 0
    while block := file.read(_SLICE):
        digest.update(block)
        count = len(block) // width
        if count:
            highest = max(highest, int(np.frombuffer(block, dtype, count).max()))
    return digest.hexdigest(), highest
