"""Inspection: what changed since a folder was prepared is named, and what it says is true."""

import dataclasses
import json
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.inspection import CUT, HEAD, TAIL, TokenStream, inspect
from data_prep.writing.shards import write_shards
from dualpath_cli.errors import UserError
from dualpath_cli.text.manifest import Manifest, sha256_of
from dualpath_cli.text.tokenizer import Tokenizer
from tests.manifests import manifest_of, source_count

TEXTS = ["hello world", "Ünï 日本 \U0001f600\n", "[bold]hell[/bold]\x1b[31m :smile:"]
TEXTS += [f"{n} hello" * n for n in range(1, 12)]
UNVERIFIED = {"request", "settings"}
UNVERIFIED_OF_A_SOURCE = {"name", "path", "passes", "normalised", "faults"}


def prepare(
    folder: Path, streams: list[list[int]], tokenizer: Tokenizer, chunk_tokens: int, **stated: Any
) -> Path:
    """A data folder of documents, given as ids; `stated` goes into the manifest, true or not."""
    folder.mkdir()
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    stream = [np.array([*ids, tokenizer.eot_id], dtype) for ids in streams]
    journal = folder.with_name("journal")
    chunks, _ = write_shards(folder, journal, dtype, chunk_tokens, stream, sum(map(len, stream)))
    shutil.rmtree(journal)
    tokenizer.save(folder)
    (folder / "val").mkdir()
    for name in ("rejected.jsonl.zst", "val/a.jsonl"):
        (folder / name).write_bytes(name.encode())
    documents, tokens = len(streams), sum(map(len, streams)) + len(streams)
    made = {"documents": documents, "tokens": tokens, "text_bytes": 2 * tokens}
    left_out = {"rejected": {"too short": 3}, "exact_duplicates": 2, "unused": 1, "validation": 1}
    sources = [source_count("a", read=documents + 7, **left_out, **made)]
    content = {**made, "dtype": np.dtype(dtype).name, "sources": sources, "chunks": chunks}
    manifest_of(folder, tokenizer, **content | stated).write(folder)
    return folder


def of_texts(folder: Path, tokenizer: Tokenizer, texts: list[str], chunk_tokens: int = 64) -> Path:
    return prepare(folder, [tokenizer.encode(text) for text in texts], tokenizer, chunk_tokens)


