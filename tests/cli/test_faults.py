"""What goes wrong around a command: the machine, the answer's reader, damaged files of
a run."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from math import ceil
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml

from dualpath_cli.base import processes
from dualpath_cli.base.errors import LONGEST, UserError
from dualpath_cli.base.output import one_line
from dualpath_cli.cli.main import main
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import newest_checkpoint, step_of
from dualpath_cli.run.tables import read_csv
from dualpath_cli.training import checks
from tests.data_prep.conftest import write_jsonl
from tests.study.conftest import USERS_OF_FIGURES
from tests.training.tiny_run import RUN, back_to_step, recipe_of_home, tables


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """As SLURM sets them; the machine may have many more."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: {3, 5, 7, 9}, raising=False
    )
    assert processes.cores() == 4
    many = {"trainer": {"accelerator": "cpu", "devices": 100}}
    with pytest.raises(UserError, match="devices=100 is too many for 4 cores; use 32"):
        checks.check_steps(settings_from(merge(recipe_of_home(), many)))
    given = re.compile(r"os\.(process_)?cpu_count|multiprocessing\.cpu_count")
    package = Path(processes.__file__).parents[1]
    users = {
        path.name for path in package.rglob("*.py") if given.search(path.read_text())
    }
    assert users == {"processes.py"}


def test_two_tasks_of_srun_on_one_device_are_named(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    one = {"trainer": {"accelerator": "cpu", "devices": 1}}
    with pytest.raises(
        UserError, match=r"srun has started 2 tasks .* trainer.devices=1 needs"
    ):
        checks.check_steps(settings_from(merge(recipe_of_home(), one)))


def test_a_message_is_one_printable_line_that_keeps_both_ends():
    message = one_line("begin\n\x1b[31m \udcff " + "é " * 2000 + "the way out")
    assert message.startswith("begin\\n\\x1b[31m \\udcff ")
    assert message.endswith("the way out")
    assert message.isprintable()
    assert len(message) <= LONGEST + 10
    assert one_line("'" + "x" * 5000 + "' is wrong").endswith("xxx' is wrong")


def run(words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dualpath_cli", *words.split()]
    return subprocess.run(command, stderr=subprocess.PIPE, **streams)


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = run("flops --budget 80M", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["flops --budget 80M", "--help"])
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_code_1(words):
    with open("/dev/full", "w") as full:
        done = run(words, stdout=full)
    assert done.returncode == 1
    assert b"error: No space left on device; free some space" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("strategy", "shard_size", "machines"),
    [("ddp", None, 1), ("fsdp", None, 4), ("hsdp", None, 1), ("hsdp", 16, 2)],
)
def test_a_model_that_just_fits_is_let_through(
    strategy, shard_size, machines, monkeypatch
):
    """Into the machines that share its weights, of four with eight devices."""
    nodes = {"strategy": strategy, "devices": 8, "num_nodes": 4}
    changes = {"run": {"shard_size": shard_size}, "trainer": nodes}
    settings = settings_from(merge(recipe_of_home(), changes))
    needed = ceil(4 * checks.parameters(settings.model) / machines)
    monkeypatch.setattr(
        os, "sysconf", lambda name: needed if name == "SC_PHYS_PAGES" else 1
    )
    checks.check_size(settings)
    monkeypatch.setattr(
        os, "sysconf", lambda name: needed - 1 if name == "SC_PHYS_PAGES" else 1
    )
    with pytest.raises(UserError, match="lower model"):
        checks.check_size(settings)


# A reader that leaves, and an encoding that lacks a character: standard output is a
# file of the test's own


TEXT = "−Ω貝"


@contextmanager
def nobody() -> Iterator[None]:
    """Standard output is a pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, redirect_stdout(pipe):
        yield


@contextmanager
def closed_terminal() -> Iterator[TextIO]:
    ours, its_own = os.openpty()
    os.close(ours)
    # line by line, as Python's own stdout was before the terminal was closed
    with os.fdopen(its_own, "w", buffering=1) as terminal:
        yield terminal


@contextmanager
def latin_1(errors: str = "strict") -> Iterator[io.BytesIO]:
    """What is written to standard output, with PYTHONIOENCODING=latin-1:ERRORS."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(
        written, encoding="latin-1", errors=errors, write_through=True
    )
    with redirect_stdout(stream):
        yield written


