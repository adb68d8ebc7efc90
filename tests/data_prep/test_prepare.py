"""A preparation: every document once, each with its end, whole or not there at all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import litdata
import numpy as np
import pytest

from data_prep.corpora import Corpus, corpus_of_source
from data_prep.prepare import BATCH_CHARACTERS, Request, encoded, finished, prepare
from dualpath_cli.errors import UserError
from dualpath_cli.text.documents import parse_source
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer

TEXTS = ["hello", "", "a <|endoftext|> in the text", "é 日本\n" * 40, "hello hello"]
Write = Callable[[str, list[str]], Path]


def request(path: Path, tokenizer: Tokenizer, out: Path, **options: int) -> Request:
    options = {"chunk_tokens": 64, **options}
    return Request([corpus_of_source(parse_source(str(path)))], tokenizer, out, **options)


def tokens_of(folder: Path) -> list[int]:
    dataset = litdata.StreamingDataset(
        str(folder), item_loader=litdata.TokensLoader(block_size=1), shuffle=False
    )
    return [int(dataset[index][0]) for index in range(len(dataset))]


@pytest.mark.parametrize(("size", "dtype"), [("small", "uint16"), ("large", "uint32")])
def test_the_tokens_are_those_of_the_documents_each_with_its_end(
    request_of: Callable[..., Request], size: str, dtype: str
) -> None:
    asked = request_of(size, TEXTS)
    manifest = prepare(asked)
    tokenizer = asked.tokenizer
    texts = [text for text in TEXTS if text]
    expected = [id for text in texts for id in [*tokenizer.encode(text), tokenizer.eot_id]]
    assert tokens_of(asked.out) == expected
    assert expected.count(tokenizer.eot_id) == manifest.documents == len(texts)
    assert (manifest.dtype, manifest.tokens) == (dtype, len(expected))
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)
    assert manifest.sources[0].empty == 1


@pytest.fixture
def request_of(
    jsonl: Write, tmp_path: Path, small: Tokenizer, large: Tokenizer
) -> Callable[..., Request]:
    def make(size: str, texts: list[str]) -> Request:
        tokenizer = {"small": small, "large": large}[size]
        return request(jsonl("texts.jsonl.gz", texts), tokenizer, tmp_path / "out")

    return make


def test_the_folder_holds_what_its_manifest_says(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    manifest = prepare(request(jsonl("a.jsonl.gz", TEXTS), small, tmp_path / "out"))
    assert Manifest.read(tmp_path / "out") == manifest
    manifest.verify(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(chunk.name for chunk in manifest.chunks),
        "index.json",
        "manifest.json",
        "tokenizer.json",
    }
    assert Tokenizer.load(tmp_path / "out").fingerprint == small.fingerprint
    assert not (tmp_path / "out.partial").exists()


def test_the_same_input_gives_the_same_bytes(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    path = jsonl("a.jsonl.gz", TEXTS * 20)
    for name in ("one", "two"):
        prepare(request(path, small, tmp_path / name))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_sources_are_counted_apart_and_follow_each_other(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    corpora = [
        corpus_of_source(parse_source(f"{name}={jsonl(f'{name}.jsonl.gz', texts)}"))
        for name, texts in (("x", ["hello"]), ("y", ["he", "ll"]))
    ]
    manifest = prepare(Request(corpora, small, tmp_path / "out", 64))
    assert [(s.name, s.documents, s.text_bytes) for s in manifest.sources] == [
        ("x", 1, 5),
        ("y", 2, 4),
    ]
    values = small.token_values()
    assert b"".join(values[id] for id in tokens_of(tmp_path / "out")) == (
        b"hello<|endoftext|>he<|endoftext|>ll<|endoftext|>"
    )


def test_a_limit_stops_after_the_document_that_reaches_it(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    path = jsonl("a.jsonl.gz", ["hello"] * 10)  # three tokens each: hell, o, end
    assert prepare(request(path, small, tmp_path / "out", max_tokens=7)).tokens == 9
    corpus = corpus_of_source(parse_source(str(path)))
    manifest = prepare(Request([corpus, corpus, corpus], small, tmp_path / "three", 64, 32))
    assert [source.tokens for source in manifest.sources] == [30, 3, 0]


def test_documents_are_read_no_further_than_a_batch_ahead(small: Tokenizer) -> None:
    served = 0

    def documents() -> Iterator[str]:
        nonlocal served
        while True:
            served += 1
            yield "x" * (BATCH_CHARACTERS // 4)

    stream = encoded(documents(), small)
    for _ in range(9):
        next(stream)
    assert served == 12


def test_a_preparation_that_fails_leaves_nothing_under_the_final_name(
    small: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n{"text": 1}\n')
    with pytest.raises(UserError, match="line 2"):
        prepare(request(tmp_path / "a.jsonl", small, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_source_without_text_is_an_error(jsonl: Write, small: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no text in .*a\.jsonl\.gz"):
        prepare(request(jsonl("a.jsonl.gz", ["", ""]), small, tmp_path / "out"))


ENDLESS = """
import sys, time
from pathlib import Path
from data_prep.corpora import Corpus
from data_prep.prepare import Request, prepare
from dualpath_cli.text.tokenizer import Tokenizer

