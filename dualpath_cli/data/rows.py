"""Rows of one file, read a few megabytes at a time: texts, JSON lines, Parquet.

A small compressed file may stand for any number of bytes. No more than `MOST_BYTES` of
one row are read, and no more than `_BATCH_BYTES` of several rows at a time.
"""

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dualpath_cli.base.errors import UserError, did_you_mean, listed
from dualpath_cli.base.files import MOST_BYTES
from dualpath_cli.base.pointers import refuse_pointer

TEXTS = (".txt", ".md")  # files that are one text
JSON_LINES = (".jsonl", ".ndjson")
KINDS = (".txt", ".jsonl", ".parquet")
"""Kinds of files: one text, a JSON object a line, records."""
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}  # Arrow's names, by suffix
ENDINGS = (*CODECS, *TEXTS, *JSON_LINES, ".parquet")
"""Endings of names that say what a file holds."""

OnRead = Callable[[int], None]
"""Called with the number of bytes read from the disk since the last call."""

DAMAGED = (pa.ArrowException, OSError, EOFError, zlib.error)
"""Errors of a file that is cut off or damaged."""
_NO_VALUE = (ValueError, OverflowError, LookupError, pa.ArrowException)
"""Errors of Arrow for a value that Python cannot hold."""

_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 1 << 28  # decoded records of Parquet in memory


class BadRow(ValueError):
    """A row that is not a document; the message is the reason, without the place."""


class UnreadableFile(UserError):
    """A file that is damaged or cut off; rows before the damage were given out."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file, not parsed yet."""

    path: str
    kind: str  # one of `KINDS`
    first: int  # number of the first line or record in its file, from 1
    content: "list[bytes] | pa.RecordBatch"
    """Lines; one element, the whole text, of a .txt file; or records."""

    def parsed(self) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
        """Yields (number, object or fault) for each row except blank lines."""
        if isinstance(self.content, pa.RecordBatch):
            yield from enumerate(_parse_records(self.content), self.first)
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
        """Returns a row as in the file.

        A record is JSON; bytes that are not UTF-8 are escapes.
        """
        offset = number - self.first
        if isinstance(self.content, pa.RecordBatch):
            record = self.content.slice(offset, 1)
            row = _parse_record(record)
            if isinstance(row, BadRow):
                return str(record)
            return json.dumps(row, default=str)

        line = self.content[offset].decode("utf-8", errors="backslashreplace")
        return line.rstrip("\r\n")


def suffixes(path: Path) -> tuple[str, str]:
    """Returns the ending of a file's name and that of its codec, in lower case.

    Either is "" if the name lacks it.
    """
    name = Path(path.name.lower())
    if name.suffix in CODECS:
        return Path(name.stem).suffix, name.suffix
    return name.suffix, ""


def is_known(path: Path) -> bool:
    """Whether the ending of a file's name is one of `ENDINGS`."""
    return kind_of(path) != ".txt" or suffixes(path)[0] in TEXTS


def kind_of(path: Path) -> str:
    """Returns which of `KINDS` a file is by its name; of unknown ending a text."""
    ending, codec = suffixes(path)
    if ending == ".parquet" and not codec:
        return ".parquet"
    return ".jsonl" if ending in JSON_LINES else ".txt"


def read_rows(
    path: Path,
    fields: Sequence[str],
    optional: Sequence[str],
    on_read: OnRead,
    size: int,
) -> Iterator[Rows]:
    """Yields a file's rows, about `size` bytes at a time; a longer row goes by itself.

    The columns `fields` of a Parquet file must be there; `optional` ones are read if
    they are. The division into batches depends on the file and `size` only. Raises
    UnreadableFile where the file is cut off, damaged or lacks a column, OSError and
    MemoryError where the machine fails, StandIn for a pointer of Git LFS or git-annex.
    """
    refuse_pointer(path)
    kind = kind_of(path)
    number = 1  # of the next row
    try:
        if kind == ".parquet":
            batches = _read_records(path, [*fields], optional, on_read, size)
        else:
            batches = _read_lines(path, kind, on_read, size)
        for content in batches:
            yield Rows(str(path), kind, number, content)
            number += len(content)
    except MemoryError:  # Arrow's is one of `DAMAGED`, too
        raise
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno:
            # The system's: it says nothing about what the file holds.
            reason = os.strerror(error.errno)
            raise OSError(error.errno, reason, str(path)) from error

        where = _describe_progress(kind, number - 1)
        reason = str(error).splitlines()[0]
        raise UnreadableFile(f"{path}: cannot be read{where}: {reason}") from None


def _describe_progress(kind: str, rows: int) -> str:
    """How a file is read, and the rows that were read before an error."""
    if kind == ".parquet":
        return f" as Parquet after row {rows}" if rows else " as Parquet"
    if kind == ".jsonl" and rows:
        return f" after line {rows}"
    return ""


