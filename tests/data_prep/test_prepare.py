"""A preparation: every document once, each with its end, in shards that litdata
reads."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep import duplicates, encoding, shares
from data_prep.download import Unavailable
from data_prep.engine import Engine
from data_prep.input_files import Corpus, InputFile
from data_prep.piece_maker import PieceMaker
from data_prep.pieces import PieceCounts
from data_prep.prepare import make_data_folder
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.rows import OnRead, Rows, UnreadableFile, read_rows
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.tokenizer_json import BYTE_OF_CHARACTER
from tests.conftest import contents
from tests.data.faulty_data import intact
from tests.data.small_tokenizer import definition_with
from tests.data_prep.conftest import (
    interrupted_at_the_end,
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


def test_every_document_is_written_held_out_rejected_or_a_duplicate(ask, out, small):
    texts = [*many(60), "", "   ", *many(10), "hi", *many(5, start=100)]
    manifest = prepare(ask(texts, val_fraction=0.2, min_chars=3))
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


@pytest.mark.parametrize(("duplicates", "lines"), [("keep", 0), ("exact", 1)])
def test_ranges_of_keys_are_said_where_keys_are_compared(
    duplicates, lines, ask, capsys
):
    prepare(ask(many(20), duplicates=duplicates), memory=200)
    assert capsys.readouterr().err.count("documents are judged in") == lines


def test_documents_are_shuffled_by_the_seed(ask, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", many(50))
    orders = []
    for seed in (0, 0, 1):
        out = tmp_path / f"out{len(orders)}"
        prepare(ask(path, out=out, seed=seed))
        orders.append(texts_of(out))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(many(50)) != orders[0]


def test_the_bytes_do_not_depend_on_the_number_of_workers_or_their_memory(
    ask, tmp_path
):
    # One file that three workers share, and many small ones.
    (tmp_path / "b").mkdir()
    for n, text in enumerate(many(200, start=60)):
        (tmp_path / "b" / f"{n}.txt").write_text(text)
    one = write_jsonl(tmp_path / "a.jsonl", [*many(80), "", *many(9)])
    sources = (source("a", one, weight=1), source("b", tmp_path / "b", weight=1))
    asked = {"duplicates": "near", "val_fraction": 0.1, "tokens": 2000}

    folders = []
    for workers, memory in ((1, 10**9), (3, 10**9), (1, 200)):
        out = tmp_path / f"{workers}-{memory}"
        manifest = prepare(ask(sources, out=out, **asked), workers, memory=memory)
        folders.append(contents(out))
    assert folders[0] == folders[1] == folders[2]
    assert manifest.sources[1].read > 40  # files


def test_another_tokenizer_in_the_same_process_writes_its_own_texts(
    ask, out, small, large
):
    texts = many(60)
    for tokenizer in (small, large):
        prepare(ask(texts, tokenizer=tokenizer, val_fraction=0.2), overwrite=True)
        held_out = [row["text"] for row in rows_of(out / "val" / "a.jsonl")]
        assert held_out
        assert Counter([*texts_of(out), *held_out]) == Counter(texts)


@pytest.mark.parametrize("tokens", [None, 100])  # all, or a part of the first piece
def test_a_source_that_changes_while_it_is_read_stops_the_preparation(
    tokens, ask, out, tmp_path
):
    path = write_jsonl(tmp_path / "a.jsonl", many(20))

    def changing(file: InputFile, on_received: OnRead) -> Path:
        write_jsonl(path, [f"new {text}" for text in many(20)])
        os.utime(path, ns=(1, 1))
        return path

    asked = ask(path, tokens=tokens)
    with pytest.raises(UserError, match="changed while it was prepared"):
        prepare(asked, fetch=changing)
    assert not out.exists()


@pytest.mark.parametrize("end", [KeyboardInterrupt, UserError, OSError])
def test_a_continued_preparation_makes_nothing_again_and_remembers_faults(
    end, ask, tmp_path, monkeypatch
):
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "texts" / "a.jsonl", TEXTS)
    (tmp_path / "texts" / "b.jsonl.gz").write_bytes(b"not gzip")
    asked = ask(tmp_path / "texts")
    with interrupted_at_the_end(end=end), pytest.raises(end):
        prepare(asked)

    def again(*made: Any) -> PieceCounts:
        raise AssertionError("a piece is made again")

    monkeypatch.setattr(PieceMaker, "make", again)
    (fault,) = prepare(asked).sources[0].faults
    assert "b.jsonl.gz: cannot be read" in fault


def test_a_continued_preparation_judges_nothing_again(ask, tmp_path, monkeypatch):
    # Of texts that come twice more are read and judged than the tokens seem to take.
    asked = ask([*many(20) * 2, *many(60, start=100)], tokens=600)
    with interrupted_at_the_end(), pytest.raises(KeyboardInterrupt):
        prepare(asked)
    assert len(list((tmp_path / "out.partial" / "judged").iterdir())) > 1

    def again(*judged: Any) -> None:
        raise AssertionError("it is judged again")

    for name in ("_write", "_settle"):
        monkeypatch.setattr(duplicates, name, again)
    assert prepare(asked).tokens >= 600


class TwoWorkers(Engine):
    workers = 2


def test_a_file_that_its_readers_end_differently_stops_until_they_agree(
    ask, out, monkeypatch
):
    asked = ask(many(60))
    reads: list[Path] = []

    def prepare_by_two() -> Manifest:
        return make_data_folder(
            asked, TwoWorkers(), lambda file, on_received: file.origin, 10**9
        )

    def cut_at_first(path: Path, *how: Any) -> Iterator[Rows]:
        reads.append(path)
        if len(reads) > 1:
            yield from read_rows(path, *how)
        else:
            yield from islice(read_rows(path, *how), 4)
            raise UnreadableFile(f"{path}: cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(shares, "read_rows", cut_at_first)
        with pytest.raises(OSError, match=r"a\.jsonl: its readers .*; check the disk"):
            prepare_by_two()
    assert not prepare_by_two().sources[0].faults
    assert Counter(texts_of(out)) == Counter(many(60))


@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_a_text_is_read_by_one_worker(name, ask, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("hello " * 400)
    reads: list[Path] = []

    def noted(path: Path, *how: Any) -> Iterator[Rows]:
        reads.append(path)
        return read_rows(path, *how)

    monkeypatch.setattr(shares, "read_rows", noted)
    make_data_folder(
        ask(path), TwoWorkers(), lambda file, on_received: file.origin, 10**9
    )
    assert reads == [path]


def test_the_time_left_is_by_the_pace_of_new_pieces(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("dualpath_cli.report.console.time.monotonic", lambda: clock[-1])
    corpus = Corpus(source("a", "a.jsonl"), [])
    jobs = [encoding.Job(corpus, tmp_path, until=1200)]
    piece = PieceCounts(tokens=100)
    progress = encoding._EncodingProgress(jobs, [piece] * 8)
    for seconds in (60.0, 120.0):
        clock.append(seconds)
        progress.add_piece(piece)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("reading: 1,000 of 1,200 tokens, ")
    assert last.endswith(" tokens/s, 2.0 min left")


def test_a_file_that_comes_after_chunks_were_written_is_in_the_data(ask, out, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(3):
        write_jsonl(tmp_path / "texts" / f"{number}.jsonl", many(9, start=9 * number))
    asked = ask(tmp_path / "texts")

    def missing(file: InputFile, on_received: OnRead) -> Path:
        if file.name.endswith("1.jsonl"):
            raise Unavailable("404 Not Found")
        assert isinstance(file.origin, Path)
        return file.origin

    def add_files(folder: Path) -> None:
        # Of other documents there may have been more chunks, and some held out.
        for name in ("chunk-0-99.bin", "val/texts.jsonl"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()

    with interrupted_at_the_end(add_files), pytest.raises(KeyboardInterrupt):
        prepare(asked, fetch=missing)
    manifest = prepare(asked)
    assert not manifest.sources[0].faults
    assert not manifest.beside
    assert Counter(texts_of(out)) == Counter(many(27))


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


@pytest.mark.parametrize("tokens", [None, 10**6])
def test_a_source_without_text_is_found_before_large_ones_are_read(
    ask, tmp_path, tokens
):
    (tmp_path / "large").mkdir()
    for number in range(3):
        write_jsonl(tmp_path / "large" / f"{number}.jsonl", many(9, 9 * number))
    (tmp_path / "e.jsonl").write_text('{"content": "hello"}\n')
    large = source("a", tmp_path / "large", weight=9)
    asked = ask((large, source("e", tmp_path / "e.jsonl", weight=1)), tokens=tokens)
    fetched = []

    def fetch(file: InputFile, on_received: OnRead) -> Path:
        fetched.append(file.origin.name)
        return file.origin

    with pytest.raises(UserError, match=r"no text in .*e\.jsonl: row 1 unreadable"):
        prepare(asked, fetch=fetch)
    assert fetched == ["0.jsonl", "e.jsonl"]


def test_a_text_that_the_tokenizer_cannot_write_is_rejected_and_named_if_strict(
    ask, out
):
    definition = definition_with([])
    characters = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    del definition["model"]["vocab"][characters[4]]
    texts = ["", "hello", "a\x04", "hello"]
    tokenizer = Tokenizer(definition)
    with pytest.raises(UserError, match=r"a\.jsonl line 3: tokenizer .* byte 0x04"):
        prepare(ask(texts, tokenizer=tokenizer, strict=True))

    (count,) = prepare(ask(texts, tokenizer=tokenizer), overwrite=True).sources
    assert (count.rejected, count.exact_duplicates) == (
        {"empty": 1, "unwritable": 1},
        1,
    )
    assert texts_of(out) == ["hello"]
    (_, row) = rows_of(out / "rejected.jsonl.zst")
    assert (row["text"], row["detail"][-4:]) == ("a\x04", "0x04")


def test_a_source_of_which_nothing_is_left_says_what_became_of_it(ask, tmp_path):
    with pytest.raises(UserError, match=r"left to write: 3 held out, 1 dup.*; lower"):
        prepare(ask(["hello", "", "a", "b", "a"], val_fraction=0.999999))
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", TEXTS) for name in "xy"]
    twins = tuple(source(path.stem, path, weight=1) for path in paths)
    with pytest.raises(UserError, match=r"y.jsonl is left .* 0 held .* 4 dup.*; leave"):
        prepare(ask(twins))


def test_a_share_that_ends_within_a_token_is_read_to_its_end(
    ask, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 1)
    texts = [f"{number:010}" for number in range(1000)]  # of 11 tokens with the end
    sources = (
        source("a", write_jsonl(tmp_path / "a.jsonl", texts[:500]), weight=0.03),
        source("b", write_jsonl(tmp_path / "b.jsonl", texts[500:]), weight=0.97),
    )
    # 33.3 tokens of the first one: three documents are not enough.
    assert prepare(ask(sources, tokens=1110)).tokens >= 1110


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
