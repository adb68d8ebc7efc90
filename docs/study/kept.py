"""The runs that are kept here, as `dualpath compare` reads them, and how the page prints them."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from restore import STUDY, check_kept, check_known, restore

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference, differences_of
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, find_folders, read_run
from dualpath_cli.errors import UserError
from dualpath_cli.files.csv_text import read_csv
from dualpath_cli.run.run_folder import AVERAGES
from dualpath_cli.statistics.levels import holm


def read_group(
    folders: Sequence[str],
    baselines: Sequence[str],
    *,
    primary: bool,
    any_length: bool = False,
    shown: Sequence[str] | None = None,
    sets: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> tuple[Group, list[Difference]]:
    """All runs of folders beside this file, of one budget, and how they differ from the baselines.

    `primary`: the tests are those of the mean of the sets alone, corrected among themselves.
    `shown` are the configurations whose differences are returned, p corrected for their tests; the
    error comes from all. `sets` and `seeds` are those that count, if not all do.
    """
    runs = read_runs(folders)
    if sets:
        check_known("validation set", sets, list(runs[0].scores)[1:])
        scores = [{name: run.scores[name] for name in sets} for run in runs]
        runs = [replace(run, scores={AGGREGATE: fmean(of_run.values()), **of_run})
                for run, of_run in zip(runs, scores, strict=True)]  # fmt: skip
    runs = of_seeds(runs, seeds)
    groups = groups_of(runs, baselines, any_length)
    if len(groups) > 1:
        raise UserError(
            f"{' '.join(folders)} make {len(groups)} tables, {'; '.join(g.name for g in groups)}; "
            "give folders of one budget and number of tokens"
        )
    (group,) = groups
    rows = differences_of(groups, aggregate_only=primary)
    if shown is not None:
        check_known("configuration", shown, [c.name for c in group.configurations])
        rows = [row for row in rows if row.configuration in shown]
        corrected = holm([row.p for row in rows])
        rows = [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]
    return group, rows


def read_runs(folders: Sequence[str], average: int = 1) -> list[TrainedRun]:
    """All finished runs of folders beside this file; with `average`, those whose was scored."""
    check_kept(folders)
    runs = [_read(run, average) for run in find_folders([str(_restored(name)) for name in folders])
            if average == 1 or (run / AVERAGES).exists()]  # fmt: skip
    return [run for run in runs if isinstance(run, TrainedRun)]


def of_seeds(runs: list[TrainedRun], seeds: Sequence[int] | None) -> list[TrainedRun]:
    """The runs of some seeds, all of which there have to be; without any, all runs."""
    if not seeds:
        return runs
    check_known("seed", map(str, seeds), map(str, sorted({run.seed for run in runs})))
    return [run for run in runs if run.seed in seeds]


@cache
def _restored(name: str) -> Path:
    """The folders of a sweep's runs, side by side with those of others until the script ends."""
    folder = Path(_temporary().name) / name
    restore(name, folder)
    return folder


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


_read = cache(read_run)


def mean_of_last_rows(sweep: str, run: str, seeds: Sequence[int], column: str) -> float:
    """Of the columns of routing.csv that begin so: the mean of the last step that was logged."""
    rows = [row for row in read_csv(STUDY / sweep / "routing.csv") if row["run"] == run]
    return fmean(
        fmean(
            float(value)
            for row in rows
            if row["seed"] == str(seed) and row["step"] == last_step(rows, seed)
            for name, value in row.items()
            if name.startswith(column) and value
        )
        for seed in seeds
    )


def last_step(rows: Sequence[dict[str, str]], seed: int) -> str:
    return max((row["step"] for row in rows if row["seed"] == str(seed)), key=int)


def print_row(*cells: str) -> None:
    """A line of a Markdown table."""
    print("|", " | ".join(cells), "|")


def signed(value: float, digits: int = 4) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def with_interval(row: Difference) -> str:
    """The difference, and its 95 % interval in brackets."""
    return f"{signed(row.difference)} ({signed(row.low)} to {signed(row.high)})"
