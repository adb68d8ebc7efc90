"""`NAME.part`: what has arrived of a file, held by one process at a time."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dualpath_cli.files import sync, write_text

_POLL_SECONDS = 1.0


class Part:
    """The beginning of one version of a file; `NAME.part.json` tells which version.

    `validator` is the ETag or Last-Modified of that version, `total` its length in bytes, each
    None where it is not known.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._notes = path.with_name(path.name + ".json")
        self.validator: str | None = None
        self.total: int | None = None
        if self.length:
            with suppress(OSError, ValueError, KeyError, TypeError):
                notes = json.loads(self._notes.read_text())
                self.validator, self.total = notes["validator"], notes["total"]

    @property
    def length(self) -> int:
        """Bytes that have arrived."""
        return os.fstat(self._descriptor).st_size

    def begin(self, validator: str | None, total: int | None) -> None:
        """Starts from nothing with another version."""
        self.discard()
        # Before the first byte: a part is never taken for one of another version.
        write_text(self._notes, json.dumps({"validator": validator, "total": total}))
        self.validator, self.total = validator, total

    def discard(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._notes.unlink(missing_ok=True)
        self.validator = self.total = None

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(self._descriptor, left, self.length) :]
        except OSError as error:  # a full disk, say: it comes without the name
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def sha256(self) -> str:
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def become(self, path: Path) -> None:
        """Gives the complete file its name."""
        os.fsync(self._descriptor)
        os.replace(self._path, path)
        self._notes.unlink(missing_ok=True)
        sync(path.parent)


@contextmanager
def only_holder(path: Path, sleep: Callable[[float], object]) -> Iterator[Part]:
    """Opens and locks a part, waiting while another process or thread holds it.

    Where nothing has arrived by the end, no file stays. The lock goes with the process.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _lock(descriptor, path):
                part = Part(path, descriptor)
                try:
                    yield part
                finally:
                    if not part.length and _is_at(descriptor, path):
                        part.discard()
                        path.unlink()
                return
        finally:
            # Closing alone would keep the lock while a forked child has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        sleep(_POLL_SECONDS)


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The last holder may have given the file its final name since it was opened.
    return _is_at(descriptor, path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
