"""The tables of a run that is continued: checked before it starts, as their rows are kept."""

from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.output.csv_text import WAY_OUT, read_csv

TABLES = ("metrics.csv", "validation.csv", "routing.csv")
NEEDED = {"metrics.csv": ("step", "tokens", "seconds"), "validation.csv": ("step", "set"),
          "routing.csv": ("step", "layer", "gate_deep", "gate_wide", "expected_loops")}  # fmt: skip
"""Columns that continuing and drawing a run read."""


def check_tables(folder: Path, names: Sequence[str] = TABLES) -> None:
    """Checks that what a run wrote down can be gone on with, in the tables of these names.

    Raises:
        UserError: for a table that is no CSV, a column that is missing, a cell that is no number,
            and steps that go back.
    """
    for name in names:
        path, step = folder / name, 0
        for number, row in enumerate(read_csv(path), 2):
            for column in NEEDED[name]:
                if column not in row:
                    raise UserError(f"{path} has no column '{column}'; {WAY_OUT}")
            for column, cell in row.items():
                if not _is_fine(column, cell):
                    raise UserError(
                        f"{path} row {number}: {column} is '{cell:.40}', no number; {WAY_OUT}"
                    )
            if int(row["step"]) < step:
                raise UserError(
                    f"{path} row {number}: step {row['step']} stands after {step}; {WAY_OUT}"
                )
            step = int(row["step"])


def _is_fine(column: str, cell: str) -> bool:
    """Whether a cell holds what its column needs: a name, a number, or maybe nothing."""
    if column in ("step", "layer"):
        return cell.isdecimal() and len(cell) <= 18
    if column == "set" or (cell == "" and column not in ("tokens", "seconds")):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True