def documents(on_read):
    while True:
        yield "hello " * 50_000

corpus = Corpus("endless", "endless", 1, "", documents)
prepare(Request([corpus], Tokenizer.load(sys.argv[1]), Path(sys.argv[2]), 10_000))
"""


def test_killed_midway_nothing_is_under_the_final_name_and_the_next_run_succeeds(
    jsonl: Write, small: Tokenizer, small_folder: Path, tmp_path: Path
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(small_folder), str(out)])
    try:
        deadline = time.monotonic() + 120
        while not (partial / "chunk-0-30.bin").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        asked = request(jsonl("a.jsonl.gz", TEXTS), small, out)
        with pytest.raises(UserError, match="another preparation is writing"):
            prepare(asked)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not out.exists()
    prepare(asked)
    Manifest.read(out).verify(out)
    assert not list(out.glob("chunk-0-30*"))


def test_a_finished_request_is_recognised_until_something_about_it_changes(
    jsonl: Write, small: Tokenizer, large: Tokenizer, tmp_path: Path
) -> None:
    path, out = jsonl("a.jsonl.gz", TEXTS), tmp_path / "out"
    assert finished(request(path, small, out), overwrite=False) is None
    manifest = prepare(request(path, small, out))
    assert finished(request(path, small, out), overwrite=False) == manifest
    for other in (
        request(path, large, out),
        request(path, small, out, chunk_tokens=65),
        request(path, small, out, max_tokens=5),
        request(jsonl("b.jsonl.gz", TEXTS), small, out),
    ):
        with pytest.raises(UserError, match=r"holds other data .*--overwrite"):
            finished(other, overwrite=False)
        assert finished(other, overwrite=True) is None
    jsonl("a.jsonl.gz", [*TEXTS, "more"])
    with pytest.raises(UserError, match="holds other data"):
        finished(request(path, small, out), overwrite=False)


def test_a_damaged_folder_is_not_taken_for_finished(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    asked = request(jsonl("a.jsonl.gz", TEXTS), small, tmp_path / "out")
    prepare(asked)
    chunk = tmp_path / "out" / "chunk-0-0.bin"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(UserError, match="bytes instead of"):
        finished(asked, overwrite=False)
    assert finished(asked, overwrite=True) is None
    prepare(asked).verify(tmp_path / "out")


def test_a_folder_of_another_purpose_is_never_replaced(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    asked = request(jsonl("a.jsonl.gz", TEXTS), small, out)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a data folder"):
            finished(asked, overwrite)


def test_a_prepared_folder_is_replaced_as_a_whole(
    jsonl: Write, small: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    prepare(request(jsonl("a.jsonl.gz", TEXTS * 10), small, out))
    manifest = prepare(request(jsonl("b.jsonl.gz", ["hello"]), small, out))
    assert [path.name for path in out.glob("chunk*")] == [manifest.chunks[0].name]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out"]


def test_tokens_above_16_bits_are_kept(large: Tokenizer, tmp_path: Path) -> None:
    corpus = Corpus("a", "a", 1, "", lambda on_read: iter(["zzzz"]))
    prepare(Request([corpus], large, tmp_path / "out", 64))
    ids = tokens_of(tmp_path / "out")
    assert ids == [*large.encode("zzzz"), large.eot_id]
    assert large.eot_id > np.iinfo(np.uint16).max
