"""The runs that are kept here, as `dualpath compare` reads them; for tables.py and figures.py."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference, differences_of
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, find_folders, read_run
from dualpath_cli.study.levels import holm

STUDY = Path(__file__).parent


def read_group(
    folders: Sequence[str], baselines: Sequence[str], *, primary: bool, any_length: bool = False
) -> tuple[Group, list[Difference]]:
    """All runs of folders of one budget, and how they differ from the baselines.

    `primary`: the tests are those of the mean of the sets alone, corrected among themselves.
    """
    runs = [run for run in map(read_run, find_folders(folders)) if isinstance(run, TrainedRun)]
    (group,) = groups_of(runs, baselines, any_length)
    rows = differences_of([group])
    if primary:
        rows = [row for row in rows if row.measure == AGGREGATE]
        corrected = holm([row.p for row in rows])
        rows = [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]
    return group, rows
