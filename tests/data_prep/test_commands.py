"""`dualpath prepare`, `prepare inspect` and `tokenizer`: what they write, say and
find."""

import dataclasses
import gzip
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import fetching, packaged
from data_prep import tokenizer as tokenizer_command
from data_prep.records import PAIRS
from data_prep.settings import settings_from
from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.base.files import hash_file
from dualpath_cli.cli.main import main
from dualpath_cli.data import primitives
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer, train_bpe
from dualpath_cli.recipe.recipes import find_recipe, read_recipe_file
from tests.data.faulty_data import flip, intact, source_count, write_data_folder
from tests.data_prep.conftest import rows_of, write_jsonl


def prepare(words: list[str]) -> int:
    """The exit code of `dualpath prepare WORDS`."""
    return main(["prepare", *words])


def test_the_papers_recipe_has_tokens_for_its_training():
    # 18,360 steps of 512 sequences, each a block of 4,097 tokens; every chunk loses a
    # block.
    settings = settings_from(read_recipe_file(find_recipe("paper", kind="data")))
    assert settings.tokens is not None
    chunks = settings.tokens // settings.chunk_tokens + 1
    assert settings.tokens >= 18_360 * 512 * 4097 + chunks * 4097


@pytest.mark.parametrize(
    ("spec", "name", "path"),
    [
        ("novels=a/b.jsonl", "novels", "a/b.jsonl"),
        ("a/b.c.jsonl.gz", "b.c", "a/b.c.jsonl.gz"),
        ("nemotron-cc:quality=high/kind=actual", "nemotron-cc", None),
        ("web=nemotron-cc:quality=low", "web", "nemotron-cc:quality=low"),
        ("hf:openai/gsm8k/main/a=b/*", "gsm8k", None),
        ("x=hf:openai/gsm8k", "x", "hf:openai/gsm8k"),
        ("data/quality=high/kind=actual", "kind-actual", None),
        ("my corpus.jsonl", "my-corpus", None),
    ],
)
def test_a_source_is_named_by_itself_or_by_where_it_is(spec, name, path):
    (source,) = settings_from({"sources": [spec], "tokenizer": "t"}).sources
    assert (source.name, source.path) == (name, path or spec)
    assert source.is_remote == ("hf:" in spec or "nemotron-cc" in spec)


@pytest.mark.parametrize("sources", ["a.jsonl", {"name": "a", "path": "a.jsonl"}])
def test_sources_that_are_not_a_list_are_told_its_form(sources):
    with pytest.raises(UserError, match="sources must be a list, each NAME=PATH or a"):
        settings_from({"sources": sources, "tokenizer": "t"})


@pytest.mark.parametrize("letter", ["n", "日"])
def test_a_name_too_long_for_its_held_out_texts_is_refused_at_once(letter):
    def named(count: int) -> str:
        sources = [f"{letter * count}.jsonl"]
        (source,) = settings_from({"sources": sources, "tokenizer": "t"}).sources
        return source.name

    most = 100 // len(letter.encode())
    assert named(most) == letter * most
    said = r"at most 100 bytes, not .*; give another by NAME=PATH"
    with pytest.raises(UserError, match=said):
        named(most + 1)


SAMPLE = {
    "chunk-0-0.bin": "cd35dc66d869",
    "tokenizer.json": "a4c8c70f11dd",
    "val/arithmetic.jsonl": "6cd4b1a715df",
    "val/facts.jsonl": "88392f5fa258",
    "val/prose.jsonl": "a2aaad7594af",
}


