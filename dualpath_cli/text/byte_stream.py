"""The bytes of a file, plain or compressed, counted as they are read from the disk."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

OnRead = Callable[[int], None]
"""Called with the number of bytes read from the disk since the last call."""

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Suffix of a compressed file -> Arrow's name of its codec."""

BUFFER_BYTES = 1 << 20


def open_bytes(path: Path, on_read: OnRead) -> io.BufferedReader:
    """Opens a file for reading once; one with the name of a compressed file is decompressed.

    Raises OSError at a fault, after all bytes before it.
    """
    kind = _Decompressed if path.suffix in CODECS else _CountedFile
    return io.BufferedReader(kind(path, on_read), BUFFER_BYTES)


class _CountedFile(io.FileIO):
    """A file that reports each read, so that progress is known in bytes on the disk."""

    def __init__(self, path: Path, on_read: OnRead) -> None:
        super().__init__(path)
        self._on_read = on_read

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._on_read(count)
        return count

    # A FileIO's own would pass `readinto` by.
    read = io.RawIOBase.read  # type: ignore[assignment]
    readall = io.RawIOBase.readall


class _Decompressed(io.RawIOBase):
    """The content of a compressed file; all bytes before a fault come before its OSError."""

    def __init__(self, path: Path, on_read: OnRead) -> None:
        self._path = path
        self._stream = _decompress(path, on_read)
        self._given = 0
        self._fault: OSError | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._fault:
            raise self._fault
        try:
            count: int = self._stream.readinto(buffer)
        except OSError as fault:
            # Arrow does not say how much of the buffer it filled before.
            self._fault = fault
            rest = self._rest()
            if not rest:
                raise
            count = len(rest)
            buffer[:count] = rest
        self._given += count
        return count

    def _rest(self) -> bytes:
        """Returns what follows the bytes given out, up to the fault: less than was asked for."""
        rest = bytearray()
        with contextlib.suppress(OSError), _decompress(self._path, lambda count: None) as stream:
            left = self._given
            while left:
                left -= len(stream.read(min(left, BUFFER_BYTES)))
            while byte := stream.read(1):
                rest += byte
        return bytes(rest)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _decompress(path: Path, on_read: OnRead) -> pa.CompressedInputStream:
    # Arrow's decompressor, unlike others, reads on across members of a file and raises OSError
    # where a file is cut off.
    file = pa.PythonFile(_CountedFile(path, on_read), mode="r")
    return pa.CompressedInputStream(file, CODECS[path.suffix])
