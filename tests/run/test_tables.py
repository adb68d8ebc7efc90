"""Tables of a run that another program has touched, in every command that reads them.

A command gives the numbers of the whole table, or names the file: in the line that
refuses it, or in a line on the rows that are gone. No damage is a traceback, and no row
is lost without a word.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep.costs import measured_speeds
from dualpath_cli.compare.sweep.runs import PlannedRun
from dualpath_cli.export.hf.folder import Weights
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.tables import KEYS, TABLE_COLUMNS, read_csv, read_table
from dualpath_cli.training.launch import to_train
from dualpath_cli.training.tables import BadSteps, CsvTable
from tests.compare.run_folders import model_of, write_run
from tests.compare.sweep.conftest import asked
from tests.compare.sweep.test_runs import runs_for
from tests.training.tiny_run import RUN, back_to_step

Damage = Callable[[str], str | bytes]

MARK = b"\xef\xbb\xbf"
HUGE = "1" + 400 * "0"


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def edit(change: Callable[[list[str]], list[str]]) -> Damage:
    """A damage of the lines."""
    return lambda text: "".join(change(lines_of(text)))


def of_cells(change: Callable[[list[str]], list[str]]) -> Damage:
    """A damage of the cells of each line."""

    def damage(text: str) -> str:
        return "".join(
            ",".join(change(line.split(","))) + "\n" for line in text.splitlines()
        )

    return damage


def last_of(column: str, value: str) -> Damage:
    """Another value in the last row."""

    def damage(text: str) -> str:
        columns = lines_of(text)[0].strip().split(",")
        if column not in columns:
            return text
        *before, last = text.splitlines()
        cells = last.split(",")
        cells[columns.index(column)] = value
        return "\n".join([*before, ",".join(cells)]) + "\n"

    return damage


def without(column: str) -> Damage:
    def damage(text: str) -> str:
        columns = lines_of(text)[0].strip().split(",")
        if column not in columns:
            return text
        place = columns.index(column)
        return of_cells(lambda cells: [*cells[:place], *cells[place + 1 :]])(text)

    return damage


def steps_as(form: str) -> Damage:
    return lambda text: re.sub(
        r"(?m)^\d+,", lambda m: form.format(int(m[0][:-1])) + ",", text
    )


HARMLESS: dict[str, Damage] = {
    "as it was": lambda text: text,
    "a byte order mark": lambda text: MARK + text.encode(),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "line ends of old Macs": lambda text: text.replace("\n", "\r").encode(),
    "steps as floats": steps_as("{:.1f}"),
    "quotes": of_cells(lambda cells: [f'"{cell}"' for cell in cells]),
    "empty lines": lambda text: text.replace("\n", "\n\n"),
    "columns in another order": of_cells(lambda cells: cells[::-1]),
    "a further column": of_cells(lambda cells: [*cells, "mine"]),
}
"""Common programs write these, and nothing is lost in them."""

COLUMNS = dict.fromkeys(
    column for columns in TABLE_COLUMNS.values() for column in columns
)
NUMBERS = [column for column in COLUMNS if column not in ("set", "kind")]
SHAPES: dict[str, Damage] = {
    "semicolons": lambda text: text.replace(",", ";"),
    "tabs": lambda text: text.replace(",", "\t"),
    "HTML": lambda text: (
        "<!DOCTYPE html>\n<html><body>not found, sorry</body></html>\n"
    ),
    "HTML in one line": lambda text: "<html><body>not found</body></html>",
    "UTF-16": lambda text: text.encode("utf-16"),
    "bytes": lambda text: b"\xff\xfe\x00" + text.encode(),
    "nothing": lambda text: "",
    "the header": edit(lambda lines: lines[:1]),
    "no header": edit(lambda lines: lines[1:]),
    "a header twice": edit(lambda lines: [lines[0], *lines]),
    "the table twice": lambda text: text + text,
    "a column twice": of_cells(lambda cells: [*cells, cells[-1]]),
    "decimal commas": lambda text: text.replace(".", ","),
    "a short line": edit(
        lambda lines: [*lines[:-1], lines[-1].rpartition(",")[0] + "\n"]
    ),
    "a long line": edit(lambda lines: [*lines[:-1], lines[-1].strip() + ",5\n"]),
    "a cut line": edit(lambda lines: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]),
    "no last line end": lambda text: text[:-1],
    "an open quote": edit(lambda lines: [*lines[:-1], '"' + lines[-1]]),
    "no first row": edit(lambda lines: [lines[0], *lines[2:]]),
    "no row in the middle": edit(
        lambda lines: [*lines[: len(lines) // 2], *lines[len(lines) // 2 + 1 :]]
    ),
    "no last row": edit(lambda lines: lines[:-1]),
    "a row twice": edit(lambda lines: [*lines, lines[-1]]),
    "rows backwards": edit(lambda lines: [lines[0], *lines[:0:-1]]),
    "steps in words": steps_as("step {}"),
    "steps and a half": steps_as("{}.5"),
    "steps below 0": steps_as("-{}"),
    **{f"no {column}": without(column) for column in COLUMNS},
}
WRONG = {"in words": "n/a", "empty": "", "10^400": HUGE, "nan": "nan", "below 0": "-1"}
VALUES = {
    f"{column} {name}": last_of(column, value)
    for column in NUMBERS
    for name, value in WRONG.items()
}
"""Of the last row."""

UNSEEN = {
    "loss nan": "what fit writes where every micro-batch was left out",
    "loss below 0": "a number like any other",
    "bits_per_byte below 0": "a number like any other",
    "expected_loops empty": "what fit writes of a layer without a router",
}
"""Damages that no reader can tell from the work of `fit`."""


def damages_of(
    path: Path, damages: dict[str, Damage] = SHAPES | VALUES
) -> Iterator[str]:
    """Damages a table in each harmless way and in these, and yields the names of the
    ways."""
    whole = path.read_text()
    for name, damage in (HARMLESS | damages).items():
        content = damage(whole)
        # a column that the table does not have
        if content == whole and name != "as it was":
            continue
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield name


def check(name: str, table: str, code: int, said: str, same: bool) -> None:
    """`same`: whether the command gave what it gives of the whole table."""
    case = f"{table}, {name}: {said}"
    assert code in (0, 2), case
    if name in HARMLESS:
        assert code == 0, case
        assert same, case
        assert table not in said, case
    elif code == 2:
        assert said.count("\n") == 1, case
        assert table in said, case
    elif not same and name not in UNSEEN:
        assert table in said, case


# compare


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a dual model, which has been scored."""
    scores = {"novels": 2.0, "peps": 2.5}
    folder = tmp_path_factory.mktemp("made") / "run"
    return write_run(
        folder, model_of("dual", 2), scores, expected_loops=(1.5, 1.2, 1.1, 1.9)
    )


