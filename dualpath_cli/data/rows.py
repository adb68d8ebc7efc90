"""Rows of one file as a stream: plain or compressed bytes, JSON lines, Parquet records."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dualpath_cli.base.errors import UserError, did_you_mean

TEXTS = (".txt", ".md")  # files that are one text
JSON_LINES = (".jsonl", ".ndjson")
KINDS = (".txt", ".jsonl", ".parquet")  # kinds of files: one text, a JSON object a line, records
_NO_VALUE = (ValueError, OverflowError, LookupError, pa.ArrowException)
"""Errors of Arrow for a value that Python cannot hold."""
OnRead = Callable[[int], None]
"""Called with the number of bytes read from the disk since the last call."""
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}  # Arrow's names, by suffix
ENDINGS = (*CODECS, *TEXTS, *JSON_LINES, ".parquet")  # of names that say what a file holds
BUFFER_BYTES = 1 << 20


def open_bytes(path: Path, on_read: OnRead) -> io.BufferedReader:
    """Opens a file, decompressed by its name; OSError at a fault comes after all bytes before."""
    kind = _Decompressed if suffixes(path)[1] else _CountedFile
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
        self._stream = decompress(path, suffixes(path)[1], on_read)
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
        rest, codec = bytearray(), suffixes(self._path)[1]
        with contextlib.suppress(OSError), decompress(self._path, codec) as stream:
            left = self._given
            while left:
                left -= len(stream.read(min(left, BUFFER_BYTES)))
            while byte := stream.read(1):
                rest += byte
        return bytes(rest)

    def close(self) -> None:
        self._stream.close()
        super().close()


def decompress(
    path: Path, codec: str, on_read: OnRead = lambda count: None
) -> pa.CompressedInputStream:
    """Opens the content of a file that is compressed as files are whose names end with `codec`."""
    # Arrow's decompressor, unlike others, reads on across members of a file and raises OSError
    # where a file is cut off.
    file = pa.PythonFile(_CountedFile(path, on_read), mode="r")
    return pa.CompressedInputStream(file, CODECS[codec])


class BadRow(ValueError):
    """One row that is no document; the message is the reason, without the place."""


class UnreadableFile(UserError):
    """A file that cannot be read to its end; rows before the fault have been given out."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file, not parsed yet: cheap to hand to another process."""

    path: str
    kind: str  # one of `KINDS`
    first: int  # number of the first line or record in its file, from 1
    content: "list[bytes] | pa.RecordBatch"
    """Lines; one element, the whole text, of a .txt file; or records."""
    bytes: int  # size of the content, uncompressed
    optional: tuple[str, ...] = ()
    """Columns of records whose values, where Python cannot hold them, are None."""

    def parsed(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        """Yields (number, object or its fault) for each row but blank lines."""
        if isinstance(self.content, pa.RecordBatch):
            try:
                records = self.content.to_pylist()
            except _NO_VALUE:
                slices = (self.content.slice(n, 1) for n in range(self.content.num_rows))
                records = [_record(record, self.optional) for record in slices]
            yield from enumerate(records, self.first)
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
        """Returns a row as in the file, a record as JSON, bytes that are not UTF-8 as escapes."""
        offset = number - self.first
        if isinstance(self.content, pa.RecordBatch):
            record = self.content.slice(offset, 1)
            row = {name: _shown(values[0]) for name, values in _columns(record)}
            return json.dumps(row, default=str)
        return self.content[offset].decode("utf-8", errors="backslashreplace").rstrip("\r\n")


def suffixes(path: Path) -> tuple[str, str]:
    """Returns the ending of a file's name and that of its codec, "" without one, in lower case."""
    name = Path(path.name.lower())
    return (Path(name.stem).suffix, name.suffix) if name.suffix in CODECS else (name.suffix, "")


def is_known(path: Path) -> bool:
    """Whether a file's name says what it holds: `.txt`, `.md` or `.jsonl`, maybe compressed, ..."""
    return suffixes(path)[0] in (*TEXTS, *JSON_LINES) or suffixes(path) == (".parquet", "")


def kind_of(path: Path) -> str:
    """Returns which of `KINDS` a file is by its name; an unknown one is a text."""
    if suffixes(path) == (".parquet", ""):
        return ".parquet"
    return ".jsonl" if suffixes(path)[0] in JSON_LINES else ".txt"


def read_rows(
    path: Path,
    fields: Sequence[str],
    optional: Sequence[str],
    on_read: OnRead,
    size: int,
    advice: str = "",
) -> Iterator[Rows]:
    """Yields a file's rows, about `size` bytes at a time; a longer row goes alone.

    Of a Parquet file only the columns `fields`, and those of `optional` that are there, are read.
    The division into batches depends on the file and `size` alone. Raises UnreadableFile, after
    the rows before the fault, where the file is cut off, damaged or lacks a column; `advice` ends
    the message then.
    """
    match kind_of(path):
        case ".parquet":
            yield from _parquet(path, fields, optional, on_read, size, advice)
        case ".jsonl":
            yield from _lines(path, on_read, size)
        case _:
            try:
                with open_bytes(path, on_read) as stream:
                    text = stream.read()
            except OSError as error:
                raise UnreadableFile(f"{path}: cannot be read: {error}") from None
            yield Rows(str(path), ".txt", 1, [text], len(text))


def _lines(path: Path, on_read: OnRead, size: int) -> Iterator[Rows]:
    lines: list[bytes] = []
    held = number = 0
    fault: OSError | None = None
    try:
        with open_bytes(path, on_read) as stream:
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
    path: Path,
    fields: Sequence[str],
    optional: Sequence[str],
    on_read: OnRead,
    size: int,
    advice: str,
) -> Iterator[Rows]:
    held: list[pa.RecordBatch] = []
    held_bytes = given = 0
    fault: Exception | None = None
    extra: tuple[str, ...] = ()

    def rows() -> Iterator[Rows]:
        nonlocal given
        for batch in pa.Table.from_batches(held).combine_chunks().to_batches():
            yield Rows(str(path), ".parquet", given + 1, batch, batch.nbytes, extra)
            given += batch.num_rows

    try:
        # By default Arrow holds a whole row group as stored on the disk.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            names = file.schema_arrow.names
            if missing := [field for field in fields if field not in names]:
                raise UnreadableFile(
                    f"{path}: no column '{missing[0]}'{did_you_mean(missing[0], names)} "
                    f"(columns: {', '.join(names)}){advice}"
                )
            extra = tuple(name for name in optional if name in names and name not in fields)
            on_disk, total, read, reported = path.stat().st_size, file.metadata.num_rows, 0, 0
            batch_rows = _batch_rows(file.metadata, size)
            for batch in file.iter_batches(batch_size=batch_rows, columns=[*fields, *extra]):
                # Arrow does not report its position: the share of rows approximates that of bytes.
                read += batch.num_rows
                if read > total:
                    raise pa.ArrowInvalid(f"its footer counts {total:,} rows, and there are more")
                on_read(on_disk * read // total - reported)
                reported = on_disk * read // total
                for records in _halved(batch, size):
                    held.append(records)
                    held_bytes += records.nbytes
                    if held_bytes >= size:
                        yield from rows()
                        held, held_bytes = [], 0
    except (pa.ArrowException, OSError) as error:
        fault = error
    if held:
        yield from rows()
    if fault:
        reason = str(fault).splitlines()[0]
        after = f" after row {given}" if given else ""
        raise UnreadableFile(f"{path}: cannot be read as Parquet{after}: {reason}")


def _batch_rows(metadata: pq.FileMetaData, size: int) -> int:
    """Returns how many records are about `size` bytes in the row group with the longest ones."""
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    longest = max((g.total_byte_size // g.num_rows for g in groups if g.num_rows), default=0)
    return min(max(size // max(longest, 1), 1), 256)


def _halved(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yields halves of halves until each has at most `size` bytes or one record."""
    if batch.nbytes <= size or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    for half in (batch.slice(0, middle), batch.slice(middle)):
        # A copy: a slice would go to another process together with its whole array.
        yield from _halved(half.take(pa.array(range(half.num_rows))), size)


def _columns(record: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    return zip(record.schema.names, record.columns, strict=True)


def _record(record: pa.RecordBatch, optional: Sequence[str]) -> dict[str, Any] | BadRow:
    row: dict[str, Any] = {}
    for name, values in _columns(record):
        try:
            row[name] = values[0].as_py()
        except _NO_VALUE as error:
            if name not in optional:
                utf8 = isinstance(error, UnicodeDecodeError)
                reason = "not UTF-8" if utf8 else f"cannot be read: {str(error).splitlines()[0]}"
                return BadRow(f"column '{name}': {reason}")
            row[name] = None
    return row


def _shown(value: pa.Scalar) -> Any:
    """Returns a value as Python holds it, or else as a string."""
    for kind in (None, pa.string(), pa.binary()):
        with contextlib.suppress(*_NO_VALUE):
            shown = (value.cast(kind) if kind else value).as_py()
            return shown.decode(errors="backslashreplace") if kind == pa.binary() else shown
    return f"a value of type {value.type}"


def _text_object(content: bytes) -> dict[str, Any]:
    try:
        return {"text": content.decode("utf-8-sig")}
    except UnicodeDecodeError as error:
        raise BadRow(
            f"not UTF-8 at byte {error.start}; convert it first, e.g. with iconv"
        ) from None


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        if b"\0" in line:  # json would take most lines of UTF-16 for rows, but not all of them
            raise UnicodeError
        row = json.loads(line)
    except UnicodeError:
        reason = "not UTF-8; convert the file first, e.g. with iconv"
    except json.JSONDecodeError as error:
        place = f"{error.msg} at character {error.pos}"
        reason = f"not JSON ({place}); a .jsonl file holds one JSON object a line"
    except RecursionError:
        reason = "not JSON that can be read: nested too deeply"
    except ValueError:
        reason = "not JSON that can be read: a number with too many digits"
    else:
        if isinstance(row, dict):
            return row
        reason = f"a JSON {type(row).__name__}, not an object with fields"
    raise BadRow(reason)
