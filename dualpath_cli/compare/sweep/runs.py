"""The runs of a sweep, a recipe each, readable and runnable by itself. Torch-free.

OUT/
    sweep.yaml       the cells, and the command
    plan.csv         parameters, FLOPs, tokens and estimated hours of each configuration
    recipes/         a recipe for each run: a50_k4-seed_0.yaml
    runs/            their run folders: a50_k4/seed_0
    logs/            their output
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.locks import FIT, is_locked
from dualpath_cli.compare.runs import SeededRun
from dualpath_cli.compare.sweep.cells import SweepCell
from dualpath_cli.recipe.recipes import Recipe, dump
from dualpath_cli.run import run_folder
from dualpath_cli.run.tables import METRICS, is_validated, read_table


@dataclass(frozen=True, eq=False)
class PlannedRun(SeededRun):
    """One run of a sweep: a cell, its values of the varied keys, and a seed."""

    configuration: str  # its name, of cell and values: a50_k4
    cell: SweepCell
    varied: Mapping[str, Any]  # its values of the keys that --set varies
    recipe: Recipe
    path: Path  # the recipe's file
    log: Path  # the output of its process

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def steps(self) -> int:
        return self.settings.run.steps

    @property
    def share_done(self) -> float:
        """The share of its steps that the run has logged; 0 from a damaged log."""
        with suppress(UserError):  # no run stops the others
            rows = read_table(self.folder / METRICS)
            return rows[-1].step / self.steps if rows else 0
        return 0

    @property
    def is_finished(self) -> bool:
        """Whether the last step is saved and validated, or the run's numbers went
        wrong.

        A validated run whose checkpoints were all removed is finished. One whose
        checkpoints are all damaged, or whose validation.csv is, is not: `fit` says so.
        """
        if self.went_wrong:
            return True

        with suppress(UserError):  # of the damage
            newest = run_folder.newest_checkpoint(self.folder)
            saved = newest is None or run_folder.step_of(newest) >= self.steps
            sets = self.settings.data.val
            return saved and is_validated(self.folder, self.steps, sets)
        return False

    @property
    def went_wrong(self) -> bool:
        return (self.folder / run_folder.WENT_WRONG).is_file()

    @property
    def is_being_written(self) -> bool:
        return is_locked(self.folder / FIT)


class PlannedFiles(NamedTuple):
    """The paths of a planned run."""

    folder: Path
    recipe: Path
    log: Path


def files_of(out: Path, configuration: str, seed: object) -> PlannedFiles:
    name = f"{configuration}-seed_{seed}"
    return PlannedFiles(
        folder=out / "runs" / configuration / f"seed_{seed}",
        recipe=out / "recipes" / f"{name}.yaml",
        log=out / "logs" / f"{name}.log",
    )


def planned_in(out: Path) -> Iterator[PlannedFiles]:
    """The files of each run that sweeps have planned in a folder, also of earlier
    commands."""
    for recipe in sorted((out / "recipes").glob("*-seed_*.yaml")):
        configuration, _, seed = recipe.stem.rpartition("-seed_")
        yield files_of(out, configuration, seed)


def write_recipes(runs: Iterable[PlannedRun]) -> None:
    """Writes the recipes, each with its configuration in words as the first line."""
    for run in runs:
        cell = run.cell
        words = (
            f"{run.configuration}, seed {run.seed}: {cell.family}; {cell.spent:.4f} of "
            f"the budget of {cell.budget:,} FLOPs per token and layer, matched in "
            f"{cell.match} FLOPs"
        )
        write_text(run.path, f"# {words}\n{dump(run.recipe)}")
