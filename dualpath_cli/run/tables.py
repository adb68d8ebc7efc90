"""The tables of a run, read back: each fault by file and line, and the rows that are
not there.

Other programs also write to these files: spreadsheets, scripts, a machine that died
within a row. A table is read as `fit` wrote it or as common programs rewrite it without
loss (a byte order mark, other line ends, steps as `4.0`). Anything else is refused by
its line. Torch-free.
"""

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_text
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run.exported_folder import LISTING
from dualpath_cli.run.run_folder import branch_step, settings_of_parts

METRICS = "metrics.csv"
VALIDATION = "validation.csv"
ROUTING = "routing.csv"
BAD_STEPS = "bad_steps.csv"
TABLES = (METRICS, VALIDATION, ROUTING, BAD_STEPS)

TABLE_COLUMNS: Mapping[str, Sequence[str]] = {
    METRICS: (
        "step",
        "tokens",
        "loss",
        "bits_per_byte",
        "lr",
        "grad_norm",
        "skipped",
        "tokens_per_second",
        "tflops_per_second",
        "mfu",
        "seconds",
    ),
    VALIDATION: ("step", "tokens", "set", "loss", "bits_per_byte"),
    ROUTING: ("step", "layer", "gate_deep", "gate_wide", "expected_loops"),
    BAD_STEPS: ("step", "kind", "loss", "grad_norm"),
}
"""The columns of every run; `fit` adds those of kinds of parameters, experts and
loops."""

KEYS: Mapping[str, Sequence[str]] = {
    METRICS: ("step",),
    VALIDATION: ("step", "set"),
    ROUTING: ("step", "layer"),
    BAD_STEPS: ("step",),
}
"""The columns that no two rows of a table share."""

WAY_OUT = "put the table back as fit wrote it, or remove it with all its rows"
MOST_STEPS = 10**18  # as in the names of checkpoints
BYTE_ORDER_MARK = "\ufeff"


