"""The runs that are kept here, as `dualpath compare` reads them, and how the page prints them."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference, differences_of
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, find_folders, read_run
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.output.csv_text import read_csv
from dualpath_cli.study.levels import holm

STUDY = Path(__file__).parent


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
    paths = [str(STUDY / name) for name in folders]
    runs = [run for run in map(read_run, find_folders(paths)) if isinstance(run, TrainedRun)]
    if sets:
        check_known("validation set", sets, list(runs[0].scores)[1:])
        scores = [{name: run.scores[name] for name in sets} for run in runs]
        runs = [replace(run, scores={AGGREGATE: fmean(of_run.values()), **of_run})
                for run, of_run in zip(runs, scores, strict=True)]  # fmt: skip
    if seeds:
        check_known("seed", map(str, seeds), [str(run.seed) for run in runs])
        runs = [run for run in runs if run.seed in seeds]
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


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises a UserError that says which name is not known, and what is."""
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"no {what} '{name}'{hint}")


def run_script(main: Callable[[], None]) -> None:
    """Ends with one line and exit code 2 where a word is wrong."""
    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2)


def mean_of_last_rows(routing: Path, column: str) -> float:
    """Of the columns of a routing.csv that begin so: the mean of the last step that was logged."""
    rows = read_csv(routing)
    last = max(int(row["step"]) for row in rows)
    return fmean(
        float(value)
        for row in rows
        if int(row["step"]) == last
        for name, value in row.items()
        if name.startswith(column) and value
    )


def print_row(*cells: str) -> None:
    """A line of a Markdown table."""
    print("|", " | ".join(cells), "|")


def signed(value: float, digits: int = 4) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def with_interval(row: Difference) -> str:
    """The difference, and its 95 % interval in brackets."""
    return f"{signed(row.difference)} ({signed(row.low)} to {signed(row.high)})"