# Texts and JSON lines


def _read_lines(
    path: Path, kind: str, on_read: OnRead, size: int
) -> Iterator[list[bytes]]:
    """Yields lines, decompressed by the file's name, or its whole text.

    Raises one of `DAMAGED`.
    """
    reported = 0
    with path.open("rb", buffering=0) as file, decompress(file, path) as stream:
        batches = _whole_text(stream) if kind == ".txt" else _lines(stream, size)
        for lines in batches:
            if file.seekable():  # a pipe has no position
                on_read(file.tell() - reported)
                reported = file.tell()
            yield lines


def _whole_text(stream: io.BufferedReader) -> Iterator[list[bytes]]:
    content = io.BytesIO()
    while block := stream.read(_BUFFER_BYTES):
        content.write(block)
        if content.tell() > MOST_BYTES:
            raise _too_long("text")

    yield [content.getvalue()]


def _lines(stream: io.BufferedReader, size: int) -> Iterator[list[bytes]]:
    """Yields lines of `size` bytes or a little more together."""
    lines: list[bytes] = []
    lines_bytes = 0
    while line := stream.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            if lines:
                yield lines
            raise _too_long("line")

        lines.append(line)
        lines_bytes += len(line)
        if lines_bytes >= size:
            yield lines
            lines = []
            lines_bytes = 0

    if lines:
        yield lines


def _too_long(what: str) -> OSError:
    return OSError(
        f"a {what} of more than {MOST_BYTES:,} bytes, which would not fit into the "
        "memory; divide it into documents"
    )


def decompress(file: io.FileIO, path: Path) -> io.BufferedReader:
    """Returns the content of an open file, decompressed by the ending of its name.

    All members of a file are read. Reading raises one of `DAMAGED` where it is cut off.
    """
    codec = CODECS.get(suffixes(path)[1])
    stream: Any = file
    if codec == "gzip":  # Python's own passes over zeros behind a member, as gzip does
        stream = gzip.GzipFile(fileobj=file)
    elif codec:
        stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
    return io.BufferedReader(stream, _BUFFER_BYTES)


def _text_object(content: bytes) -> dict[str, Any]:
    try:
        return {"text": content.decode("utf-8-sig")}
    except UnicodeDecodeError as error:
        raise BadRow(
            f"not UTF-8 at byte {error.start}; convert it first, e.g. with iconv"
        ) from None


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        if b"\0" in line:  # json would parse most lines of UTF-16, but not all
            raise UnicodeError
        row = json.loads(line)
    except UnicodeError:
        reason = "not UTF-8; convert the file first, e.g. with iconv"
    except json.JSONDecodeError as error:
        place = f"{error.msg} at character {error.pos}"
        reason = f"not JSON ({place}); a .jsonl file holds one JSON object a line"
    except (RecursionError, ValueError) as error:
        # nested too deeply, a number of many digits
        reason = f"not JSON that can be read: {error}"
    else:
        if isinstance(row, dict):
            return row
        reason = f"a JSON {type(row).__name__}, not an object with fields"
    raise BadRow(reason)


# Records of Parquet


def _read_records(
    path: Path, fields: list[str], optional: Sequence[str], on_read: OnRead, size: int
) -> Iterator[pa.RecordBatch]:
    """Yields records of about `size` bytes together.

    Raises UnreadableFile for a column that is missing.
    """
    # By default Arrow holds a whole row group as stored on the disk.
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        names = file.schema_arrow.names
        missing = [field for field in fields if field not in names]
        if missing:
            raise UnreadableFile(
                f"{path}: no column '{missing[0]}'{did_you_mean(missing[0], names)} "
                f"(columns: {listed(names)})"
            )
        extra = [name for name in optional if name in names and name not in fields]
        columns = [*fields, *extra]

        on_disk = path.stat().st_size
        reported = 0
        read = 0  # rows
        for group in _grouped(_batches(path, file, columns, size), size):
            # Arrow does not report its position: the share of rows approximates that of
            # bytes.
            read += sum(batch.num_rows for batch in group)
            share = on_disk * read // max(file.metadata.num_rows, read)
            on_read(share - reported)
            reported = share
            yield from _as_one(group)