def test_the_sample_comes_with_tokenizer_and_held_out_texts(tmp_path, capsys):
    out = tmp_path / "data" / "sample"
    assert prepare(["--source", "sample", "--out", str(out)]) == 0
    manifest = Manifest.read(out)
    assert intact(manifest, out)
    # documented numbers rest on it
    assert manifest.fingerprint.startswith("bebe093e372f")
    digests = {name: hash_file(out / name)[:12] for name in SAMPLE}
    assert digests == SAMPLE
    assert {f"val/{path.name}" for path in (out / "val").iterdir()} < set(SAMPLE)
    assert f"{manifest.tokens:,} tokens" in capsys.readouterr().out
    assert prepare(["--source", "sample", "--out", str(out)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_primitives_come_with_a_token_for_each_byte_and_held_out_texts(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(primitives, "DOCUMENTS", 300)
    few = hashlib.sha256(packaged.primitives_texts())
    monkeypatch.setattr(packaged, "PRIMITIVES_SHA256", few.hexdigest())
    out = tmp_path / "data"
    words = ["--source", "primitives", "--tokens", "20K", "--out", str(out)]
    words += ["--workers", "1"]
    assert prepare(words) == 0
    manifest = Manifest.read(out)
    assert manifest.vocab_size == 257
    # a byte a token, and end-of-text after each document
    assert manifest.tokens == manifest.text_bytes + manifest.documents
    kinds = {path.name for path in (out / "val").iterdir()}
    assert kinds == {"addition.jsonl", "assignment.jsonl"}

    # The texts are not drawn anew.
    monkeypatch.setattr(packaged, "primitives_texts", None)
    capsys.readouterr()
    assert prepare(words) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_primitives_are_written_once_by_preparations_that_begin_together(
    tmp_path, monkeypatch
):
    texts = b'{"text": "1 + 1 = 2"}\n'
    digest = hashlib.sha256(texts).hexdigest()
    monkeypatch.setattr(packaged, "PRIMITIVES_SHA256", digest)
    drawn: list[bytes] = []

    def draw() -> bytes:
        drawn.append(texts)
        time.sleep(0.5)
        return texts

    monkeypatch.setattr(packaged, "primitives_texts", draw)
    file = packaged.PACKAGED["primitives"].file
    with ThreadPool(2) as pool:
        first, second = pool.map(file, [tmp_path, tmp_path], chunksize=1)
    assert len(drawn) == 1
    assert first == second
    assert not first.has_changed()


def test_options_win_over_the_recipe(tmp_path, small_folder):
    texts = [f"hello {n}" for n in range(9)]
    recipe = {
        "tokenizer": str(small_folder),
        "sources": [
            {"name": "a", "path": str(write_jsonl(tmp_path / "a.jsonl", texts))}
        ],
        "seed": 1,
        "min_chars": 3,
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["--config", str(tmp_path / "mix.yaml"), "--workers", "1"]
    assert prepare([*arguments, "--seed", "2", "--out", str(tmp_path / "out")]) == 0
    manifest = Manifest.read(tmp_path / "out")
    assert (manifest.settings["seed"], manifest.settings["min_chars"]) == (2, 3)
    # What the manifest holds is a recipe again, of the same data.
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(manifest.settings))
    arguments = ["--config", str(tmp_path / "again.yaml"), "--workers", "1"]
    assert prepare([*arguments, "--out", str(tmp_path / "again")]) == 0
    assert Manifest.read(tmp_path / "again").fingerprint == manifest.fingerprint


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("a.jsonl --min-jaccard 0.9", "--min-jaccard has no effect without "),
        ("a.jsonl --num-files 2", "--num-files has no effect without "),
        ("none.jsonl --ray auto", "--workers counts processes of one machine"),
        ("a=**/*.jsonl", "would match 'out/val/a.jsonl', which may be written"),
        ("**/*.zst", "would match 'out/rejected.jsonl.zst', which may be written"),
        (
            "a=**/train.jsonl primitives",
            "would match the download 'downloads/primitives/train.jsonl'; give another",
        ),
        ("*.jsonl", ""),
    ],
)
def test_options_without_effect_and_globs_of_the_output_are_refused(
    words, reason, tmp_path, small_folder, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "train.jsonl", "b.jsonl.zst"):
        write_jsonl(tmp_path / name, ["hello"])
    arguments = ["--source", *words.split(), "--tokenizer", str(small_folder)]
    code = prepare([*arguments, "--workers", "1", "--out", "out"])
    assert code == (2 if reason else 0)
    assert reason in capsys.readouterr().err


def test_what_was_left_out_and_what_is_missing_is_said(tmp_path, small_folder, capsys):
    (tmp_path / "texts").mkdir()
    known = " ".join(f"word{n}" for n in range(8))
    write_jsonl(
        tmp_path / "texts" / "a.jsonl",
        ["hello", "", "hello", "hell", f"x {known.upper()}"],
    )
    benchmark = write_jsonl(tmp_path / "benchmark.jsonl", [known, known[:-6], ""])
    (tmp_path / "texts" / "b.jsonl.gz").write_bytes(b"not gzip")
    arguments = ["--source", str(tmp_path / "texts"), "--tokenizer", str(small_folder)]
    arguments += ["--tokens", "1000", "--workers", "1", "--out", str(tmp_path / "out")]
    assert prepare([*arguments, "--decontaminate", str(benchmark)]) == 0
    captured = capsys.readouterr()
    assert "2 rejected, 1 exact duplicate, fingerprint" in captured.out
    compared, *faults = captured.err.splitlines()
    assert compared.startswith("decontaminate: documents are compared with 1 text of ")
    assert compared.endswith("benchmark.jsonl', and not with 2 of fewer than 8 words")
    assert len(faults) == 4
    assert all(line.startswith("warning: ") for line in faults)
    assert "b.jsonl.gz: cannot be read" in faults[0]
    assert "1 of 5 documents contaminated" in faults[1]
    assert "1 of 5 documents empty" in faults[2]
    way_out = "source 'texts' has no more; raise its max_epochs in a recipe"
    assert faults[3].endswith(f" tokens instead of 1,000: {way_out}")
    assert rows_of(tmp_path / "out" / "rejected.jsonl.zst")[1]["detail"] == known


@pytest.mark.parametrize("texts", [[], ["", "seven words do not make one run"]])
def test_evaluation_texts_that_no_document_can_be_compared_with_are_refused(
    texts, tmp_path, small_folder, capsys
):
    write_jsonl(tmp_path / "a.jsonl", ["hello"])
    write_jsonl(tmp_path / "long.jsonl", ["one two three four five six seven eight"])
    write_jsonl(tmp_path / "short.jsonl", texts)
    arguments = [
        "--source",
        str(tmp_path / "a.jsonl"),
        "--tokenizer",
        str(small_folder),
    ]
    arguments += [
        "--decontaminate",
        str(tmp_path / "long.jsonl"),
        str(tmp_path / "short.jsonl"),
    ]
    assert prepare([*arguments, "--out", str(tmp_path / "out")]) == 2
    said = (
        f"short.jsonl' has no text to compare with (texts: {len(texts)} of fewer than "
        "8 words)"
    )
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("size", "name", "code"),
    [("small", "a.jsonl", 0), ("large", "a.jsonl", 2), ("small", "a.jsonl.gz", 2)],
)
def test_the_disk_that_is_needed_goes_by_the_size_of_a_token_and_compression(
    size, name, code, small, large, tmp_path, capsys, monkeypatch
):
    text = write_jsonl(tmp_path / "text", [f"hello {n} times" for n in range(99)])
    content = text.read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    free = 2 * path.stat().st_size
    monkeypatch.setattr(fetching, "_free_bytes", lambda folder: free)
    {"small": small, "large": large}[size].save(tmp_path)
    words = ["--source", str(path), "--tokenizer", str(tmp_path)]
    assert prepare([*words, "--workers", "1", "--out", str(tmp_path / "out")]) == code
    # Without a source that is downloaded, --num-files would be refused.
    said = "are free; name a larger disk, or fewer --tokens\n"
    assert capsys.readouterr().err.endswith(said) == bool(code)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"max_epochs": 9}, 0),  # without weight and --tokens all is written once
        ({"max_epochs": 9, "weight": 1.0}, 2),
        ({"max_epochs": 1, "weight": 1.0}, 0),
    ],
)
def test_the_disk_that_is_needed_goes_by_the_passes_that_are_written(
    keys, code, small_folder, tmp_path, capsys, monkeypatch
):
    path = write_jsonl(tmp_path / "a.jsonl", [f"hello {n} times" for n in range(99)])
    recipe = {
        "tokenizer": str(small_folder),
        "sources": [{"name": "a", "path": str(path), **keys}],
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(recipe))
    free = 2 * path.stat().st_size
    monkeypatch.setattr(fetching, "_free_bytes", lambda folder: free)
    words = ["--config", str(tmp_path / "mix.yaml"), "--workers", "1"]
    assert prepare([*words, "--out", str(tmp_path / "out")]) == code
    assert ("are needed and" in capsys.readouterr().err) == bool(code)


