"""What goes wrong is named, stage by stage; the rest of the corpus is prepared all the
same."""

import errno
import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from data_prep import encoding
from dualpath_cli.base.errors import UserError
from dualpath_cli.data import rows
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.rows import UnreadableFile, read_rows
from tests.data_prep.conftest import (
    prepare,
    rows_of,
    texts_of,
    without_progress,
    write_jsonl,
)

GOOD = [f"good document {n}" for n in range(3)]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in GOOD)


class Fault(NamedTuple):
    """A file beside a sound one."""

    name: str
    data: bytes
    says: str = ""  # what is said of the file, or of its rejected rows
    kept: int = 0  # documents of the file that are used; they are among GOOD
    rejected: dict[str, int] | None = None
    """Documents that are left out, by reason; none where the file itself is at
    fault."""


def _parquet(table: pa.Table, cut: int | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()[:cut]


def _invalid(*values: bytes) -> pa.Array:
    """Strings that are not checked to be UTF-8."""
    array = pa.array(values)
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


NANOSECONDS = pa.array([1, 2, 3, 4], pa.timestamp("ns"))  # Python holds microseconds
# With pandas at hand Arrow makes its timestamps of them, which are no texts either.
NO_TEXT = "Timestamp instead of a string" if find_spec("pandas") else "column 'text'"
INVALID = pa.table(
    {"text": _invalid(b"caf\xe9", *map(str.encode, GOOD)), "id": NANOSECONDS}
)
ROW = {"unreadable": 1}
FAULTS = [
    Fault("f.jsonl.zst", zstandard.compress(LINES * 30_000)[:-50], "cannot be read"),
    Fault("f.jsonl.gz", gzip.compress(LINES * 30_000)[:-50], "after line"),
    Fault("f.jsonl.gz", gzip.compress(LINES) + b"\0" * 9 + b"more", "cannot be read"),
    Fault("f.parquet", _parquet(pa.table({"text": GOOD}), -9), "Parquet"),
    Fault("f.parquet", _parquet(pa.table({"body": GOOD})), "no column 'text'"),
    Fault("f.jsonl.gz", gzip.compress(b""), "empty"),
    Fault("f.jsonl", LINES + b'{"text": "cut', "not JSON", 3, ROW),
    Fault("f.jsonl", b"[1, 2]\n" + LINES, "a JSON list", 3, ROW),
    Fault("f.jsonl", b'{"text": "\xff"}\n' + LINES, "not UTF-8", 3, ROW),
    Fault(
        "f.jsonl", LINES.decode().encode("utf-16-be"), "not UTF-8", 0, {"unreadable": 3}
    ),
    Fault("f.jsonl", b'{"body": "a"}\n' + LINES, "no field 'text'", 3, ROW),
    Fault("f.jsonl", b'{"text": null}\n' + LINES, "no text", 3, ROW),
    Fault("f.jsonl", b'{"text": "\\ud800"}\n', "surrogate", 0, ROW),
    Fault("f.jsonl", b'{"\\ud800": 1}\n' + LINES, "fields: \ud800", 3, ROW),
    Fault("f.jsonl", b'{"n": ' + b"9" * 5000 + b"}\n", "5000 digits", 0, ROW),
    Fault("f.jsonl", b"[" * 10**6 + b"\n", "JSON", 0, ROW),
    Fault("f.parquet", _parquet(INVALID), "column 'text': not UTF-8", 3, ROW),
    Fault(
        "f.parquet",
        _parquet(pa.table({"text": NANOSECONDS})),
        NO_TEXT,
        0,
        {"unreadable": 4},
    ),
    Fault("f.parquet", _parquet(pa.table({"text": [None, *GOOD]})), "None", 3, ROW),
    Fault("f.txt", b"caf\xe9", "not UTF-8 at byte 3", 0, ROW),
    Fault("f.jsonl", b'{"text": " \\n"}\n' + LINES, "", 3, {"empty": 1}),
    Fault("f.jsonl", b'{"text": "ab"}\n' + LINES, "", 3, {"too short": 1}),
    Fault("f.txt", b"\xef\xbb\xbf", "", 0, {"empty": 1}),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a sound file before and after a place for another one."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", ["first"])
    write_jsonl(folder / "z.jsonl", ["last"])
    return folder


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"{fault.name}-{fault.says}"
)
def test_a_fault_stops_a_strict_preparation_else_it_is_named_and_the_rest_is_prepared(
    ask, out, fault, corpus, monkeypatch
):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 1 << 20)
    (corpus / fault.name).write_bytes(fault.data)
    if fault.says:
        with pytest.raises(UserError) as caught:
            prepare(ask(corpus, min_chars=3, strict=True))
        assert fault.name in str(caught.value)
        assert fault.says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not out.exists()
    (count,) = prepare(ask(corpus, min_chars=3), overwrite=True).sources
    texts = texts_of(out)
    assert {"first", "last"} <= set(texts) <= {"first", "last", *GOOD}
    assert count.rejected == (fault.rejected or {})
    accounted = count.documents + sum(count.rejected.values()) + count.exact_duplicates
    assert count.read == accounted
    rejected = rows_of(out / "rejected.jsonl.zst")
    assert len(rejected) == sum(count.rejected.values())
    for row in rejected:
        assert row["file"].endswith(fault.name)
        assert fault.says in row["detail"]
    if not fault.rejected:
        (said,) = count.faults
        assert fault.name in said
        assert fault.says in said
        assert "\n" not in said
    else:
        assert not count.faults
        assert len(texts) == 2 + fault.kept


