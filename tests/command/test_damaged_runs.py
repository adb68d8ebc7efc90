"""Damaged files of a run: continuing it and studying it end in one line, or mend what can be.

Half a last row, which a kill while a table grows leaves, is dropped and the run goes on.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.cli import main
from dualpath_cli.errors import UserError
from dualpath_cli.files.csv_text import read_csv
from tests.conftest import Share
from tests.fuzz.home import RUN, write_home
from tests.tiny_run import Fit, back_to_step, tables

FIT = "fit --config tiny.yaml"
OTHERS = [
    f"{command} --ckpt_path {RUN}"
    for command in ("validate", "ablate", "routing --tagger none", "routing --text hello")
]
Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    """Leaves the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def folder(path: Path) -> None:
    """Puts a folder in the place, which cannot be read by anybody, not even root."""
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    """Puts a pipe in the place, into which nobody writes."""
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


NO_FILE = "it is a pipe or a device, no file"


def holding(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


@pytest.fixture
def home(share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, in which commands end where Lightning would begin."""
    shutil.copytree(share("fuzz-home", write_home), tmp_path / "home", symlinks=True)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("dualpath_cli.cli.resolve", lambda name: lambda launch: 0)
    return tmp_path / "home"


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that must fail, in one line."""
    capsys.readouterr()
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dualpath {line.split()[0]}: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_run_is_fine_before_it_is_damaged(home: Path) -> None:
    for line in (FIT, *OTHERS):
        assert main(line.split()) == 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "recipe.yaml"),
        (holding(b""), "recipe.yaml must be a mapping of sections, not None"),
        (cut, "cannot be read"),
        (holding(b"\xff\x00\x80"), "recipe.yaml cannot be read ('utf-8' codec"),
        (holding(b"- 1"), "recipe.yaml must be a mapping of sections, not a list\n"),
        (holding(b"root:x:0:0:/root"), "recipe.yaml must be a mapping of sections, not a text\n"),
        (holding(b"model: 3"), "recipe.yaml: 'model' in the recipe must be a mapping, not 3"),
        (holding(b"data:"), "recipe.yaml: 'data' in the recipe must be a mapping, not null"),
        (folder, "recipe.yaml"),
        (pipe, "recipe.yaml"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("line", [FIT, OTHERS[0]])
def test_a_damaged_recipe_is_named(
    line: str, damage: Damage, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = home / RUN / "recipe.yaml"
    if damage is cut:  # anywhere else it may be whole YAML
        recipe.write_text("model: {n_layers: 2, n_")
    else:
        damage(recipe)
    assert words in refused(line, capsys)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "cannot be read (No such file or directory); put it back, or give this run"),
        (holding(b""), "cannot be read (no JSON: Expecting value"),
        (cut, "cannot be read (no JSON: "),
        (holding(b"\xff\x00"), "cannot be read ('utf-8' codec"),
        (holding(b"[" * 100_000), "cannot be read (no JSON: "),
        (holding(b"[]"), "cannot be read (no JSON object)"),
        (holding(b"{}"), "was trained on data of the fingerprint None, these are"),
        (folder, "cannot be read (Is a directory)"),
        (pipe, NO_FILE),
        (device, NO_FILE),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_whose_versions_are_damaged_is_not_continued(
    damage: Damage, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(home / RUN / "versions.json")
    said = refused(FIT, capsys)
    assert "versions.json" in said or "fingerprint" in said
    assert words in said


TABLES = ["metrics.csv", "validation.csv", "routing.csv"]


@pytest.mark.parametrize("name", [*TABLES, "bad_steps.csv"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,{}\nx,1\n", "row 2: step is 'x', no number; mend it, or move it away"),
        ("step,{}\n1.5,1\n", "row 2: step is '1.5', no number"),
        ("step,{}\n2,1\n1,1\n", "row 3: step 1 stands after 2"),
        ("step,{}\n1\n2,1\n", "row 2 has 1 fields, its header"),
        ("loss\n1\n", "has no column 'step'"),
        ("step,loss,{}\n1,many,1\n", "row 2: loss is 'many', no number"),
        ('step,{}\n"1,1\n', "cannot be read (unexpected end of data)"),
    ],
)
def test_a_damaged_table_is_named_with_the_row(
    name: str, text: str, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {
        "metrics.csv": "tokens,seconds", "validation.csv": "set",
        "routing.csv": "layer,gate_deep,gate_wide,expected_loops", "bad_steps.csv": "kind",
    }[name]  # fmt: skip
    cells = ",".join("1" for _ in others.split(","))
    header, *rows = text.format(others).splitlines(keepends=True)
    rows = [row.removesuffix(",1\n") + f",{cells}\n" if ",1\n" in row else row for row in rows]
    (home / RUN / name).write_text("".join([header, *rows]))
    said = refused(FIT, capsys)
    assert f"{RUN}/{name}" in said
    assert words in said


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (holding(b"\xff\xfe\n\x00"), "cannot be read ('utf-8' codec"),
        (holding(b"[[[["), "has no whole line, not even a header; mend it, or move it away"),
        (holding(b"step,tok"), "has no whole line"),
        (folder, "Is a directory"),
        (pipe, NO_FILE),
        (device, NO_FILE),
    ],
)
def test_a_table_that_is_none_is_named(
    name: str, damage: Damage, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(home / RUN / name)
    said = refused(FIT, capsys)
    assert name in said
    assert words in said


@pytest.mark.parametrize("line", [FIT, *OTHERS[:1]])
def test_files_of_a_run_may_be_links(line: str, home: Path) -> None:
    for name in ("recipe.yaml", "tokenizer.json", "versions.json", *TABLES):
        path = home / RUN / name
        path.rename(home / name)
        path.symlink_to(home / name)
    assert main(line.split()) == 0


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", [Path.unlink, holding(b"")])
def test_a_table_without_rows_is_begun_again(name: str, damage: Damage, home: Path) -> None:
    damage(home / RUN / name)
    assert main(FIT.split()) == 0


@pytest.mark.parametrize("name", ["metrics.csv", "validation.csv"])
def test_a_run_killed_within_a_row_goes_on_without_that_row(name: str, trained: Fit) -> None:
    run = trained()
    whole = tables(run)
    back_to_step(run, 2)
    text = (run / name).read_text()
    # The kill may cut anywhere, also behind the last comma, where the row looks whole.
    for cut_off in (text[: text.rindex(",") + 2], text[: text.rindex("\n")]):
        (run / name).write_text(cut_off)
        assert len(read_csv(run / name)) == text.count("\n") - 2
    assert main(["fit", "--config", str(run.parents[2] / "recipe.yaml")]) == 0
    assert tables(run) == whole


@pytest.mark.parametrize(
    ("keep", "lacking"),
    [
        (lambda rows: [], 2),
        (lambda rows: rows[:1] + rows[2:], 1),
        (lambda rows: rows[2:], 2),
        (lambda rows: rows, 0),
    ],
)
def test_a_table_that_lacks_rows_of_before_the_checkpoint_is_named(
    keep: Callable[[list[str]], list[str]], lacking: int, trained: Fit,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = trained()
    back_to_step(run, 2)
    table = run / "metrics.csv"
    header, *lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join([header, *keep(lines)]))
    (run / "routing.csv").unlink()  # has no rows yet at step 2
    capsys.readouterr()
    assert main(["fit", "--config", str(run.parents[2] / "recipe.yaml")]) == 0
    said = f"{table} lacks {lacking} of the 2 rows that it had at step 2; the run goes on"
    assert [line.startswith(said) for line in capsys.readouterr().err.splitlines()] == (
        [True] if lacking else []
    )


def test_columns_that_the_run_does_not_write_are_left_out(trained: Fit) -> None:
    run = trained()
    whole = tables(run)
    back_to_step(run, 2)
    rows = (run / "metrics.csv").read_text().splitlines()
    more = [f"{row},{'mine' if number == 0 else number}" for number, row in enumerate(rows)]
    (run / "metrics.csv").write_text("\n".join(more) + "\n")
    assert main(["fit", "--config", str(run.parents[2] / "recipe.yaml")]) == 0
    assert tables(run) == whole


def test_rows_are_read_back_and_half_of_one_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    assert read_csv(path) == []
    path.write_text('step,set\n1,"a,b"\n2,"c\nd"\n3,e')
    assert read_csv(path) == [{"step": "1", "set": "a,b"}, {"step": "2", "set": "c\nd"}]
    path.write_text("step,set\n1\n2,b\n")
    with pytest.raises(UserError, match="row 2 has 1 fields, its header 2"):
        read_csv(path)