def test_a_share_that_holds_nothing_out_is_said(tmp_path, small_folder, capsys):
    texts = {"a": ["hello", "hell"], "blank": [" "]}
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", texts[name]) for name in texts]
    arguments = ["--source", *map(str, paths), "--tokenizer", str(small_folder)]
    arguments += ["--val-fraction", "1e-9", "--workers", "1"]
    assert prepare([*arguments, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "warning: a: none of 2 documents is held out; raise" in said
    assert "warning: blank: 1 of 1 documents empty" in said
    assert said.count("held out") == 1


@pytest.mark.parametrize(("name", "code"), [("none.txt", 2), ("a.txt", 0)])
def test_neither_a_mistake_nor_a_preparation_imports_torch_or_litdata(
    name, code, tmp_path, small_folder
):
    # Half a gigabyte and seconds, which is why chunks are not written by litdata.
    (tmp_path / "a.txt").write_text("hello hello")
    program = (
        "import sys; from dualpath_cli.cli.main import main; "
        "code = main(['prepare', *sys.argv[1:]]); "
        "sys.exit('imported' if {'torch', 'litdata'} & set(sys.modules) else code)"
    )
    words = ["--source", str(tmp_path / name), "--tokenizer", str(small_folder)]
    words += ["--workers", "1", "--duplicates", "near", "--out", str(tmp_path / "out")]
    assert subprocess.run([sys.executable, "-c", program, *words]).returncode == code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, which the commands are run in."""
    monkeypatch.chdir(tmp_path)
    for kind in packaged.SAMPLE_KINDS:
        write_jsonl(tmp_path / f"{kind}.jsonl", packaged.sample_documents(kind)[:100])
    Path("bad.jsonl").write_text("{")
    Path("few.txt").write_text("too few")
    return tmp_path


def train(*sources: str, size: int = 400, out: str = "out", more: str = "") -> int:
    words = ["--vocab-size", str(size), "--out", out, *more.split()]
    return main(["tokenizer", "--source", *sources, *words])


def test_equal_texts_give_equal_bytes_which_a_preparation_takes(here, capsys):
    assert (
        train("prose.jsonl", "facts.jsonl")
        == train("prose.jsonl", "facts.jsonl", out="b")
        == 0
    )
    first, second = (Path(out, "tokenizer.json").read_bytes() for out in ("out", "b"))
    assert first == second
    assert Tokenizer.load("out").vocab_size == 400
    words = "prepare --source prose.jsonl --tokenizer out --out data --workers 1"
    assert main(words.split()) == 0
    assert Manifest.read("data").tokenizer == Tokenizer.load("out").fingerprint
    assert "out/tokenizer.json: 400 entries, fingerprint" in capsys.readouterr().out


def test_another_tokenizer_is_replaced_only_when_told(here, capsys):
    assert train("prose.jsonl") == 0
    before = Path("out/tokenizer.json").read_bytes()
    assert train("facts.jsonl") == 2
    assert "'out/tokenizer.json'" in capsys.readouterr().err
    assert Path("out/tokenizer.json").read_bytes() == before
    # A source that is given again counts again.
    assert train("prose.jsonl", *["facts.jsonl"] * 9, more="--overwrite") == 0
    assert train("prose.jsonl", "facts.jsonl", out="b") == 0
    assert Tokenizer.load("out").fingerprint != Tokenizer.load("b").fingerprint
    tokens = sum(
        len(ids)
        for ids in Tokenizer.load("b").encode_batch(
            packaged.sample_documents("prose")[:100]
        )
    )
    size = sum(len(text.encode()) for text in packaged.sample_documents("prose")[:100])
    assert re.search(rf"prose .* {size / (tokens + 100):.2f} ", capsys.readouterr().out)


@pytest.mark.parametrize("letters", ["ACGT", "#-+=", "aé日ü"])
def test_a_word_of_any_length_is_cut_for_training_and_said(
    here, capsys, letters, monkeypatch
):
    word = "".join(random.Random(0).choices(letters, k=1 << 18))
    write_jsonl(Path("long.jsonl"), [f"some {word} words", "some words"])
    given: list[str] = []

    def noted(texts: Iterable[str], size: int) -> str:
        given.extend(texts)
        return train_bpe(given, size)

    monkeypatch.setattr(tokenizer_command, "train_bpe", noted)
    assert train("long.jsonl") == 0
    said = "words of more than 1,000 characters: 1, cut for training into 263 parts"
    assert said in capsys.readouterr().err
    assert max(len(run) for text in given for run in re.findall(r"\S+", text)) == 1000
    assert "".join(given) == f"some {word} wordssome words"


def test_the_texts_may_be_in_another_field(here, capsys):
    rows = Path("prose.jsonl").read_text().replace('{"text":', '{"content":')
    Path("other.jsonl").write_text(rows)
    assert (
        train("prose.jsonl")
        == train("other.jsonl", out="b", more="--field content")
        == 0
    )
    assert (
        Path("out/tokenizer.json").read_bytes() == Path("b/tokenizer.json").read_bytes()
    )
    assert train("other.jsonl", out="c") == 2
    assert "no field 'text'" in capsys.readouterr().err


def test_ordinary_texts_are_trained_on_uncut(here):
    assert train("prose.jsonl") == 0
    expected = train_bpe(packaged.sample_documents("prose")[:100], 400)
    assert Path("out/tokenizer.json").read_text() == expected


# Inspection: what changed since a folder was prepared is named, and what it says is
# true


TEXTS = [
    "hello world",
    "Ünï 日本 \U0001f600\n",
    "[bold]hell[/bold]\x1b[31m :smile:",
    "x" * 900,
]
TEXTS += [f"{n} hello" * n for n in range(1, 11)]
UNVERIFIED = {"request", "settings"}
UNVERIFIED_OF_A_SOURCE = {"name", "path", "passes", "normalised", "faults"}


@pytest.fixture(scope="module")
def original(small: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of several chunks."""
    folder = tmp_path_factory.mktemp("original") / "data"
    (folder / "val").mkdir(parents=True)
    for name in ("rejected.jsonl.zst", "val/a.jsonl"):
        (folder / name).write_bytes(name.encode())
    ids = [id for text in TEXTS for id in [*small.encode(text), small.eot_id]]
    made = {"tokens": len(ids), "text_bytes": 999}
    left_out = {
        "rejected": {"too short": 3},
        "exact_duplicates": 2,
        "near_duplicates": 4,
    }
    left_out |= {
        "unused": 1,
        "validation": 1,
        "faults": ["b.jsonl.gz: cut off [at 12]"],
    }
    count = source_count("novels [a]", read=25, documents=14, **left_out, **made)
    write_data_folder(folder, ids, small, 300, **made, documents=14, sources=[count])
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the original that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def problem_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that an inspection ends with; empty where all is intact."""
    code = prepare(["inspect", str(folder), "--samples", "0"])
    err = capsys.readouterr().err
    assert code == (2 if err else 0)
    assert err.count("\n") == bool(err)
    return err


def test_a_flipped_byte_of_any_file_is_found_and_named(original, capsys):
    names = sorted(
        p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file()
    )
    names.remove("manifest.json")
    names.remove("tokenizer.json")
    assert {"index.json", "val/a.jsonl", "chunk-0-0.bin", "chunk-0-3.bin"} < set(names)
    for name in names:
        size = (original / name).stat().st_size
        for position in {0, 4, 8, size // 2, size - 1}:
            flip(original / name, position)
            assert f"{original / name}: " in problem_of(original, capsys)
            flip(original / name, position)
    assert problem_of(original, capsys) == ""


@settings(max_examples=60)
@given(data=st.data(), mask=st.integers(1, 255))
def test_a_flipped_byte_of_the_manifest_is_found_unless_nothing_can_tell(
    original, data, mask
):
    from data_prep.inspection import Inspect, inspect

    path = original / "manifest.json"
    before = path.read_bytes()

    def verified(content: bytes) -> Any:
        manifest = json.loads(content)
        sources = [
            {key: s[key] for key in s if key not in UNVERIFIED_OF_A_SOURCE}
            for s in manifest.pop("sources")
        ]
        # By which reason documents were rejected is not known either, only how many.
        for source in sources:
            source["rejected"] = list(source["rejected"].values())
        return {
            key: manifest[key] for key in manifest if key not in UNVERIFIED
        }, sources

    try:
        flip(path, data.draw(st.integers(0, len(before) - 1)), mask)
        try:
            unseen = verified(path.read_bytes()) == verified(before)
        except (ValueError, KeyError, AttributeError, TypeError):
            unseen = False
        try:
            inspect(Inspect(str(original), samples=0))
        except (UserError, RunFailed):
            return
        assert unseen
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: {"documents": 16}, "16 documents, but 14 in the chunks"),
        (lambda m: {"tokens": 9}, r"9 tokens, but [\d,]+ in the chunks"),
        (lambda m: {"text_bytes": 9}, r"text_bytes is 9, but 999 in its sources"),
        (
            lambda m: {"sources": [dataclasses.replace(m.sources[0], unused=5)]},
            r"25 documents of 'novels \[a\]' were read, but 29 are accounted for",
        ),
    ],
)
def test_counts_that_do_not_add_up_are_named(folder, capsys, change, problem):
    manifest = Manifest.read(folder)
    dataclasses.replace(manifest, **change(manifest)).write(folder)
    assert re.search(f"{folder}/manifest.json: {problem};", problem_of(folder, capsys))


def test_the_report_says_what_became_of_the_documents_and_shows_them(
    original, small, capsys
):
    assert prepare(["inspect", str(original), "--samples", "99"]) == 0
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    for expected in (
        "novels [a]",
        "share of tokens 100.0%",
        "passes 1.00",
        "read 25",
        "written 14",
        "validation 1",
        "exact duplicates 2",
        "near duplicates 4",
        "unused 1",
        "too short 3",
        "fault of novels [a]: b.jsonl.gz: cut off [at 12]",
    ):
        assert expected in rows
    lengths = [len(small.encode(text)) + 1 for text in TEXTS]
    median, mean = np.median(lengths), np.mean(lengths)
    assert f"median {median:,.1f}, mean {mean:,.1f}, " in out
    assert f"most {max(lengths)}\n" in out
    shown = re.findall(
        r"document (\d+) of 14, (\d+) tokens from token ([\d,]+) on:", out
    )
    starts = [f"{start:,}" for start in np.cumsum([0, *lengths[:-1]])]
    assert shown == [
        (str(n), str(length), start)
        for n, (length, start) in enumerate(zip(lengths, starts, strict=True), 1)
    ]
    # Literally and on one line, also across chunks; of a long one the beginning.
    assert r"[bold]hell[/bold]\x1b[31m :smile:" in out
    assert "Ünï 日本 \U0001f600\\n" in out
    assert "\x1b" not in out
    joined = "".join(line.strip() for line in out.splitlines())
    assert re.search("[^x]x{400} ?\\[\\.\\.\\.\\]", joined)
    for n in range(1, 11):
        assert f"{n} hello" * n in re.sub(r"\s+", " ", out)
    assert out.endswith(
        f"{original}: intact: every byte is as it was prepared, and the counts add up\n"
    )


def test_compared_pairs_are_counted_and_shown_also_where_there_are_none(
    original, folder, capsys
):
    words = ["inspect", str(folder), "--samples", "0", "--duplicates", "9"]
    manifest = Manifest.read(folder)

    def prepared_with(**chosen: Any) -> None:
        dataclasses.replace(manifest, settings=chosen).write(folder)

    # Before any file is read: one that is missing is not named.
    (folder / "val" / "a.jsonl").unlink()
    for chosen in ({"duplicates": "exact"}, {"duplicates": "near", "min_jaccard": 0.0}):
        prepared_with(**chosen)
        assert prepare(words) == 2
        assert "no texts were compared for" in capsys.readouterr().err
    shutil.copy(original / "val" / "a.jsonl", folder / "val")

    prepared_with(duplicates="near", min_jaccard=0.75)
    assert prepare(words) == 0
    assert "0 pairs whose texts were compared" in capsys.readouterr().out

    texts = [f"{'same ' * 90}{word}" for word in ("one", "two")]
    places = [{"source": "a", "file": "a.jsonl", "row": row} for row in (1, 2)]
    pairs = [
        {"kind": kind, "jaccard": jaccard, "places": places, "texts": texts}
        for kind, jaccard in (("near", 0.8), ("unlike", 0.7))
    ]
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (folder / PAIRS).write_bytes(zstandard.compress(lines.encode()))
    assert prepare(words) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"2 pairs whose texts were compared", "0.7 to 0.8 0 1", "0.8 to 0.9 1 0"} < {
        *shown
    }
    assert shown.count("a: a.jsonl row 2") == 2
    assert {"removed, Jaccard index 0.80:", "kept, Jaccard index 0.70:"} < {*shown}
    # Long texts are shown from before their first difference on.
    excerpts = [line for line in shown if line.startswith("[...] same ")]
    assert [line.split()[-1] for line in excerpts] == ["one", "two"] * 2
