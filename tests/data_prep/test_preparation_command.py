"""`dualpath prepare`: what it writes, what it says, how it ends."""

import subprocess
import sys

import pytest
import yaml

from data_prep.__main__ import main
from data_prep.sources import sample
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer
from tests.data_prep.preparing import rows_of, texts_of, write_jsonl
from tests.manifests import intact


def test_the_sample_comes_with_tokenizer_and_held_out_texts(tmp_path, capsys):
    out = tmp_path / "data" / "sample"
    assert main(["--source", "sample", "--out", str(out)]) == 0
    manifest = Manifest.read(out)
    assert intact(manifest, out)
    assert manifest.fingerprint.startswith("bebe093e372f")  # documented numbers rest on it
    assert manifest.documents == len(list(sample.documents("train")))
    assert Tokenizer.load(out).vocab_size == 2048
    assert {path.name for path in (out / "val").iterdir()} == {
        f"{kind}.jsonl" for kind in sample.KINDS
    }
    assert f"{manifest.tokens:,} tokens" in capsys.readouterr().out
    for path in (tmp_path / "data" / "downloads").rglob("*.jsonl"):
        path.unlink()
    assert main(["--source", "sample", "--out", str(out)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_options_win_over_the_recipe(tmp_path, small_folder):
    texts = [f"hello {n}" for n in range(9)]
    recipe = {
        "tokenizer": str(small_folder),
        "sources": [{"name": "a", "path": str(write_jsonl(tmp_path / "a.jsonl", texts))}],
        "seed": 1,
        "min_chars": 3,
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["--config", str(tmp_path / "mix.yaml"), "--workers", "1"]
    assert main([*arguments, "--seed", "2", "--out", str(tmp_path / "out")]) == 0
    manifest = Manifest.read(tmp_path / "out")
    assert (manifest.settings["seed"], manifest.settings["min_chars"]) == (2, 3)
    # What the manifest holds is a recipe again, of the same data.
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(manifest.settings))
    arguments = ["--config", str(tmp_path / "again.yaml"), "--workers", "1"]
    assert main([*arguments, "--out", str(tmp_path / "again")]) == 0
    assert Manifest.read(tmp_path / "again").fingerprint == manifest.fingerprint


def test_what_was_left_out_and_what_is_missing_is_said(tmp_path, small_folder, capsys):
    (tmp_path / "texts").mkdir()
    known = " ".join(f"word{n}" for n in range(8))
    write_jsonl(
        tmp_path / "texts" / "a.jsonl", ["hello", "", "hello", "hell", f"x {known.upper()}"]
    )
    benchmark = write_jsonl(tmp_path / "benchmark.jsonl", [known])
    (tmp_path / "texts" / "b.jsonl.gz").write_bytes(b"not gzip")
    arguments = ["--source", str(tmp_path / "texts"), "--tokenizer", str(small_folder)]
    arguments += ["--tokens", "1000", "--workers", "1", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--decontaminate", str(benchmark)]) == 0
    captured = capsys.readouterr()
    assert "2 rejected, 1 exact duplicates, fingerprint" in captured.out
    faults = captured.err.splitlines()
    assert len(faults) == 4
    assert all(line.startswith("warning: ") for line in faults)
    assert "b.jsonl.gz: cannot be read" in faults[0]
    assert "1 of 5 documents contaminated" in faults[1]
    assert "1 of 5 documents empty" in faults[2]
    assert "tokens instead of 1,000: source 'texts' has no more" in faults[3]
    assert rows_of(tmp_path / "out" / "rejected.jsonl.zst")[1]["detail"] == known


def test_the_source_that_ends_a_weighted_mix_is_named(tmp_path, small_folder, capsys):
    sources = [
        {"path": str(write_jsonl(tmp_path / f"{name}.jsonl", texts)), "weight": 1}
        for name, texts in (("long", [f"hello {n}" for n in range(50)]), ("short", ["hello"]))
    ]
    recipe = {"tokenizer": str(small_folder), "sources": sources}
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["--config", str(tmp_path / "mix.yaml"), "--workers", "1"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert "the mix ends with source 'short'" in capsys.readouterr().err


def test_any_texts_of_a_glob_are_prepared_a_file_a_document(tmp_path, small_folder, capsys):
    for name in ("a.rst", "deep/b.rst", "c.md"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(f"hello {name}")
    (tmp_path / "texts" / "d.rst").write_bytes(b"\x89PNG")
    common = ["--tokenizer", str(small_folder), "--workers", "1", "--out", str(tmp_path / "out")]
    assert main(["--source", f"notes={tmp_path}/texts/**/*.rst", *common]) == 0
    assert sorted(texts_of(tmp_path / "out")) == ["hello a.rst", "hello deep/b.rst"]
    assert "1 of 3 documents unreadable" in capsys.readouterr().err
    assert main(["--source", f"{tmp_path}/texts", *common, "--overwrite"]) == 0
    assert texts_of(tmp_path / "out") == ["hello c.md"]


@pytest.mark.parametrize(("name", "code"), [("none.txt", 2), ("a.txt", 0)])
def test_neither_a_mistake_nor_a_preparation_imports_torch_or_litdata(
    name, code, tmp_path, small_folder
):
    # Half a gigabyte and seconds, which is why chunks are not written by litdata.
    (tmp_path / "a.txt").write_text("hello hello")
    program = (
        "import sys; from data_prep.__main__ import main; "
        "code = main(sys.argv[1:]); "
        "sys.exit('imported' if {'torch', 'litdata'} & set(sys.modules) else code)"
    )
    words = ["--source", str(tmp_path / name), "--tokenizer", str(small_folder)]
    words += ["--workers", "1", "--duplicates", "near", "--out", str(tmp_path / "out")]
    assert subprocess.run([sys.executable, "-c", program, *words]).returncode == code