def words_of(line: str, run: Path, out: Path) -> list[str]:
    places = {"RUN": str(run), "OUT": str(out), "TEXT": TEXT}
    return [places.get(word, word) for word in line.split()]


PRINTING = ["compare RUN --out OUT", "generate --ckpt_path RUN --prompt TEXT"]
"""Commands that end with their reader; the second also streams."""


@pytest.mark.parametrize("line", PRINTING)
def test_a_reader_that_leaves_ends_a_command_with_141(line, trained, tmp_path, capfd):
    words = words_of(line, trained(), tmp_path / "out")
    with nobody():
        assert main(words) == 141
    assert "Traceback" not in capfd.readouterr().err


def test_training_goes_on_to_its_end_where_its_reader_has_left(fit):
    with nobody():
        run = fit()  # its exit code is 0
    assert step_of(newest_checkpoint(run)) == 6


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("validate --ckpt_path RUN", None),
        ("ablate --ckpt_path RUN --out OUT", "ablations.csv"),
        ("routing --ckpt_path RUN --tagger none --out OUT", "summary.json"),
    ],
)
def test_a_command_that_takes_long_goes_on_to_its_end_where_its_terminal_is_closed(
    line, written, trained, tmp_path, monkeypatch
):
    for user in USERS_OF_FIGURES:
        monkeypatch.setattr(user, lambda folder, figures: [])
    words = words_of(line, trained(), tmp_path / "out")
    with closed_terminal() as terminal, redirect_stdout(terminal):
        assert main(words) == 0
    assert written is None or (tmp_path / "out" / written).exists()