@pytest.fixture(scope="module")
def original(small: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_texts(tmp_path_factory.mktemp("original") / "data", small, TEXTS)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the original that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def found_in(folder: Path) -> list[str]:
    """All problems, that of a manifest which cannot be read among them."""
    try:
        return inspect(folder).problems
    except UserError as error:
        return [str(error)]


def test_a_flipped_byte_of_any_file_is_found_and_alone_is_named(original):
    names = sorted(p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file())
    names.remove("manifest.json")
    names.remove("tokenizer.json")
    assert {"index.json", "val/a.jsonl", "chunk-0-0.bin", "chunk-0-4.bin"} < set(names)
    for name in names:
        size = (original / name).stat().st_size
        for position in {0, 4, 8, size // 2, size - 1}:
            flip(original / name, position)
            assert [problem.partition(":")[0] for problem in found_in(original)] == [name]
            flip(original / name, position)
    assert found_in(original) == []


@settings(max_examples=150)
@given(data=st.data(), mask=st.integers(1, 255))
def test_a_flipped_byte_of_the_manifest_is_found_unless_nothing_can_tell(original, data, mask):
    path = original / "manifest.json"
    before = path.read_bytes()
    position = data.draw(st.integers(0, len(before) - 1))

    def verified(content: bytes) -> Any:
        manifest = json.loads(content)
        sources = [
            {key: s[key] for key in s if key not in UNVERIFIED_OF_A_SOURCE}
            for s in manifest.pop("sources")
        ]
        # By which reason documents were rejected is not known either, only how many.
        for source in sources:
            source["rejected"] = list(source["rejected"].values())
        return {key: manifest[key] for key in manifest if key not in UNVERIFIED}, sources

    try:
        flip(path, position, mask)
        try:
            unseen = verified(path.read_bytes()) == verified(before)
        except (ValueError, KeyError, AttributeError, TypeError):
            unseen = False
        assert found_in(original) or unseen
    finally:
        path.write_bytes(before)


@given(data=st.data(), mask=st.integers(1, 255))
def test_a_flipped_byte_of_the_tokenizer_is_found_unless_it_decides_nothing(
    original, small, data, mask
):
    path = original / "tokenizer.json"
    before = path.read_bytes()
    try:
        flip(path, data.draw(st.integers(0, len(before) - 1)), mask)
        problems = found_in(original)
        if problems:
            assert len(problems) == 1
            assert problems[0].startswith("tokenizer.json: ")
            assert "\n" not in problems[0]
        else:
            assert Tokenizer.load(original).fingerprint == small.fingerprint
    finally:
        path.write_bytes(before)


def test_all_problems_are_listed_a_line_each(folder, capsys):
    (folder / "chunk-0-1.bin").unlink()
    (folder / "val" / "a.jsonl").write_text("cut")
    flip(folder / "chunk-0-3.bin", 20)
    shutil.copy(folder / "chunk-0-2.bin", folder / "chunk-0-4.bin")
    (folder / "tokenizer.json").unlink()
    assert main(["inspect", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-5:] == [
        "tokenizer.json: missing",
        "val/a.jsonl: 3 bytes instead of 11",
        "chunk-0-1.bin: missing",
        "chunk-0-3.bin: changed since it was prepared (its sha256 differs)",
        "chunk-0-4.bin: changed since it was prepared (its sha256 differs)",
    ]
    assert "failed: " in err
    assert "damaged: 5 problems" in err


def rewrite(folder: Path, **changes: Any) -> None:
    dataclasses.replace(Manifest.read(folder), **changes).write(folder)


@pytest.mark.parametrize(("change", "problems"), [
    (lambda m: {"documents": 16}, ["16 documents, but 14 in the chunks"]),
    (lambda m: {"tokens": 9},
     [r"tokens is 9, but [\d,]+ in its sources", r": 9 tokens, but [\d,]+ in the chunks"]),
    (lambda m: {"text_bytes": 9}, [r"text_bytes is 9, but [\d,]+ in its sources"]),
    (lambda m: {"sources": [dataclasses.replace(m.sources[0], unused=5)]},
     ["21 documents of 'a' were read, but 25 are accounted for"]),
    (lambda m: {"chunks": m.chunks[:-1]},
     [r"[\d,]+ tokens, but [\d,]+ in the chunks", "14 documents, but 13 in the chunks",
      r"no end-of-text after the last \d+ tokens", "index.json: does not list the chunks"]),
])  # fmt: skip
def test_counts_that_do_not_add_up_are_named(folder, change, problems):
    rewrite(folder, **change(Manifest.read(folder)))
    found = found_in(folder)
    assert len(found) == len(problems)
    for problem, pattern in zip(found, problems, strict=True):
        assert re.search(pattern, problem), problem


def test_tokens_beyond_the_vocabulary_are_named(tmp_path, small):
    data = prepare(tmp_path / "data", [[1, 2], [3, small.vocab_size, 60000]], small, 4)
    found = inspect(data)
    assert found.problems == [
        f"chunk-0-1.bin: 2 tokens are beyond the vocabulary of {small.vocab_size} entries"
    ]
    assert len(found.samples) == 2


def test_a_file_that_is_no_chunk_is_named_though_its_hash_is_right(folder):
    manifest = Manifest.read(folder)
    flip(folder / manifest.chunks[0].name, 4)
    sha256 = sha256_of(folder / manifest.chunks[0].name)
    changed = dataclasses.replace(manifest.chunks[0], sha256=sha256)
    rewrite(folder, chunks=[changed, *manifest.chunks[1:]])
    assert found_in(folder) == [f"{changed.name}: not a chunk of one bare array of tokens"]


documents_of_ids = st.lists(st.lists(st.integers(0, 258), max_size=70), max_size=25)


@settings(max_examples=200)
@given(
    documents=documents_of_ids,
    rest=st.lists(st.integers(0, 258), max_size=40),
    cuts=st.lists(st.integers(0, 1000)),
    seed=st.integers(0, 99),
)
def test_statistics_are_those_of_the_documents_wherever_the_stream_is_cut(
    documents, rest, cuts, seed
):
    whole, cut = (TokenStream(300, 259, samples=4, seed=seed) for _ in range(2))
    tokens = np.array([id for ids in documents for id in [*ids, 300]] + rest, np.uint16)
    whole.add(tokens)
    for part in np.split(tokens, sorted(min(cut, len(tokens)) for cut in cuts)):
        cut.add(part)
    lengths = [len(ids) + 1 for ids in documents]
    for stream in (whole, cut):
        assert (stream.tokens, stream.documents) == (len(tokens), len(documents))
        assert stream.unfinished == len(rest)
        assert stream.strange == len(documents)
        assert sorted(stream.lengths.elements()) == sorted(lengths)
        if lengths:
            assert stream.median == statistics.median(lengths)
            assert stream.histogram[0][1] > 0
            assert stream.histogram[-1][1] > 0
        for low, count, inside in stream.histogram:
            those = [length for length in lengths if low <= length < 2 * low]
            assert (len(those), sum(those)) == (count, inside)
        assert sum(count for _, count, _ in stream.histogram) == len(lengths)
    assert whole.drawn == cut.drawn
    assert len(whole.drawn) == min(4, len(documents))
    for _, number, position, length in whole.drawn:
        assert position == sum(lengths[:number])
        assert length == lengths[number]


def test_every_document_is_equally_likely_to_be_a_sample():
    tokens = [*[0] * 9, 1, 1, 0, 0, 1, 1]  # of 10, 1, 3 and 1 tokens
    times = np.zeros(4)
    for seed in range(2000):
        stream = TokenStream(1, 2, samples=2, seed=seed)
        stream.add(np.array(tokens[:11]))
        stream.add(np.array(tokens[11:]))
        times[[number for _, number, _, _ in stream.drawn]] += 1
    assert times.sum() == 4000
    assert np.abs(times / 2000 - 0.5).max() < 0.05


@settings(max_examples=12)
@given(
    texts=st.lists(st.text(max_size=60), min_size=1, max_size=12), chunk_tokens=st.integers(9, 90)
)
def test_samples_are_the_documents_even_across_chunks(texts, chunk_tokens, small):
    with tempfile.TemporaryDirectory() as parent:
        data = of_texts(Path(parent) / "data", small, texts, chunk_tokens)
        found = inspect(data, samples=20)
    assert found.problems == []
    assert [sample.text for sample in found.samples] == texts
    assert [sample.number for sample in found.samples] == list(range(len(texts)))
    lengths = [len(small.encode(text)) + 1 for text in texts]
    assert [sample.length for sample in found.samples] == lengths
    assert [sample.position for sample in found.samples] == np.cumsum([0, *lengths[:-1]]).tolist()


@pytest.mark.parametrize("length", [HEAD + TAIL, HEAD + TAIL + 1, 2199, 2200, 2201, 5000])
@pytest.mark.parametrize("alphabet", ["x", "é", "日本", "\U0001f600a"])
def test_a_long_document_is_shown_by_its_two_ends(tmp_path, small, alphabet, length):
    text = "".join(f"{n}{alphabet}" for n in range(length))[:length]
    (sample,) = inspect(of_texts(tmp_path / "data", small, [text], 1000)).samples
    if length == HEAD + TAIL:
        assert sample.text == text
    else:
        assert sample.text == text[:HEAD] + CUT + text[-TAIL:]


def test_more_ids_than_sixteen_bits_are_read(tmp_path, large):
    texts = ["a long document", "short"]
    found = inspect(of_texts(tmp_path / "data", large, texts))
    assert found.manifest.dtype == "uint32"
    assert (found.problems, [sample.text for sample in found.samples]) == ([], texts)


def test_what_is_printed_is_literal_and_on_one_line(original, capsys):
    assert main(["inspect", str(original), "--samples", "99"]) == 0
    out = capsys.readouterr().out
    assert r"[bold]hell[/bold]\x1b[31m :smile:" in out
    assert "Ünï 日本 \U0001f600\\n" in out
    assert "\x1b" not in out
    assert out.endswith(
        f"{original}: intact: every byte is as it was prepared, and the counts add up\n"
    )


def test_the_report_says_what_became_of_the_documents(tmp_path, small, capsys):
    sources = [
        source_count(
            "novels [a]", read=1234, documents=2, validation=17, rejected={"too short": 1200},
            exact_duplicates=4, near_duplicates=5, unused=6, passes=3.25, tokens=9, text_bytes=5,
            faults=["part-7.jsonl.gz: cut off [at 12]"],
        ),
        source_count("web", documents=1, tokens=3, text_bytes=4),
    ]  # fmt: skip
    streams = [[65] * 4, [66], [67] * 4]
    data = prepare(tmp_path / "data", streams, small, 5, text_bytes=9, sources=sources)
    assert main(["inspect", str(data)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["novels", "[a]", "web"] in rows
    for expected in (
        "share of tokens|75.0%|25.0%", "passes|3.25|1.00", "read|1,234|1", "written|2|1",
        "validation|17|0", "exact duplicates|4|0", "near duplicates|5|0", "unused|6|0",
        "rejected|1,200|0", "too short|1,200|0",
    ):  # fmt: skip
        assert expected.replace("|", " ").split() in rows
    assert ["novels", "[a]", "part-7.jsonl.gz:", "cut", "off", "[at", "12]"] in rows
    assert ["bytes", "a", "token", "0.75"] in rows
    assert ["2", "to", "3", "33.3%", "█" * 8, "16.7%", "█" * 3] in rows
    assert ["4", "to", "7", "66.7%", "█" * 15, "83.3%", "█" * 15] in rows
    assert any(row[-6:] == ["median", "5.0,", "mean", "4.0,", "most", "5"] for row in rows)