class TableRow(dict[str, str]):
    """A row of a table, as text by column; its numbers are checked when they are
    read."""

    def __init__(self, values: Mapping[str, str], place: str) -> None:
        """`place` is the file and the line, for messages."""
        super().__init__(values)
        self.place = place

    @property
    def step(self) -> int:
        """The optimizer step. Raises UserError unless it is a whole number."""
        return self.whole("step")

    def whole(self, column: str) -> int:
        """A whole number, also one written as `4.0`. Raises UserError for anything
        else."""
        value = self.measured(column)
        if not (value.is_integer() and 0 <= value < MOST_STEPS):
            raise self.fault(column, "a whole number")
        return int(value)

    def number(self, column: str) -> float:
        """A number above 0. Raises UserError for anything else."""
        value = self.measured(column)
        if not 0 < value < math.inf:
            raise self.fault(column, "a number above 0")
        return value

    def text(self, column: str) -> str:
        """Raises UserError if the table has no such column."""
        if column not in self:
            raise UserError(f"{self.place}: there is no column '{column}'; {WAY_OUT}")
        return self[column]

    def fault(self, column: str, wanted: str) -> UserError:
        return UserError(
            f"{self.place}: {column} is '{self[column]:.40}', not {wanted}; {WAY_OUT}"
        )

    def measured(self, column: str) -> float:
        """A number, nan or infinity, as `fit` writes them. Raises UserError for
        anything else."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.fault(column, "a number") from None

        beyond_a_float = math.isinf(value) and any(map(str.isdigit, text))
        if beyond_a_float:
            raise self.fault(column, "a number that a float can hold")
        return value


def read_csv(path: Path, needed: Collection[str] = ()) -> list[TableRow]:
    """The rows of a CSV file; none if it is missing or empty.

    A last line without its end is not a row: the machine died while writing it. Raises
    UserError for a file that is not text, lacks one of the columns `needed`, or has a
    row of another length.
    """
    text = read_text(path, WAY_OUT) if path.exists() else ""
    lines = list(io.StringIO(text.removeprefix(BYTE_ORDER_MARK), newline=""))
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines.pop()

    reader = csv.reader(lines, strict=True)
    try:
        columns = next(reader, [])
        _check_columns(path, columns, needed if lines else ())
        return list(_rows(path, columns, reader))
    except csv.Error as error:
        place = f"{path} line {reader.line_num}"
        raise UserError(f"{place} cannot be read ({error}); {WAY_OUT}") from None


def _check_columns(path: Path, columns: Sequence[str], needed: Collection[str]) -> None:
    found = ",".join(columns)
    for column in needed:
        if column not in columns:
            raise UserError(
                f"{path} line 1 has no column '{column}' but '{found:.60}'; {WAY_OUT}"
            )
    for column in columns:
        if columns.count(column) > 1:
            raise UserError(
                f"{path} line 1 has the column '{column:.40}' twice; {WAY_OUT}"
            )


def _rows(path: Path, columns: Sequence[str], reader: Any) -> Iterator[TableRow]:
    for values in reader:
        if not values:  # an empty line
            continue
        place = f"{path} line {reader.line_num}"
        if len(values) != len(columns):
            raise UserError(
                f"{place} has {len(values)} fields, and the table {len(columns)} "
                f"columns; {WAY_OUT}"
            )
        yield TableRow(dict(zip(columns, values, strict=True)), place)


def read_table(path: Path) -> list[TableRow]:
    """The rows of a table of a run, in the order of their steps; none if it is missing
    or empty.

    A step or layer written as `4.0` is returned as `4`. Raises UserError as `read_csv`,
    for a step or layer that is not a whole number, for steps out of order, and for a
    second row of a step (and of its set or layer).
    """
    keys = KEYS[path.name]
    rows = read_csv(path, keys)
    for row in rows:
        for column in {"step", "layer"}.intersection(keys):
            row[column] = str(row.whole(column))

    before = -1
    of_step: set[tuple[str, ...]] = set()
    for row in rows:
        step = row.step
        if step < before:
            raise UserError(
                f"{row.place}: step {step} comes after step {before}; {WAY_OUT}"
            )
        if step > before:
            of_step.clear()
        before = step

        key = tuple(row[column] for column in keys[1:])
        if key in of_step:
            which = " ".join(["step", str(step), *key])
            raise UserError(f"{row.place} is a second row of {which}; {WAY_OUT}")
        of_step.add(key)
    return rows


def read_tables(folder: Path, last: int) -> dict[str, list[TableRow]]:
    """The rows of a run up to step `last`, by the name of their table."""
    return {
        name: [row for row in read_table(folder / name) if row.step <= last]
        for name in TABLES
    }


def is_validated(folder: Path, step: int, sets: Iterable[str]) -> bool:
    """Whether validation.csv of a run has a row of each validation set at a step."""
    rows = read_table(folder / VALIDATION)
    return {row["set"] for row in rows if row.step == step} >= set(sets)


# Rows that are not there


def check_tables(folder: Path, settings: Settings, step: int) -> list[str]:
    """A line for each table that lacks rows or columns of a run that goes on from
    `step`.

    `settings` are those of the run's first part. Raises UserError for a damaged table.
    """
    tables = read_tables(folder, step)
    if tables[METRICS]:
        tables[METRICS][-1].number("seconds")  # training time goes on from here

    lines = []
    for name, rows in tables.items():
        absent = [c for c in TABLE_COLUMNS[name] if rows and c not in rows[0]]
        if absent:
            lines.append(
                f"{folder / name} lacks the columns {', '.join(absent)} up to step "
                f"{step}"
            )

    validation = {VALIDATION: tables.pop(VALIDATION)}
    lines += lost(folder, settings, step, tables)
    # `fit` makes up for that of `step`
    lines += lost(folder, settings, step - 1, validation)
    return lines


def lost(
    folder: Path,
    settings: Settings,
    last: int,
    tables: Mapping[str, Sequence[TableRow]],
) -> list[str]:
    """A line for each table without all rows that `fit` wrote up to step `last`.

    `settings` are those of the run's first part, `tables` the rows by the name of their
    table. An exported folder has no recipes of a run's further parts: its SHA256SUMS
    names a changed file.
    """
    if (folder / LISTING).is_file():
        return []
    parts = settings_of_parts(folder, settings)
    branched = branch_step(folder)

    lines = []
    for name, rows in tables.items():
        keys = KEYS[name][1:]
        there = {(row.step, *(row[key] for key in keys)) for row in rows}
        written = _written(name, parts, branched, last)
        gone = sorted({step for step, *key in written if (step, *key) not in there})
        if gone:
            lines.append(f"{folder / name} lacks rows of {_steps(gone)}")
    return lines


def _written(
    name: str, parts: Mapping[int, Settings], branched: int, last: int
) -> Iterator[tuple[Any, ...]]:
    """The keys of the rows that `fit` wrote up to step `last`, by the settings of the
    run's parts.

    Rows up to step `branched` are the trunk's, whose settings the run does not keep.
    """
    ends = [*list(parts)[1:], last]
    for (begun, part), end in zip(parts.items(), ends, strict=True):
        every, others = _rhythm(name, part)
        begun = max(begun, branched)
        end = min(end, last)

        steps = [
            step for step in range(begun + 1, end + 1) if every and step % every == 0
        ]
        if name == VALIDATION and begun == 0:
            steps.insert(0, 0)
        if name in (METRICS, VALIDATION) and end == part.run.steps and end not in steps:
            steps.append(end)
        for step in steps:
            for other in others:
                yield step, *other


def _rhythm(name: str, part: Settings) -> tuple[int, Sequence[tuple[str, ...]]]:
    """The steps between two rows of a table, and the further keys of the rows of a
    step."""
    if name == METRICS:
        return part.run.log_every, [()]
    if name == VALIDATION:
        return part.run.validate_every, [(of_set,) for of_set in part.data.val]
    if name == ROUTING:
        return part.run.gates_every, [
            (str(layer),) for layer in range(part.model.n_layers)
        ]
    return 0, []  # no setting says which steps are skipped


def _steps(steps: Sequence[int]) -> str:
    """Steps in words, the first and the last one where they are many."""
    if len(steps) <= 4:
        word = "step" if len(steps) == 1 else "steps"
        return f"{word} {', '.join(f'{step:,}' for step in steps)}"
    return f"{len(steps):,} steps, {steps[0]:,} to {steps[-1]:,}"
