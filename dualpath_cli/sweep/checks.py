"""Checks of a sweep before it writes anything."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dualpath_cli.cli import launch
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.errors import UserError
from dualpath_cli.own_classes.checks import check_as_begun
from dualpath_cli.own_classes.classes import own_roles
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.run.run_folder import RECIPE, check_same_recipe, decisive_part, facts_now
from dualpath_cli.sweep.runs import Run

WAY_OUT = "give this sweep another --out"


def check_begun(runs: Iterable[Run]) -> None:
    """Checks that the runs that were begun before are those of this sweep.

    Else seeds would be added to a configuration that trained something else.
    """
    for run in runs:
        if (run.folder / RECIPE).is_file():
            way_out = f"{WAY_OUT}, or the words that it was begun with"
            check_same_recipe(run.folder, run.settings.as_recipe(), way_out=way_out)
            if own_roles(run.settings.model):
                check_as_begun(run.folder, facts_now(run.folder), run.settings.model, WAY_OUT)


def check_different(runs: Sequence[Run]) -> None:
    """Checks that no two configurations would be trained with the same numbers."""
    seen: dict[str, str] = {}
    for run in {run.configuration.name: run for run in reversed(runs)}.values():
        name = run.configuration.name
        other = seen.setdefault(_identity(run), name)
        if other != name:
            raise UserError(
                f"{other} and {name} would be the same run twice; leave one of the values out "
                "of --set"
            )


def _identity(run: Run) -> str:
    """The settings that decide a run's numbers; its tokens by the whole steps that they make."""
    trainer, part = run.settings.trainer, decisive_part(run.settings.as_recipe())
    part["run"] |= {"recipe": "", "max_tokens": run.steps * run.settings.run.batch_tokens}
    more = [trainer.precision, trainer.callbacks, trainer.plugins]
    return json.dumps([part, run.seed, more], sort_keys=True)


def check_settings(runs: Sequence[Run]) -> None:
    """Checks one run of each configuration, as far as it can be before anything runs."""
    for run in {run.configuration.name: run for run in reversed(runs)}.values():
        if (run.folder / RECIPE).is_file():
            continue  # checked as it was begun
        try:
            _check_as_fit(run)
            _check_branch(run)
        except UserError as error:
            name = f"{run.configuration.name}: " if run.configuration.settings else ""
            raise UserError(f"{name}{error}") from None


def _check_as_fit(run: Run) -> None:
    """Has `fit` check a run; one whose trunk is not there yet as if it began at the start."""
    settings = run.settings
    if not run.is_ready:
        settings = replace(settings, run=replace(settings.run, branch_from=None))
    launch.to_train(COMMANDS["fit"], settings)


def _check_branch(run: Run) -> None:
    """Checks that a branch's trunk saves a checkpoint that it can begin from."""
    start, every = stable_steps(run.settings), run.settings.run.save_every
    if run.settings.run.branch_from is not None and start < every:
        raise UserError(
            f"run.save_every={every} leaves no checkpoint before the cool-down of a run of "
            f"{run.steps} steps, or its second phase of loops, at step {start}; save more often"
        )
