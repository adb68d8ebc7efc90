"""The tables of a run that is continued: checked before it starts, as their rows are kept."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.files import WAY_OUT, read_csv
from dualpath_cli.output import is_first_rank
from dualpath_cli.run.checkpoint_files import rows_of
from dualpath_cli.run.run_folder import TABLES, step_of

NEEDED = {"metrics.csv": ("step", "tokens", "seconds"), "validation.csv": ("step", "set"),
          "routing.csv": ("step", "layer", "gate_deep", "gate_wide", "expected_loops"),
          "bad_steps.csv": ("step",)}  # fmt: skip
"""Columns that continuing and drawing a run read."""


def check_tables(
    folder: Path, names: Sequence[str] = TABLES, checkpoint: Path | None = None
) -> None:
    """Raises UserError where a run's tables cannot be continued.

    That is a table that is no CSV, a missing column, a cell that is no number, a step that goes
    back. Prints which tables lack rows that they had as `checkpoint` was written.
    """
    for name in names:
        path, step = folder / name, 0
        rows = read_csv(path)
        for number, row in enumerate(rows, 2):
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
        if checkpoint is not None and is_first_rank():
            had, last = rows_of(checkpoint).get(name, 0), step_of(checkpoint)
            lacking = had - sum(int(row["step"]) <= last for row in rows)
            if lacking > 0:
                print(
                    f"{path} lacks {lacking:,} of the {had:,} rows that it had at step {last:,}; "
                    "the run goes on without them",
                    file=sys.stderr,
                )


def _is_fine(column: str, cell: str) -> bool:
    """Whether a cell holds what its column needs: a name, a number, or maybe nothing."""
    if column in ("step", "layer"):
        return cell.isdecimal() and len(cell) <= 18
    if column in ("set", "kind") or (cell == "" and column not in ("tokens", "seconds")):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True
