"""The runs that are kept here, as `dualpath compare` reads them; for tables.py and figures.py."""

from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import Difference, differences_of
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import TrainedRun, find_folders, read_run

STUDY = Path(__file__).parent


def read_group(
    folders: Sequence[str], baselines: Sequence[str], *, primary: bool, any_length: bool = False
) -> tuple[Group, list[Difference]]:
    """All runs of folders of one budget, and how they differ from the baselines.

    `primary`: the tests are those of the mean of the sets alone, corrected among themselves.
    """
    runs = [run for run in map(read_run, find_folders(folders)) if isinstance(run, TrainedRun)]
    (group,) = groups_of(runs, baselines, any_length)
    return group, differences_of([group], aggregate_only=primary)