def _batches(
    path: Path, file: pq.ParquetFile, columns: Sequence[str], size: int
) -> Iterable[pa.RecordBatch]:
    """Yields records as Arrow decodes them, no more at a time than fit into memory."""
    rows = _rows_of_size(file.metadata, size)
    longest = max(_longest(path, file, columns, rows), 1)
    at_once = min(rows, max(_BATCH_BYTES // longest, 1))

    batches: Iterable[pa.RecordBatch] = file.iter_batches(at_once, columns=columns)
    return batches if at_once == rows else _joined(batches, rows)


def _as_one(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Copies record batches into one; more only where Arrow cannot hold so much."""
    table = pa.Table.from_batches(batches).combine_chunks()
    joined: list[pa.RecordBatch] = table.to_batches()
    return joined


def _rows_of_size(metadata: pq.FileMetaData, size: int) -> int:
    """Returns how many records are about `size` bytes, by the longest row group."""
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    longest = 0
    for group in groups:
        if group.num_rows:
            longest = max(longest, group.total_byte_size // group.num_rows)
    return min(max(size // max(longest, 1), 1), 256)


def _longest(
    path: Path, file: pq.ParquetFile, columns: Sequence[str], rows: int
) -> int:
    """Returns the most bytes of a decoded value; 0 if any `rows` values fit in memory.

    A value may be far longer than its part of the file: a dictionary holds it once for
    any number of rows, DELTA_BYTE_ARRAY stores only its difference to the value before,
    and a codec makes gigabytes of equal bytes out of nothing.
    """
    longest = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema
            stored = chunk.total_uncompressed_size
            is_read = any(f"{name}.".startswith(f"{column}.") for column in columns)
            if not is_read or stored * rows <= _BATCH_BYTES:
                continue

            is_bomb = stored > max(_BATCH_BYTES, 100 * chunk.total_compressed_size)
            if is_bomb or "DELTA_BYTE_ARRAY" in chunk.encodings:
                longest = max(longest, stored)
            elif chunk.has_dictionary_page:
                entry = _longest_in_dictionary(path, file.metadata, number, name)
                longest = max(longest, stored if entry is None else entry)
    return longest


def _longest_in_dictionary(
    path: Path, metadata: pq.FileMetaData, group: int, column: str
) -> int | None:
    """Returns the most bytes of an entry; None where Arrow hides the dictionary."""
    with pq.ParquetFile(
        path,
        metadata=metadata,
        read_dictionary=[column],
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
    ) as file:
        # The first row brings the whole dictionary.
        batches = file.iter_batches(1, row_groups=[group], columns=[column])
        values = next(iter(batches)).column(0)

    if not isinstance(values, pa.DictionaryArray):
        return None
    return pc.max(pc.binary_length(values.dictionary)).as_py() or 0


def _joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields batches of `rows` records, or of about `_BATCH_BYTES`."""
    parts: list[pa.RecordBatch] = []
    parts_bytes = 0
    missing = rows

    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, missing)
            batch = batch.slice(part.num_rows)
            parts.append(part)
            parts_bytes += part.nbytes
            missing -= part.num_rows

            if not missing or parts_bytes >= _BATCH_BYTES:
                yield from _as_one(parts)
                parts = []
                parts_bytes = 0
                missing = rows

    if parts:
        yield from _as_one(parts)


def _grouped(
    batches: Iterable[pa.RecordBatch], size: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yields records of `size` bytes or a little more together."""
    group: list[pa.RecordBatch] = []
    group_bytes = 0
    for batch in batches:
        for records in _halved(batch, size):
            if records.nbytes > MOST_BYTES:
                if group:
                    yield group
                raise _too_long("row")

            group.append(records)
            group_bytes += records.nbytes
            if group_bytes >= size:
                yield group
                group = []
                group_bytes = 0

    if group:
        yield group


def _halved(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yields halves of halves until each has at most `size` bytes or one record."""
    if batch.nbytes <= size or batch.num_rows <= 1:
        yield batch
        return

    middle = batch.num_rows // 2
    for half in (batch.slice(0, middle), batch.slice(middle)):
        # A copy: a slice would keep its whole array in memory.
        copy = half.take(pa.array(range(half.num_rows)))
        yield from _halved(copy, size)


def _parse_records(records: pa.RecordBatch) -> list[dict[str, Any] | BadRow]:
    """Returns the rows of a record batch as Python holds them."""
    try:
        rows: list[dict[str, Any] | BadRow] = records.to_pylist()
        return rows
    except _NO_VALUE:
        # Some value is at fault: only one by one do the other rows come.
        return [_parse_record(records.slice(n, 1)) for n in range(records.num_rows)]


def _parse_record(record: pa.RecordBatch) -> dict[str, Any] | BadRow:
    """Returns the one row of a record batch as Python holds it."""
    for name, values in zip(record.schema.names, record.columns, strict=True):
        try:
            values.to_pylist()
        except UnicodeDecodeError:
            return BadRow(f"column '{name}': not UTF-8")
        except _NO_VALUE as error:
            reason = str(error).splitlines()[0]
            return BadRow(f"column '{name}': cannot be read: {reason}")

    row: dict[str, Any] = record.to_pylist()[0]
    return row