def test_a_name_that_is_not_utf8_is_written_as_escapes_and_refused_in_a_setting(
    ask, out, corpus
):
    name = os.fsdecode(b"caf\xe9.jsonl.gz")
    (corpus / name).write_bytes(b"not gzip")
    prepare(ask(corpus))
    (fault,) = Manifest.read(out).sources[0].faults
    assert r"caf\xe9.jsonl.gz: cannot be read" in fault
    with pytest.raises(UserError, match="is not UTF-8; rename it, or give a link"):
        ask(corpus / name)
    with pytest.raises(UserError, match="is not UTF-8; rename it, or give a link"):
        ask(corpus, decontaminate=(str(corpus / name),))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EIO, "a disk"), "Input/output error: '.*/a.jsonl'"),
        (pa.ArrowMemoryError("malloc failed"), "malloc failed"),
    ],
)
def test_a_failure_of_the_machine_is_no_fault_of_a_file(
    ask, corpus, monkeypatch, error, says
):
    def failing(*_: object) -> None:
        raise error

    asked = ask(corpus)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "decompress", failing)
        with pytest.raises(type(error), match=says):
            prepare(asked)
    (count,) = prepare(asked).sources
    assert (count.faults, count.documents) == ([], 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_strict_minds_no_fault_beyond_what_is_needed(
    ask, workers, tmp_path, monkeypatch
):
    # Pieces are begun ahead of need: faults of those that are not used do not matter.
    monkeypatch.setattr(encoding, "PIECE_BYTES", 100)
    lines = [json.dumps({"text": f"document {n} " + "hello " * 20}) for n in range(6)]
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines[:3], "no JSON", *lines[3:]]) + "\n"
    )
    few = ask(tmp_path / "a.jsonl", out=tmp_path / "few", strict=True, tokens=10)
    prepare(few, workers)
    many = ask(tmp_path / "a.jsonl", strict=True, tokens=10**6)
    with pytest.raises(UserError, match="line 4: not JSON"):
        prepare(many, workers)


def test_rejected_rows_are_kept_as_they_stand_in_the_file(ask, out, corpus):
    (corpus / "f.jsonl").write_bytes(b'{"text": "\xff"}\n{"id": "x", "text": 3}\n')
    prepare(ask(corpus))
    rejected = rows_of(out / "rejected.jsonl.zst")
    assert [(row["row"], row["id"], row["text"]) for row in rejected] == [
        (1, None, '{"text": "\\xff"}'),
        (2, "x", '{"id": "x", "text": 3}'),
    ]


def test_zeros_behind_a_gzipped_file_are_passed_over_as_by_gzip(ask, out, corpus):
    (corpus / "f.jsonl.gz").write_bytes(gzip.compress(LINES) * 2 + bytes(600))
    (count,) = prepare(ask(corpus, duplicates="keep")).sources
    assert (count.faults, count.documents) == ([], 2 + 2 * len(GOOD))


