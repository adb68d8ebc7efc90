"""The averages of a sweep's runs: `validate --average` of each, as a process. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath_cli.errors import UserError
from dualpath_cli.files import read_csv
from dualpath_cli.own_classes.checks import option_of
from dualpath_cli.recipe.recipes import Recipe, merge
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.run.run_folder import AVERAGES
from dualpath_cli.sweep.runs import Run


@dataclass(frozen=True, eq=False)
class Average(Run):
    """The score of a finished run's average."""

    count: int = 1

    @property
    def words(self) -> list[str]:
        classes = option_of(self.settings.model).split()
        return ["validate", "--ckpt-path", str(self.folder), "--average", str(self.count), *classes]

    @property
    def is_finished(self) -> bool:
        """Whether all validation sets are scored at the last step."""
        at = {"step": str(self.steps), "average": str(self.count)}
        rows = read_csv(self.folder / AVERAGES)
        scored = {row["set"] for row in rows if at.items() <= row.items()}
        return scored >= set(self.settings.data.val)


def averages_of(runs: Sequence[Run], count: int) -> list[Average]:
    """The averages of runs; none where nothing is averaged.

    Raises:
        UserError: for a run that does not save as many checkpoints.
    """
    if count == 1:
        return []
    for run in runs:
        every, steps = run.settings.run.save_every, run.steps - run.begins
        if (saved := -(-steps // every)) < count:
            own = " of its own" if run.begins else ""
            raise UserError(
                f"--average {count}: {run.name} has {steps:,} steps{own}, a checkpoint every "
                f"{every:,}: {saved}; lower run.save_every"
            )
    return [
        Average(**vars(run) | {"log": run.log.with_stem(f"{run.log.stem}-average")}, count=count)
        for run in runs
    ]


def with_kept(recipe: Recipe, count: int) -> Recipe:
    """A recipe that keeps as many checkpoints as are averaged, at least."""
    keep = recipe.get("run", {}).get("keep", RunSettings.keep)
    if not (isinstance(keep, int) and 0 < keep < count):
        return recipe
    return merge(recipe, {"run": {"keep": count}})