def compared(
    run: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, object]:
    """The exit code of `compare`, the lines before its tables, and its numbers."""
    shutil.rmtree(out, ignore_errors=True)
    code = main(["compare", str(run), "--out", str(out)])
    said, error = capsys.readouterr()
    if code:
        return code, error, None
    page = re.sub("data:[^\"']*", "", (out / "index.html").read_text())
    notes = re.findall("<dd>(.*?)</dd>", page)
    numbers = [read_csv(path) for path in sorted(out.glob("*.csv"))]
    points = [tuple(one.curve) for one in CURVES]
    return code, said.partition("budget ")[0] + "\n".join(notes), (numbers, points)


CURVES: list[SimpleNamespace] = []


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn; their curves are kept."""

    def draw(groups: list, *_: object) -> dict:
        CURVES[:] = [
            run for group in groups for c in group.configurations for run in c.runs
        ]
        return {}

    monkeypatch.setattr("dualpath_cli.compare.figures.draw", draw)


@pytest.mark.parametrize("table", ["metrics.csv", "validation.csv", "routing.csv"])
def test_compare_gives_the_numbers_of_a_whole_table_or_names_the_table(
    table, finished, tmp_path, capsys, curves
):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    whole = None
    for name in damages_of(run / table):
        code, said, numbers = compared(run, tmp_path / "out", capsys)
        whole = whole or numbers
        check(name, table, code, said, numbers == whole)


# fit


def write_tables(run: Path) -> None:
    """The tables of a run that logs each step, was validated at step 0 and skipped step
    2."""
    for name, steps in {
        "metrics.csv": (1, 2),
        "validation.csv": (0,),
        "routing.csv": (1, 2),
        "bad_steps.csv": (2,),
    }.items():
        places = ["0", "1"] if name == "routing.csv" else ["held_out"]
        rows = [
            ",".join(
                {"step": str(step), "layer": place, "set": place, "kind": "loss"}.get(
                    c, "1.5"
                )
                for c in TABLE_COLUMNS[name]
            )
            for step in steps
            for place in places
        ]
        (run / name).write_text(
            "\n".join([",".join(TABLE_COLUMNS[name]), *rows]) + "\n"
        )


@pytest.mark.parametrize("table", KEYS)
def test_a_continued_run_keeps_all_rows_or_names_the_table(table, home):
    run = home / RUN
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["run"] |= {"gates_every": 1, "save_every": 1}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    settings = settings_from(recipe)
    write_tables(run)
    whole = read_table(run / table)
    columns = [*TABLE_COLUMNS[table]]
    for name in damages_of(run / table):
        try:
            launch = to_train(settings)
        except UserError as error:
            check(name, table, 2, f"{error}\n", same=False)
            continue
        kept = CsvTable(run / table, columns).open(launch.step)
        keys = [{key: row[key] for key in KEYS[table]} for row in kept]
        same = keys == [{key: row[key] for key in KEYS[table]} for row in whole]
        same = same and (not kept or kept[0].keys() >= {*columns})
        # Of this table only the guard knows how many rows there were.
        if table != "bad_steps.csv" or name in HARMLESS:
            check(name, table, 0, "\n".join(launch.lost), same)


def test_skipped_steps_that_have_no_row_are_counted(tmp_path):
    table = tmp_path / "bad_steps.csv"
    table.write_text("step,kind,loss,grad_norm\n2,loss,nan,nan\n")
    said: list[str] = []
    log = BadSteps(tmp_path, 10, said.append)
    trainer = SimpleNamespace(is_global_zero=True, global_step=4)
    for skipped in (1, 3):
        module = SimpleNamespace(guard=SimpleNamespace(skipped=skipped))
        log.on_train_start(trainer, module)
    assert said == [
        f"{table} has rows of 1 of the 3 steps that were skipped up to step 4"
    ]


def test_a_run_that_goes_on_says_which_steps_have_no_row(trained, tmp_path, capsys):
    run = trained()
    back_to_step(run, 4)
    for table, lines in {
        "metrics.csv": "2,",
        "validation.csv": "3,",
        "routing.csv": "3,1",
    }.items():
        text = (run / table).read_text().splitlines(keepends=True)
        kept = [line for line in text if not line.startswith(lines)]
        assert len(kept) == len(text) - 1
        (run / table).write_text("".join(kept))
    capsys.readouterr()
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for table, step in {
        "metrics.csv": 2,
        "validation.csv": 3,
        "routing.csv": 3,
    }.items():
        assert f"{run / table} lacks rows of step {step} " in said + " "
    assert [row.step for row in read_table(run / "metrics.csv")] == [1, 3, 4, 5, 6]


def test_a_spreadsheet_that_saves_a_table_during_the_night_ends_no_run(tmp_path):
    table = CsvTable(tmp_path / "validation.csv", ["step", "set"])
    table.open(0)
    table.put(0, [{"step": 0, "set": "a"}])
    table.path.write_text("step;set\n0;a\n")
    table.put(2, [{"step": 2, "set": "a"}])
    assert table.path.read_text() == "step,set\n0,a\n2,a\n"


# export and sweep

OF_A_COPY = {
    name: SHAPES[name]
    for name in ("UTF-16", "nothing", "a cut line", "no row in the middle", "no step")
}


@pytest.mark.parametrize("table", KEYS)
def test_export_writes_all_rows_or_names_the_table(
    table, trained, tmp_path, capsys, monkeypatch
):
    run, out = trained(), tmp_path / "hf"
    settings = settings_from(yaml.safe_load((run / "recipe.yaml").read_text()))
    weights = Weights.of_checkpoint(run / "checkpoints/step-00000006", settings.model)
    # once, as they stay the same
    monkeypatch.setattr(Weights, "of_checkpoint", lambda *_: weights)
    (run / "bad_steps.csv").write_text("step,kind,loss,grad_norm\n2,loss,nan,nan\n")
    words = ["export", "--ckpt_path", str(run), "--out", str(out), "--overwrite"]
    whole: list | None = None
    # Tables are copied; the numbers of validation.csv also stand on the card.
    damages = SHAPES | VALUES if table == "validation.csv" else OF_A_COPY
    for name in damages_of(run / table, damages):
        capsys.readouterr()
        shutil.rmtree(out, ignore_errors=True)
        code = main(words)
        said, error = capsys.readouterr()
        rows = read_table(out / table) if code == 0 else []
        keys = [{key: row[key] for key in KEYS[table]} for row in rows]
        whole = keys if whole is None else whole
        # No setting says how many steps were skipped.
        if code or table != "bad_steps.csv" or name in HARMLESS:
            check(name, table, code, error if code else said, keys == whole)


@pytest.mark.parametrize("table", ["metrics.csv", "validation.csv"])
def test_a_sweep_goes_on_beside_a_damaged_table_and_takes_no_damaged_run_for_finished(
    table, tmp_path
):
    run: PlannedRun = runs_for(asked(tmp_path))[0]
    run.folder.mkdir(parents=True)
    steps = range(1, run.steps + 1)
    texts = {
        "metrics.csv": "step,tflops_per_second\n"
        + "".join(f"{n},0.5\n" for n in steps),
        "validation.csv": f"step,set,loss\n0,held_out,2.0\n{run.steps},held_out,1.5\n",
    }
    for file, text in texts.items():
        (run.folder / file).write_text(text)
    for name in damages_of(run.folder / table):
        speeds = measured_speeds([run])
        # of a damaged table none, or what its rows say
        assert all(0 < speed < math.inf for speed in speeds.values()), name
        assert 0 <= run.share_done <= 1
        if name in HARMLESS:
            assert (run.is_finished, run.share_done, [*speeds.values()]) == (
                True,
                1.0,
                [5e11],
            )
        elif run.is_finished:
            last = read_table(run.folder / "validation.csv")[-1]
            assert (last.step, last["set"]) == (run.steps, "held_out"), name