LONG = 2 * 10**5  # bytes of a row under a bound of half of it
TOO_LONG = {
    "a.jsonl.zst": zstandard.compress(
        LINES + b'{"text": "' + b"a" * LONG + b'"}\n' + LINES
    ),
    "a.txt.gz": gzip.compress(b"a" * LONG),
    "a.parquet": _parquet(pa.table({"text": [*GOOD, "a" * LONG, *GOOD]})),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_row_too_long_for_the_memory_ends_its_file_by_name(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(rows, "MOST_BYTES", LONG // 2)
    (tmp_path / name).write_bytes(TOO_LONG[name])
    read: list[str] = []

    def read_all() -> None:
        for batch in read_rows(
            tmp_path / name, ["text"], [], lambda count: None, 50_000
        ):
            read.extend(row["text"] for _, row in batch.parsed())

    with pytest.raises(
        UnreadableFile, match=rf"{name}: cannot .* more than 100,000 bytes"
    ):
        read_all()
    assert read == ([] if ".txt" in name else GOOD)


def _of_one_long_value(encoding: str) -> bytes:
    """A small file of 300 records with a long text, and short ones behind them."""
    texts, sink = ["a" * 10_000] * 300 + ["short"] * 3_000, pa.BufferOutputStream()
    dictionary = encoding == "RLE_DICTIONARY"
    column = pa.array(texts).dictionary_encode() if dictionary else pa.array(texts)
    encodings = None if dictionary else {"text": encoding}
    pq.write_table(
        pa.table({"text": column}),
        sink,
        use_dictionary=dictionary,
        column_encoding=encodings,
        compression="zstd",
    )
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY", "PLAIN"])
def test_records_that_share_their_bytes_come_a_few_at_a_time(
    tmp_path, monkeypatch, encoding
):
    path = tmp_path / "a.parquet"
    path.write_bytes(_of_one_long_value(encoding))

    def records() -> list[Any]:
        read = read_rows(path, ["text"], [], lambda count: None, 50_000)
        return [row for batch in read for row in batch.parsed()]

    expected = records()
    decoded: list[int] = []
    held = rows._grouped

    def seen(
        batches: Iterable[pa.RecordBatch], size: int
    ) -> Iterator[list[pa.RecordBatch]]:
        return held(_noting(batches, decoded), size)

    monkeypatch.setattr(rows, "_BATCH_BYTES", 10**5)
    monkeypatch.setattr(rows, "_grouped", seen)
    assert records() == expected, "not the same"
    assert max(decoded) < 3 * 10**5


def _noting(
    batches: Iterable[pa.RecordBatch], sizes: list[int]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sizes.append(batch.nbytes)
        yield batch


def test_the_way_of_reading_records_does_not_change_their_division(
    tmp_path, monkeypatch
):
    path, texts = tmp_path / "a.parquet", [f"{n} " * (n % 500) for n in range(3000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=700)

    def lengths() -> list[int]:
        read = read_rows(path, ["text"], [], lambda count: None, 50_000)
        return [len(batch.content) for batch in read]

    usual = lengths()
    monkeypatch.setattr(rows, "_longest", lambda *_: rows._BATCH_BYTES // 3)
    assert lengths() == usual


def test_long_records_among_short_ones_come_in_small_batches(tmp_path):
    texts = (
        ["short"] * 5000 + [chr(97 + n % 26) * 10_000 for n in range(100)] + ["last"]
    )
    (tmp_path / "a.parquet").write_bytes(_parquet(pa.table({"text": texts})))
    batches = list(
        read_rows(tmp_path / "a.parquet", ["text"], [], lambda count: None, 50_000)
    )
    read = [row for batch in batches for row in batch.parsed()]
    assert read == [(number, {"text": text}) for number, text in enumerate(texts, 1)]
    # No batch keeps the whole array in memory of which it is a part.
    sizes = [batch.content.get_total_buffer_size() for batch in batches]
    assert max(sizes) < 2 * 50_000


FULL_DISK = """
import resource, sys
from dualpath_cli.cli.main import main

if __name__ == "__main__":
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.exit(main(["prepare", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    ("limit", "workers"),
    [(100_000, 2), (600_000, 1)],
    ids=["pieces of a worker", "shards"],
)
def test_a_full_disk_is_one_line_and_the_same_command_continues(
    out, limit, workers, small_folder, tmp_path
):
    # A process may write no file beyond the limit: the pieces' or, later, the shards'
    # writes fail.
    path = write_jsonl(tmp_path / "a.jsonl", [f"hello {n} " * 50 for n in range(2000)])
    (tmp_path / "run.py").write_text(FULL_DISK)
    arguments = [
        "--source",
        str(path),
        "--tokenizer",
        str(small_folder),
        "--workers",
        str(workers),
    ]
    arguments += ["--out", str(out)]

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "run.py"), str(limit), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    failed = run(limit)
    assert failed.returncode == 1
    said = without_progress(failed.stderr)
    assert said.startswith("dualpath prepare: failed: ")
    assert said.count("\n") == 1
    assert "continues" in said
    assert not out.exists()
    done = run(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
