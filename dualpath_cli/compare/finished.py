"""The finished runs of a comparison, and a line for each run that is left out."""

from collections.abc import Collection, Sequence
from pathlib import Path

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_text
from dualpath_cli.compare.configurations import partition
from dualpath_cli.compare.runs import (
    TrainedRun,
    check_same_data,
    find_folders,
    read_trained_run,
)
from dualpath_cli.compare.sweep.runner import last_words
from dualpath_cli.compare.sweep.runs import PlannedFiles, planned_in
from dualpath_cli.compare.tried_rates import with_diverged_rates
from dualpath_cli.run.run_folder import RECIPE, WENT_WRONG
from dualpath_cli.spec.own_checks import import_classes

FAILURE = "dualpath fit: "  # begins the last line of a fit that failed or was stopped


def read_finished_runs(
    paths: Sequence[str], own_classes: bool = False
) -> tuple[list[TrainedRun], list[str]]:
    """The finished runs, and a line for each of the others, also of those that are only
    planned.

    Raises UserError if no run has finished, or two runs read other data.
    """
    planned = [files for path in paths for files in _planned(Path(path))]
    log_of = {files.folder.resolve(): files.log for files in planned}

    runs: list[TrainedRun] = []
    unfinished: list[Path] = []
    left_out: list[str] = []
    for folder in find_folders(paths):
        run = read_trained_run(folder)
        if isinstance(run, TrainedRun):
            runs.append(run)
            left_out += run.lost
        else:
            unfinished.append(folder)
            how = _how_ended(folder, log_of.get(folder.resolve()))
            left_out.append(f"{folder}: left out, unfinished at {run}{how}")
    left_out += _not_begun(planned)
    left_out += _lacking_seeds(planned, {run.folder.resolve() for run in runs})

    if not runs:
        raise UserError(f"no run has finished: {left_out[0]}; finish one first")
    check_same_data(runs)
    read = [*map(Path, paths), *(run.folder for run in runs)]
    for run in runs:
        import_classes(run.settings.model, allowed=own_classes, read=read)
    return with_diverged_rates(runs, unfinished), left_out


def _planned(path: Path) -> list[PlannedFiles]:
    """The runs that a sweep in a folder has planned.

    Raises UserError if none of them has begun.
    """
    planned = list(planned_in(path))
    begun = [files for files in planned if (files.folder / RECIPE).is_file()]
    if planned and not begun:
        raise UserError(
            f"no run of the sweep '{path}' has begun, of {len(planned)} planned; "
            "dualpath sweep with the same options and --yes trains them"
        )
    return planned


def _not_begun(planned: Sequence[PlannedFiles]) -> list[str]:
    return [
        f"{files.folder}: left out, planned by {files.recipe} and not "
        f"begun{_how_ended(files.folder, files.log)}"
        for files in planned
        if not (files.folder / RECIPE).is_file()
    ]


def _how_ended(folder: Path, log: Path | None) -> str:
    """The end of the line of a run that has not finished: the failure, if there was
    one."""
    wrong = folder / WENT_WRONG
    if wrong.is_file():
        return f", its numbers went wrong: {read_text(wrong).strip()}"
    if log is None or not log.is_file():
        return ""

    words = last_words(log)
    return f", {words.removeprefix(FAILURE)}" if words.startswith(FAILURE) else ""


def _lacking_seeds(
    planned: Sequence[PlannedFiles], finished: Collection[Path]
) -> list[str]:
    """A line on the configurations of a sweep that lack seeds; none if all runs have
    finished."""
    folders = [files.folder for files in planned]
    done = [folder for folder in folders if folder.resolve() in finished]
    if len(done) == len(folders):
        return []

    by_configuration = partition(folders, lambda folder: folder.parent)
    lacking = []
    for configuration, seeds in by_configuration.items():
        its_done = sum(folder in done for folder in seeds)
        if its_done < len(seeds):
            lacking.append(f"{configuration.name} {its_done} of {len(seeds)}")
    return [
        f"{len(done)} of {len(folders)} planned runs have finished; {len(lacking)} of "
        f"{len(by_configuration)} configurations lack seeds: {', '.join(lacking)}"
    ]
