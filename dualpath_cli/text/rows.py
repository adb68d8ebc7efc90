"""Rows of one file as a stream: plain or compressed bytes, JSON lines, Parquet records."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dualpath_cli.errors import UserError, did_you_mean

OnRead = Callable[[int], None]
"""Called with the number of bytes read from the disk since the last call."""

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Suffix of a compressed file -> Arrow's name of its codec."""

_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 256


class _CountedFile(io.RawIOBase):
    """A file that reports each read, so that progress is known in bytes on the disk."""

    def __init__(self, path: Path, on_read: OnRead) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed in close()
        self._on_read = on_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self._on_read(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_stream(path: Path, on_read: OnRead) -> io.BufferedReader:
    """Opens a file, decompressed by its suffix, as a stream of bytes.

    Arrow's decompressor, unlike others, reads on across members of a file and raises OSError
    where a file is cut off.
    """
    raw = _CountedFile(path, on_read)
    if codec := CODECS.get(path.suffix):
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
        return io.BufferedReader(stream, _BUFFER_BYTES)
    return io.BufferedReader(raw, _BUFFER_BYTES)


def read_text(path: Path, on_read: OnRead) -> str:
    """Returns the text of a whole UTF-8 file, without a byte order mark, line ends untouched.

    Raises UserError where the file is cut off or is not UTF-8.
    """
    try:
        with open_stream(path, on_read) as stream:
            return stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 at byte {error.start}; convert it first, e.g. with iconv"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def json_rows(path: Path, on_read: OnRead) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, object) for each line of a JSONL file; blank lines are passed over.

    `place` is "FILE line N", for messages. Raises UserError for a line that is not a JSON object
    and for a file that is cut off.
    """
    number = 0
    try:
        with open_stream(path, on_read) as stream:
            for number, line in enumerate(stream, 1):
                if line.isspace():
                    continue
                yield f"{path} line {number}", _json_object(line, f"{path} line {number}")
    except OSError as error:
        raise UserError(f"{path}: cannot be read after line {number}: {error}") from None


def _json_object(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise UserError(f"{place}: not UTF-8; convert the file first, e.g. with iconv") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{place}: not JSON ({error.msg} at character {error.pos}); "
            "a .jsonl file holds one JSON object a line"
        ) from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: a JSON {type(row).__name__}, not an object with fields")
    return row


def parquet_rows(
    path: Path, columns: list[str], on_read: OnRead
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, record) for each row of a Parquet file, reading only the named columns.

    Raises UserError for a file that is not Parquet or lacks a column.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [column for column in columns if column not in names]:
                raise UserError(
                    f"{path}: no column '{missing[0]}'{did_you_mean(missing[0], names)} "
                    f"(columns: {', '.join(names)})"
                )
            size, total, seen, reported = path.stat().st_size, file.metadata.num_rows, 0, 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for offset, row in enumerate(batch.to_pylist(), 1):
                    yield f"{path} row {seen + offset}", row
                seen += batch.num_rows
                # Arrow does not say where it reads: the share of rows stands for that of bytes.
                on_read(size * seen // total - reported)
                reported = size * seen // total
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be read as Parquet: {reason}") from None
