"""What a command does where nobody reads its answer, or where the answer's encoding is a small one.

In this process: standard output is a file of the test's own.
"""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from data_prep.__main__ import main as data_prep
from dualpath_cli.cli.main import main
from dualpath_cli.run.run_folder import newest_checkpoint, step_of

TEXT = "−Ω貝"


@contextmanager
def nobody() -> Iterator[None]:
    """Standard output is a pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, redirect_stdout(pipe):
        yield


@contextmanager
def latin_1(errors: str = "strict") -> Iterator[io.BytesIO]:
    """What is written to standard output, with PYTHONIOENCODING=latin-1:ERRORS."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="latin-1", errors=errors, write_through=True)
    with redirect_stdout(stream):
        yield written


def words_of(line: str, run: Path, texts: Path, out: Path) -> list[str]:
    places = {"RUN": str(run), "VAL": str(texts / "val.jsonl"), "OUT": str(out), "TEXT": TEXT}
    return [places.get(word, word.replace("VAL", places["VAL"])) for word in line.split()]


EVERYDAY = ["compare RUN --out OUT", "generate --ckpt_path RUN --prompt TEXT"]
NIGHTLY = [
    "routing --ckpt_path RUN --out OUT --tagger none",
    "evaluate --ckpt_path RUN --sources p=VAL --out OUT",
]
LONG = ["validate --ckpt_path RUN", "ablate --ckpt_path RUN --suite layers --out OUT"]


def lines(*nightly: str) -> list[Any]:
    """Commands of every day, and others at night: all print by one console."""
    return [*EVERYDAY, *(pytest.param(line, marks=pytest.mark.slow) for line in nightly)]


@pytest.mark.parametrize("line", lines(*NIGHTLY, *LONG))
def test_a_reader_that_leaves_ends_a_command_with_141(line, trained, texts, tmp_path, capfd):
    words = words_of(line, trained(), texts, tmp_path / "out")
    with nobody():
        assert main(words) == 141
    assert "Traceback" not in capfd.readouterr().err


def test_a_reader_that_leaves_ends_the_inspection_of_data_with_141(texts):
    with nobody():
        assert data_prep(["inspect", str(texts / "train")]) == 141


def test_training_goes_on_to_its_end_where_its_reader_has_left(fit):
    with nobody():
        run = fit()  # its exit code is 0
    assert step_of(newest_checkpoint(run)) == 6


def test_a_command_runs_where_the_shell_has_closed_its_standard_output():
    with redirect_stdout(None):
        assert main(["flops", "--budget", "80M"]) == 0
        assert data_prep(["inspect", "not there"]) == 2


@pytest.mark.parametrize("line", lines(*NIGHTLY))
def test_what_an_encoding_lacks_is_escaped_on_the_screen(line, trained, texts, tmp_path):
    out = tmp_path / "out"
    words = words_of(line, trained(), texts, out)
    with latin_1() as written:
        assert main(words) == 0
        said = written.getvalue().decode("latin-1")
    if "TEXT" in line:
        assert r"\u2212\u03a9\u8c9d" in said
    if "OUT" in line:
        assert any(out.iterdir())


def test_a_text_is_whole_in_its_file_whatever_the_encoding_of_the_screen(trained, tmp_path):
    out = tmp_path / "o.jsonl"
    words = ["--prompt", TEXT, "--out", str(out), "--max_new_tokens", "1"]
    run = trained()
    with latin_1("surrogateescape"):  # as in the locale C
        assert main(["generate", "--ckpt_path", str(run), "--prompt", TEXT]) == 0
        assert main(["generate", "--ckpt_path", str(run), *words]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["prompt"] == TEXT
