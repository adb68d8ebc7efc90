"""`python -m data_prep`: what it writes, what it says, how it ends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import sample
from data_prep.__main__ import main, parse_count
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer


def test_the_sample_comes_with_tokenizer_and_held_out_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data" / "sample"
    assert main(["--source", "sample", "--out", str(out)]) == 0
    manifest = Manifest.read(out)
    manifest.verify(out)
    assert manifest.documents == len(list(sample.documents("train")))
    assert Tokenizer.load(out).vocab_size == 2048
    assert {path.name for path in (out / "val").iterdir()} == {
        f"{kind}.jsonl" for kind in sample.KINDS
    }
    assert f"{manifest.tokens:,} tokens" in capsys.readouterr().out
    assert main(["--source", "sample", "--out", str(out)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_files_are_prepared_and_replaced_only_when_told(
    tmp_path: Path,
    small_folder: Path,
    jsonl: Callable[[str, list[str]], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["--tokenizer", str(small_folder), "--out", str(out), "--source"]
    one, two = str(jsonl("one.jsonl.gz", ["hello"])), str(jsonl("two.jsonl.gz", ["hell"]))
    assert main([*arguments, one, f"second={two}"]) == 0
    assert [source.name for source in Manifest.read(out).sources] == ["one", "second"]
    assert main([*arguments, one]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*arguments, one, "--overwrite"]) == 0
    assert Manifest.read(out).documents == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--out OUT", "--source"),
        ("--source sample", "--out"),
        ("--source FILE --out OUT", "--tokenizer is missing"),
        ("--source FILE --out OUT --tokenizer none", "'none' does not exist"),
        ("--source none.txt --out OUT --tokenizer TOKENIZER", "'none.txt' does not exist"),
        ("--source hf:a/b --out OUT --tokenizer TOKENIZER", "not supported yet"),
        ("--source BAD --out OUT --tokenizer TOKENIZER", "line 1: not JSON"),
        ("--source FILE --out FOLDER --tokenizer TOKENIZER", "not a data folder"),
        ("--source FILE --out OUT --tokenizer TOKENIZER --max-tokens many", "'many' is not"),
        ("--source FILE --out OUT --tokenizer TOKENIZER --max-tokens 0", "'0' is not"),
        ("--source FILE --out OUT --tokenizer TOKENIZER --chunk-tokens 5", "not between 1,024"),
        ("--source FILE --out OUT --tokenizer TOKENIZER --chunk 5x --frob", "error"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path,
    small_folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    reason: str,
) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "bad.jsonl").write_text("hello\n")
    places = {
        "FILE": tmp_path / "a.txt",
        "BAD": tmp_path / "bad.jsonl",
        "OUT": tmp_path / "out",
        "FOLDER": tmp_path,
        "TOKENIZER": small_folder,
    }
    assert main([str(places.get(word, word)) for word in arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("16M", 16_000_000),
        ("38.5B", 38_500_000_000),
        ("4_096", 4096),
        ("4,096", 4096),
        ("2K", 2000),
    ],
)
def test_counts_are_written_with_their_multiples(written: str, meant: int) -> None:
    assert parse_count(written) == meant


def test_help_and_mistakes_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from data_prep.__main__ import main, parse_count; "
        "main(['--source', 'none.txt', '--tokenizer', 'none', '--out', 'none']); "
        "sys.exit('torch' in sys.modules or 'litdata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0
