"""Rows of one file as a stream: plain or compressed bytes, JSON lines, Parquet records."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dualpath_cli.errors import UserError, did_you_mean

OnRead = Callable[[int], None]
"""Called with the number of bytes read from the disk since the last call."""

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Suffix of a compressed file -> Arrow's name of its codec."""

KINDS = (".txt", ".jsonl", ".parquet")
"""What a file may hold: one text, a JSON object a line, records."""

_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 256


class BadRow(ValueError):
    """One row that is no document; the message is the reason, without the place."""


class UnreadableFile(UserError):
    """A file that cannot be read to its end; rows before the fault have been given out."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file, not parsed yet: cheap to hand to another process."""

    path: str
    kind: str
    """One of `KINDS`."""
    first: int
    """Number of the first line or record in its file, from 1."""
    content: "list[bytes] | pa.RecordBatch"
    """Lines; one element, the whole text, of a .txt file; or records."""
    bytes: int
    """Size of the content, uncompressed."""

    def parsed(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        """Yields (number, object or what is wrong with it) for each row but blank lines."""
        if isinstance(self.content, pa.RecordBatch):
            yield from enumerate(self.content.to_pylist(), self.first)
            return
        parse = _text_object if self.kind == ".txt" else _json_object
        for number, line in enumerate(self.content, self.first):
            if self.kind == ".jsonl" and line.isspace():
                continue
            try:
                yield number, parse(line)
            except BadRow as problem:
                yield number, problem

    def place(self, number: int) -> str:
        """Returns where a row is, for messages: FILE, FILE line N or FILE row N."""
        unit = {".txt": "", ".jsonl": f" line {number}", ".parquet": f" row {number}"}
        return self.path + unit[self.kind]

    def raw(self, number: int) -> str:
        """Returns a row as it stands in the file; bytes that are not UTF-8 as backslash escapes."""
        offset = number - self.first
        if isinstance(self.content, pa.RecordBatch):
            return json.dumps(self.content.slice(offset, 1).to_pylist()[0], default=str)
        return self.content[offset].decode("utf-8", errors="backslashreplace").rstrip("\r\n")


def kind_of(path: Path) -> str | None:
    """Returns which of `KINDS` a file is by its name, whether compressed or not, or None."""
    if path.suffix == ".parquet":
        return ".parquet"
    inner = Path(path.stem).suffix if path.suffix in CODECS else path.suffix
    return inner if inner in (".txt", ".jsonl") else None


def read_rows(
    path: Path,
    fields: Sequence[str],
    optional: Sequence[str],
    on_read: OnRead,
    size: int,
) -> Iterator[Rows]:
    """Yields a file's rows, about `size` bytes at a time; a longer row goes alone.

    Of a Parquet file only the columns `fields`, and those of `optional` that are there, are read.
    The division into batches depends on the file and `size` alone. Raises UnreadableFile, after
    the rows before the fault, where the file is cut off, damaged or lacks a column.
    """
    match kind_of(path):
        case ".parquet":
            yield from _parquet(path, fields, optional, on_read, size)
        case ".txt":
            text = _whole(path, on_read)
            yield Rows(str(path), ".txt", 1, [text], len(text))
        case _:
            yield from _lines(path, on_read, size)


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


def _open(path: Path, on_read: OnRead) -> io.BufferedReader:
    # Arrow's decompressor, unlike others, reads on across members of a file and raises OSError
    # where a file is cut off.
    raw = _CountedFile(path, on_read)
    if codec := CODECS.get(path.suffix):
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)
        return io.BufferedReader(stream, _BUFFER_BYTES)
    return io.BufferedReader(raw, _BUFFER_BYTES)


def _whole(path: Path, on_read: OnRead) -> bytes:
    try:
        with _open(path, on_read) as stream:
            return stream.read()
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read: {error}") from None


def _lines(path: Path, on_read: OnRead, size: int) -> Iterator[Rows]:
    lines: list[bytes] = []
    held = number = 0
    fault: OSError | None = None
    try:
        with _open(path, on_read) as stream:
            for number, line in enumerate(stream, 1):
                lines.append(line)
                held += len(line)
                if held >= size:
                    yield Rows(str(path), ".jsonl", number + 1 - len(lines), lines, held)
                    lines, held = [], 0
    except OSError as error:
        fault = error
    if lines:
        yield Rows(str(path), ".jsonl", number + 1 - len(lines), lines, held)
    if fault:
        raise UnreadableFile(f"{path}: cannot be read after line {number}: {fault}")


def _parquet(
    path: Path, fields: Sequence[str], optional: Sequence[str], on_read: OnRead, size: int
) -> Iterator[Rows]:
    seen = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [field for field in fields if field not in names]:
                raise UnreadableFile(
                    f"{path}: no column '{missing[0]}'{did_you_mean(missing[0], names)} "
                    f"(columns: {', '.join(names)})"
                )
            columns = [*fields, *(name for name in optional if name in names)]
            on_disk, total, reported = path.stat().st_size, file.metadata.num_rows, 0
            held: list[pa.RecordBatch] = []
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                held.append(batch)
                # Arrow does not say where it reads: the share of rows stands for that of bytes.
                done = seen + sum(batch.num_rows for batch in held)
                on_read(on_disk * done // total - reported)
                reported = on_disk * done // total
                if sum(batch.nbytes for batch in held) >= size:
                    yield _records(path, seen, held)
                    seen, held = done, []
            if held:
                yield _records(path, seen, held)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        after = f" after row {seen}" if seen else ""
        raise UnreadableFile(f"{path}: cannot be read as Parquet{after}: {reason}") from None


def _records(path: Path, seen: int, held: list[pa.RecordBatch]) -> Rows:
    batch = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
    return Rows(str(path), ".parquet", seen + 1, batch, batch.nbytes)


def _text_object(content: bytes) -> dict[str, Any]:
    try:
        return {"text": content.decode("utf-8-sig")}
    except UnicodeDecodeError as error:
        raise BadRow(
            f"not UTF-8 at byte {error.start}; convert it first, e.g. with iconv"
        ) from None


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise BadRow("not UTF-8; convert the file first, e.g. with iconv") from None
    except json.JSONDecodeError as error:
        raise BadRow(
            f"not JSON ({error.msg} at character {error.pos}); "
            "a .jsonl file holds one JSON object a line"
        ) from None
    except RecursionError:
        raise BadRow("not JSON that can be read: nested too deeply") from None
    if not isinstance(row, dict):
        raise BadRow(f"a JSON {type(row).__name__}, not an object with fields")
    return row
