"""A preparation: every document once, each with its end, in shards that litdata
reads."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import litdata
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter

from data_prep import encoding
from data_prep.input_files import InputFile
from data_prep.shards import write_shards
from data_prep.workers import PieceTask, Worker
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.rows import OnRead
from dualpath_cli.data.tokenizer import Tokenizer
from tests.data.faulty_data import intact
from tests.data_prep.conftest import (
    contents,
    prepare,
    rows_of,
    source,
    texts_of,
    write_jsonl,
)

TEXTS = ["hello", "", "a <|endoftext|> in the text", "é 日本\n" * 40, "hello hello"]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several pieces of a few documents each, as a large corpus has.
    monkeypatch.setattr(encoding, "PIECE_BYTES", 200)


def many(count: int, start: int = 0) -> list[str]:
    """Different texts of different lengths."""
    return [f"document {n} " + "hello " * (n % 7) for n in range(start, start + count)]


@pytest.mark.parametrize(
    ("size", "dtype"), [("small", np.uint16), ("large", np.uint32)]
)
def test_the_tokens_are_those_of_the_documents_each_with_its_end(
    ask, out, size, dtype, small, large
):
    tokenizer = {"small": small, "large": large}[size]
    manifest = prepare(ask(TEXTS, tokenizer=tokenizer))
    texts = [text for text in TEXTS if text]
    assert Counter(texts_of(out)) == Counter(texts)
    assert manifest.tokens == sum(len(tokenizer.encode(text)) + 1 for text in texts)
    assert manifest.documents == len(texts)
    assert manifest.dtype == np.dtype(dtype).name
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)
    assert manifest.sources[0].rejected == {"empty": 1}


def test_every_document_is_written_held_out_rejected_or_a_duplicate(
    ask, out, small, monkeypatch, capsys
):
    monkeypatch.setattr("data_prep.prepare.SAY_ABOVE", 0)
    texts = [*many(60), "", "   ", *many(10), "hi", *many(5, start=100)]
    manifest = prepare(ask(texts, val_fraction=0.2, min_chars=3))
    assert (
        "--duplicates exact: 75 documents are compared in about 5.0 kB"
        in capsys.readouterr().err
    )
    assert Manifest.read(out) == manifest
    assert intact(manifest, out)
    assert set(contents(out)) == {
        *(chunk.name for chunk in manifest.chunks),
        "duplicates.jsonl.zst",
        "index.json",
        "manifest.json",
        "rejected.jsonl.zst",
        "tokenizer.json",
        "val/a.jsonl",
    }
    assert Tokenizer.load(out).fingerprint == small.fingerprint
    (count,) = manifest.sources
    written = texts_of(out)
    held_out = [row["text"] for row in rows_of(out / "val" / "a.jsonl")]
    rejected = rows_of(out / "rejected.jsonl.zst")
    repeated = rows_of(out / "duplicates.jsonl.zst")
    assert Counter([*written, *held_out]) == Counter(many(60) + many(5, start=100))
    assert held_out
    reasons = [(row["row"], row["reason"], row["text"]) for row in rejected]
    assert reasons == [(61, "empty", ""), (62, "empty", "   "), (73, "too short", "hi")]
    assert [(row["row"], row["kind"], row["of"]["row"]) for row in repeated] == [
        (63 + n, "exact", 1 + n) for n in range(10)
    ]
    assert (count.read, count.documents, count.validation) == (
        78,
        len(written),
        len(held_out),
    )
    assert count.rejected == {"empty": 2, "too short": 1}
    assert (count.exact_duplicates, count.near_duplicates, count.unused) == (10, 0, 0)


def test_repeats_of_a_source_count_in_passes_tokens_and_bytes(ask, out, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", many(20))
    manifest = prepare(ask((source("a", path, weight=1, max_epochs=3),), tokens=10**6))
    texts = texts_of(out)
    assert Counter(texts) == Counter(many(20) * 3)
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)
    assert (manifest.sources[0].documents, manifest.sources[0].passes) == (20, 3)


def test_documents_are_shuffled_by_the_seed(ask, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", many(50))
    orders = []
    for seed in (0, 0, 1):
        out = tmp_path / f"out{len(orders)}"
        prepare(ask(path, out=out, seed=seed))
        orders.append(texts_of(out))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(many(50)) != orders[0]


def test_the_bytes_do_not_depend_on_the_number_of_workers(ask, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*many(80), "", *many(9)])
    for workers in (1, 3):
        out = tmp_path / str(workers)
        prepare(
            ask(path, out=out, duplicates="near", val_fraction=0.1, tokens=900), workers
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_a_source_that_changes_while_it_is_read_stops_the_preparation(
    ask, out, tmp_path
):
    path = write_jsonl(tmp_path / "a.jsonl", many(20))

    def changing(file: InputFile, on_received: OnRead) -> Path:
        write_jsonl(path, [f"new {text}" for text in many(20)])
        os.utime(path, ns=(1, 1))
        return path

    asked = ask(path)
    with pytest.raises(UserError, match="changed while it was prepared"):
        prepare(asked, fetch=changing)
    assert not out.exists()


def test_a_continued_preparation_makes_nothing_again_and_remembers_faults(
    ask, tmp_path, monkeypatch
):
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "texts" / "a.jsonl", TEXTS)
    (tmp_path / "texts" / "b.jsonl.gz").write_bytes(b"not gzip")
    asked = ask(tmp_path / "texts")

    def killed(manifest: Manifest, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(asked)

    def again(worker: Worker, task: PieceTask) -> Path:
        raise AssertionError("a piece is made again")

    monkeypatch.setattr(Worker, "make", again)
    (fault,) = prepare(asked).sources[0].faults
    assert "b.jsonl.gz: cannot be read" in fault


def test_a_weighted_mix_names_the_source_without_text(ask, tmp_path):
    sources = (
        source("a", write_jsonl(tmp_path / "a.jsonl", TEXTS), weight=1),
        source("e", tmp_path / "e.jsonl", weight=1),
    )
    (tmp_path / "e.jsonl").write_text('{"content": "hello"}\n')
    asked = ask(sources)
    with pytest.raises(
        UserError, match=r"no text in .*e\.jsonl: row 1 unreadable: no field 'text'"
    ):
        prepare(asked)
    # Nothing is in the way of the corrected command.
    assert not (tmp_path / "out.partial").exists()


def test_reading_on_is_bounded_and_ends(ask, tmp_path):
    # A source that begins with the other one's texts yields nothing at first.
    both = many(150)
    write_jsonl(tmp_path / "x.jsonl", both)
    write_jsonl(tmp_path / "y.jsonl", both + many(3000, start=1000))
    sources = tuple(source(name, tmp_path / f"{name}.jsonl", weight=1) for name in "xy")
    manifest = prepare(ask(sources, tokens=2000))
    count = manifest.sources[1]
    assert manifest.tokens >= 2000
    assert count.read < 1000


# Shards: litdata reads back exactly the tokens that were written


def write(folder: Path, stream: np.ndarray, chunk_tokens: int, pieces: int) -> tuple:
    journal = folder.with_name(f"{folder.name}.journal")
    arrays = np.array_split(stream, pieces)
    return write_shards(
        folder, journal, stream.dtype.type, chunk_tokens, arrays, len(stream)
    )


def blocks(folder: Path, block_size: int) -> np.ndarray:
    dataset = litdata.StreamingDataset(
        str(folder),
        item_loader=litdata.TokensLoader(block_size=block_size),
        shuffle=False,
    )
    read = [dataset[index] for index in range(len(dataset))]
    return np.stack(read) if read else np.empty((0, block_size))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@settings(max_examples=25)
@given(
    length=st.integers(1, 400),
    chunk_tokens=st.integers(2, 150),
    block_size=st.integers(1, 40),
    pieces=st.integers(1, 9),
)
def test_blocks_of_any_length_are_those_of_the_stream(
    tmp_path_factory, dtype, length, chunk_tokens, block_size, pieces
):
    top = np.iinfo(dtype).max
    stream = np.random.default_rng(length).integers(
        0, top, length, dtype, endpoint=True
    )
    chunks = [stream[i : i + chunk_tokens] for i in range(0, length, chunk_tokens)]
    expected = [chunk[: len(chunk) // block_size * block_size] for chunk in chunks]
    if not sum(map(len, expected)):
        return
    folder = tmp_path_factory.mktemp("shards") / "data"
    written, _ = write(folder, stream, chunk_tokens, pieces)
    read = blocks(folder, block_size)
    assert len(written) == len(chunks)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read.ravel(), np.concatenate(expected))


def test_the_index_changes_with_the_tokens(tmp_path):
    # litdata takes `updated_at` for the version of a remote dataset in its cache.
    versions = set()
    for start in (0, 1):
        folder = tmp_path / str(start)
        write(folder, np.arange(start, start + 100, dtype=np.uint16), 64, 1)
        versions.add(json.loads((folder / "index.json").read_text())["updated_at"])
    assert len(versions) == 2


@pytest.mark.parametrize("stopped_after", [0, 250, 256, 700, 999])
def test_a_writer_goes_on_where_another_one_stopped(tmp_path, stopped_after):
    stream = np.arange(1000, dtype=np.uint16)
    write(tmp_path / "whole", stream, chunk_tokens=256, pieces=1)

    def cut_off() -> Iterator[np.ndarray]:
        yield from np.array_split(stream[:stopped_after], 3)
        raise KeyboardInterrupt

    folder = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt):
        write_shards(folder, tmp_path / "data.journal", np.uint16, 256, cut_off(), 1000)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("chunk*")}
    assert len(stamps) == stopped_after // 256
    write(folder, stream, chunk_tokens=256, pieces=7)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert contents(folder) == contents(tmp_path / "whole")
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_the_files_are_those_of_litdatas_writer(tmp_path, dtype):
    stream = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 1000, dtype)
    write(tmp_path / "ours", stream, chunk_tokens=300, pieces=7)
    theirs = BinaryWriter(
        str(tmp_path / "theirs"), chunk_size=1, item_loader=TokensLoader()
    )
    for number, start in enumerate(range(0, 1000, 300)):
        theirs.add_item(number, stream[start : start + 300])
    theirs.done()
    theirs.merge()
    files = [contents(tmp_path / name) for name in ("ours", "theirs")]
    ours, index = (json.loads(folder.pop("index.json")) for folder in files)
    del ours["updated_at"], index["updated_at"]
    assert ours == index
    assert files[0] == files[1]
    assert len(files[0]) == 4