@pytest.mark.parametrize("gone", [nobody, closed_terminal])
def test_texts_are_written_where_the_reader_of_their_progress_is_gone(
    gone, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr("dualpath_cli.report.console.LINE_EVERY", 0)  # seconds
    words = ["generate", "--ckpt_path", str(trained()), "--num_samples", "3"]
    out = tmp_path / "o.jsonl"
    with gone() as terminal, redirect_stdout(terminal or sys.stdout):
        assert main([*words, "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 3


def test_a_preparation_goes_on_to_its_end_where_its_terminal_is_closed(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setattr("dualpath_cli.report.console.LINE_EVERY", 0)  # seconds
    write_jsonl(tmp_path / "t.jsonl", ["A text of more than one sentence. " * 20])
    words = ["prepare", "--source", str(tmp_path / "t.jsonl")]
    words += ["--tokenizer", str(trained() / "tokenizer.json")]
    with (
        closed_terminal() as out,
        closed_terminal() as errors,
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        assert main([*words, "--out", str(tmp_path / "data")]) == 0
    assert (tmp_path / "data" / "manifest.json").exists()


def test_a_command_runs_where_the_shell_has_closed_its_standard_output():
    with redirect_stdout(None):
        assert main(["flops", "--budget", "80M"]) == 0
        assert main(["prepare", "inspect", "not there"]) == 2


@pytest.mark.parametrize("line", PRINTING)
def test_what_an_encoding_lacks_is_escaped_on_the_screen(line, trained, tmp_path):
    out = tmp_path / "out"
    words = words_of(line, trained(), out)
    with latin_1() as written:
        assert main(words) == 0
        said = written.getvalue().decode("latin-1")
    if "TEXT" in line:
        assert r"\u2212\u03a9\u8c9d" in said
    if "OUT" in line:
        assert any(out.iterdir())


def test_a_text_is_whole_in_its_file_whatever_the_encoding_of_the_screen(
    trained, tmp_path
):
    out = tmp_path / "o.jsonl"
    words = ["--prompt", TEXT, "--out", str(out), "--max_new_tokens", "1"]
    run = trained()
    with latin_1("surrogateescape"):  # as in the locale C
        assert main(["generate", "--ckpt_path", str(run), "--prompt", TEXT]) == 0
        assert main(["generate", "--ckpt_path", str(run), *words]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["prompt"] == TEXT


# Damaged files of a run: continuing it and studying it end in one line, or mend what
# can be


FIT = "fit --config tiny.yaml"
OTHERS = [
    f"{command} --ckpt_path {RUN}"
    for command in ("validate", "ablate", "routing --tagger none")
]
FILES = ("recipe.yaml", "versions.json", "metrics.csv", "validation.csv", "routing.csv")
Damage = Callable[[Path], object]


def pipe(path: Path) -> None:
    """Puts a pipe in the place, into which nobody writes."""
    path.unlink()
    os.mkfifo(path)


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, in which commands end where Lightning would begin."""
    monkeypatch.setattr("dualpath_cli.cli.lightning.run_task", lambda *_: True)
    return home


def text(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [pipe, *map(text, (b"\xff\xfe\n\x00", b"", b"[]", b"{}", b"data:"))]
)
@pytest.mark.parametrize("name", FILES[:2])
def test_a_file_of_other_content_is_named(name, damage, home, said):
    damage(home / RUN / name)
    error = said(*FIT.split())
    assert RUN in error
    assert name in error


@pytest.mark.parametrize("place", ["**/*.jsonl", "s3://bucket/val.jsonl", "texts"])
def test_places_that_a_runs_recipe_alone_names_are_not_searched(place, home, said):
    recipe = home / RUN / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("val.jsonl", f"'{place}'"))
    assert f"held_out: {place}\n" in recipe.read_text().replace("'", "")
    for line in OTHERS[:3]:
        error = said(*line.split())
        assert (
            f"data.val.held_out: '{place}' in {RUN}/recipe.yaml is a glob, a folder"
            in error
        )
        assert f"only if you give it: --data.val.held_out '{place}'" in error
    # A recipe that names another field of the set has not named the place.
    run = yaml.safe_load(recipe.read_text())
    run["data"]["val"]["held_out"] = {"path": place, "field": "content"}
    recipe.write_text(yaml.safe_dump(run, sort_keys=False))
    (home / "field.yaml").write_text("data: {val: {held_out: {field: text}}}")
    shown = json.dumps({"path": place, "field": "text"})
    error = said(*OTHERS[0].split(), "--config", "field.yaml")
    assert f"only if you give it: --data.val.held_out '{shown}'" in error
    if place != "s3://bucket/val.jsonl":
        (home / "texts" / "a.jsonl").write_text((home / "val.jsonl").read_text())
        for line in OTHERS[:2]:
            assert main([*line.split(), "--data.val.held_out", place]) == 0


@pytest.mark.parametrize("line", [FIT, OTHERS[0]])
def test_files_of_a_run_may_be_links(line, home):
    for name in (*FILES, "tokenizer.json"):
        path = home / RUN / name
        path.rename(home / name)
        path.symlink_to(home / name)
    assert main(line.split()) == 0


def test_nothing_is_quoted_of_what_a_recipe_links_to(home, said):
    (home / "private").write_text("my-password: 1\n")
    (home / RUN / "recipe.yaml").unlink()
    (home / RUN / "recipe.yaml").symlink_to(home / "private")
    assert "my-password" not in said(*FIT.split())


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_tables_without_rows_are_begun_again(damage, trained):
    run = trained()
    whole = tables(run)
    back_to_step(run, 2)
    for name in FILES[2:]:
        damage(run / name)
    continued(run)
    assert tables(run) == {
        name: [row for row in rows if int(row["step"]) > 2]
        for name, rows in whole.items()
    }


def continued(run: Path) -> None:
    assert main(["fit", "--config", str(run.parents[2] / "recipe.yaml")]) == 0


def test_a_run_killed_within_a_row_goes_on_without_that_row(trained):
    """And leaves columns out that the run does not write."""
    run = trained()
    whole = tables(run)
    back_to_step(run, 2)
    for name in ("metrics.csv", "validation.csv"):
        text = (run / name).read_text()
        # The kill may cut anywhere, also behind the last comma, where the row looks
        # whole.
        for cut_off in (text[: text.rindex(",") + 2], text[: text.rindex("\n")]):
            (run / name).write_text(cut_off)
            assert len(read_csv(run / name)) == text.count("\n") - 2
    lines = (run / "routing.csv").read_text().splitlines()
    more = [
        f"{line},{'mine' if number == 0 else number}"
        for number, line in enumerate(lines)
    ]
    (run / "routing.csv").write_text("\n".join(more) + "\n")
    continued(run)
    assert tables(run) == whole
