"""`dualpath tokenizer`: equal texts give equal bytes, and nothing else is replaced unasked."""

from pathlib import Path

import pytest

from data_prep.sources import sample
from data_prep.tokenizer import MEASURED_BYTES, _Kept
from dualpath_cli.cli.main import main
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer
from tests.data_prep.preparing import write_jsonl


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, which the commands are run in."""
    monkeypatch.chdir(tmp_path)
    for kind in sample.KINDS:
        write_jsonl(tmp_path / f"{kind}.jsonl", sample.documents("train", kind, 100))
    Path("bad.jsonl").write_text("{")
    Path("few.txt").write_text("too few")
    return tmp_path


def train(*sources: str, size: int = 400, out: str = "out", more: str = "") -> int:
    words = ["--vocab-size", str(size), "--out", out, *more.split()]
    return main(["tokenizer", "--source", *sources, *words])


def test_equal_texts_give_equal_bytes_which_a_preparation_takes(here, capsys):
    assert train("prose.jsonl", "facts.jsonl") == train("prose.jsonl", "facts.jsonl", out="b") == 0
    first, second = (Path(out, "tokenizer.json").read_bytes() for out in ("out", "b"))
    assert first == second
    assert Tokenizer.load("out").vocab_size == 400
    words = ["--source", "prose.jsonl", "--tokenizer", "out", "--out", "data", "--workers", "1"]
    assert main(["prepare", *words]) == 0
    assert Manifest.read("data").tokenizer == Tokenizer.load("out").fingerprint
    assert "out/tokenizer.json: 400 entries, fingerprint" in capsys.readouterr().out


def test_a_source_that_is_given_again_counts_again(here):
    assert train("prose.jsonl", "arithmetic.jsonl") == 0
    assert train("prose.jsonl", *["arithmetic.jsonl"] * 9, out="b") == 0
    assert Tokenizer.load("out").fingerprint != Tokenizer.load("b").fingerprint


def test_another_tokenizer_is_replaced_only_when_told(here, capsys):
    assert train("prose.jsonl") == 0
    before = Path("out/tokenizer.json").stat().st_mtime_ns
    assert train("prose.jsonl") == 0
    assert "holds this already" in capsys.readouterr().out
    assert train("facts.jsonl") == train("bad.jsonl", size=500) == 2  # which is not read
    assert capsys.readouterr().err.count("'out/tokenizer.json' is another tokenizer; give") == 2
    assert Path("out/tokenizer.json").stat().st_mtime_ns == before
    assert train("facts.jsonl", more="--overwrite") == 0
    assert Path("out/tokenizer.json").stat().st_mtime_ns != before


def test_texts_are_measured_from_the_first_to_the_last_of_a_source():
    kept = _Kept()
    for number in range(9_000):
        kept.add(f"{number:1000}")
    numbers = list(map(int, kept.texts))
    assert numbers == list(range(0, 9_000, kept.every))
    assert MEASURED_BYTES / 2 < 1000 * len(numbers) <= MEASURED_BYTES
    assert (kept.documents, kept.bytes) == (9_000, 9_000_000)
