"""What users give and should not: each fault is one line that names it, within two seconds.

docs/reliability.md lists the faults. Those here were found by hand and by `tests/fuzz`.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.cli import main
from dualpath_cli.command import size_check
from dualpath_cli.errors import LONGEST, UserError, one_line
from dualpath_cli.recipe.settings import settings_from
from tests.command.test_cli import TINY, write_home
from tests.fuzz.recipes import BOMB, MERGES

LONG = "x" * 300

RECIPES = {
    # values that are nothing
    "trainer:": "'trainer' in the recipe must be a mapping, not null",
    "data: {val: {a: }}": "data.val.a must be text, not 'null'",
    "": "recipe case.yaml must be a mapping of sections, not None",
    "a: b: c": "recipe case.yaml line 1 cannot be read: mapping values are not allowed here",
    "model: [": "recipe case.yaml line 1 cannot be read",
    # YAML that means something else, or too much
    "model: !!binary aGVsbG8=": "case.yaml line 1 cannot be read: a tag, as ! begins one",
    "run: {name: !!binary aGVsbG8=}": "a tag, as ! begins one; put text into quotes",
    "a: " + "[" * 3000: "it is nested more than 50 levels deep",
    "- " * 3000: "it is nested more than 50 levels deep",
    f"trainer:\n  callbacks: {'{a: ' * 60 + '1' + '}' * 60}": "nested more than 50 levels deep",
    BOMB: "it stands for more than 10,000 values",
    MERGES: "it stands for more than 10,000 values",
    "trainer: {callbacks: &a [*a]}": "a value holds itself",
    "x: [" + "1," * 15000 + "]": "it stands for more than 10,000 values",
    "x: " + "y" * 60_000: "recipe case.yaml has more than 50,000 characters",
    "seed_everything: " + "9" * 5000: "a number of more than 100 digits",
    "seed_everything: 0x" + "f" * 200: "a number of more than 100 digits",
    "seed_everything: 0x_": "it holds a number without digits",
    "seed_everything: 2020-01-01": "must be a whole number, not '2020-01-01'",
    "\0": "recipe case.yaml cannot be read: special characters are not allowed",
    'run: {dir: "\\ud800"}': "a text is no valid Unicode; give names and paths in UTF-8",
    # numbers that no run can have
    "seed_everything: -1": "seed_everything must be at least 0, not -1",
    # models that no machine here can hold
    "model: {vocab_size: 100000000, d_model: 768000}": "parameters, 652,150 GB, and this machine",
    # devices
    "trainer: {devices: 0}": "devices must be auto, -1, a number from 1 to 999 or a list",
    "trainer: {devices: []}": "a list of different devices, not '[]'",
    "trainer: {devices: [1, 1]}": "a list of different devices, not '[1, 1]'",
    "trainer: {devices: many}": "devices must be auto, -1, a number from 1 to 999 or a list",
    "trainer: {devices: 1000000}": "devices must be auto, -1, a number from 1 to 999 or a list",
    # names and places
    "run: {name: ../../x}": "run: name must be a plain name, without '/', '\\', '$' and control "
    "characters, not '../../x'; --run.name NAME gives another",
    "run: {name: ..}": "name must be a plain name",
    "run: {name: ''}": "name must be a plain name",
    'run: {name: "a\\nb"}': "control characters, not 'a\\nb'",
    "run: {recipe: a/b}": "recipe must be a plain name",
    f"run: {{name: {LONG}}}": "run: name must have at most 100 bytes, not 'xxxxx",
    "run: {dir: s3://bucket/runs}": "run: dir must be a path on this machine, not 's3://bucket/r",
    "run: {dir: ''}": "dir must be a path",
    "data: {path: gs://bucket/x}": "path must be a path on this machine or s3://, not 'gs://",
    "data: {path: ''}": "data: path must be a path",
    "data: {val: {../x: tiny.yaml}}": "data: the name of a validation set in val must be a plain",
    "data: {val: {'': tiny.yaml}}": "data: the name of a validation set in val must be a plain",
    f"data: {{val: {{a: {LONG}.txt}}}}": "File name too long; give a shorter name",
    f"data: {{path: {LONG}}}": "File name too long; give a shorter name",
    f"base: {LONG}": "File name too long; give a shorter name",
}
"""Changes of tiny.yaml."""

LINES = {
    f"fit --config {LONG}": "File name too long; give a shorter name",
    f"fit --config tiny.yaml --run.name {LONG}": "run: name must have at most 100 bytes",
    f"fit --config tiny.yaml --model.loops {'[' * 3000}": "model.loops must be a whole number",
    "fit --config tiny.yaml --out=--": "--out needs a value",
    "fit --config=-- tiny.yaml": "--config needs a value",
    f"validate --ckpt_path {LONG}": "File name too long; give a shorter name",
    "validate --ckpt_path 'a\nb\x1b[31m'": "no run or checkpoint at 'a\\nb\\x1b[31m'; runs are",
    "validate --ckpt_path runs/begun/default --data.val 3": "data.val must be a mapping of names",
    "ablate --ckpt_path runs/begun/default --data.val null": "data.val must be a mapping of names",
    "ablate --ckpt_path runs/begun/default --sources a=novels.jsonl --out s3://b/x": "--out must "
    "be a path on this machine, not 's3://b/x'",
    "routing --ckpt_path runs/begun/default --sources ..=novels.jsonl": "must be a plain name",
    "flops --k=--": "--k needs a value",
    "flops --budget 80M --dim=--": "--dim needs a value",
    f"flops --budget {'9' * 300}": "--budget must be a whole number above 0",
    "flops --budget 1e99": "--budget must be at most 1,000,000,000,000,000,000, not '1e99'",
    "flops --budget 1e18": "a budget of 1000000000000000000 is too large: d_ffn must be from 1 to",
    "flops --budget 80M --layers 1000000": "--layers must be from 1 to 10,000, not 1000000",
    f"flops --budget 80M --layers {'9' * 5000}": "--layers: invalid int value: '9999",
    "flops --budget 80M --alpha nan": "alpha must lie between 0 and 100 percent, not at nan",
    "flops --budget 80M --gpus 99999999999": "--gpus must be from 1 to 1,000,000,000",
    "flops --config run3.yaml": "recipe 'run3.yaml': 'run' must be a mapping",
    "flops --config model3.yaml": "recipe 'model3.yaml': 'model' must be a mapping",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_home(tmp_path_factory.mktemp("home"))
    (folder / "run3.yaml").write_text("run: 3\nmodel: {d_ffn: 64, d_ffn_wide: 64}")
    (folder / "model3.yaml").write_text("model: 3")
    return folder


@pytest.mark.parametrize(
    ("fault", "words"), [*RECIPES.items(), *LINES.items()], ids=lambda t: t[:40]
)
def test_a_fault_is_one_line_in_two_seconds(
    fault: str,
    words: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    line = shlex.split(fault) if fault in LINES else []
    if not line:
        Path("case.yaml").write_text(fault)
        line = ["fit", "--config", "tiny.yaml", "--config", "case.yaml"]
    before = sorted(home.rglob("*"))
    began = time.process_time()
    assert main(line) == 2
    assert time.process_time() - began < 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dualpath {line[0]}: error: ")
    assert captured.err.count("\n") == 1
    assert len(captured.err) < LONGEST + 100
    assert words in captured.err
    assert sorted(home.rglob("*")) == before


def test_a_model_that_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(TINY)
    needed = 4 * size_check.parameters(settings.model)
    monkeypatch.setattr(os, "sysconf", lambda name: needed if name == "SC_PHYS_PAGES" else 1)
    size_check.check_size(settings)
    monkeypatch.setattr(os, "sysconf", lambda name: needed - 1 if name == "SC_PHYS_PAGES" else 1)
    with pytest.raises(UserError, match="lower model"):
        size_check.check_size(settings)


def test_a_message_is_one_printable_line_that_keeps_both_ends() -> None:
    message = one_line("begin\n\x1b[31m \udcff " + "é " * 2000 + "the way out")
    assert message.startswith("begin\\n\\x1b[31m \\udcff ")
    assert message.endswith("the way out")
    assert message.isprintable()
    assert len(message) <= LONGEST + 10
    assert one_line("'" + "x" * 5000 + "' is wrong").endswith("xxx' is wrong")


def run(words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dualpath_cli", *words.split()]
    return subprocess.run(command, stderr=subprocess.PIPE, **streams)


def test_a_reader_that_leaves_early_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run("flops --budget 80M --table", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["flops --budget 80M --table", "--help"])
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_code_1(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = run(words, stdout=full)
    assert done.returncode == 1
    assert b"error: No space left on device; free some space" in done.stderr
    assert done.stderr.count(b"\n") == 1
