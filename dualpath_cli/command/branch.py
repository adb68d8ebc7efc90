"""`run.branch_from`: a run that takes another one over before its learning rate goes down.

Under schedule `wsd` runs of all lengths are alike up to the cool-down of the shortest. So one long
run gives the stable part of the shorter ones, each of which adds a cool-down of its own.
"""

import shutil
from pathlib import Path

from dualpath_cli.command.run_tables import check_tables
from dualpath_cli.errors import UserError
from dualpath_cli.recipe.schedule import cooldown_start
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.run.checkpoint_files import fault_of
from dualpath_cli.run.run_folder import TABLES, Run

_LENGTH = {"run": {"max_tokens", "recipe"}}
"""The keys in which a branch differs from its trunk."""


def find_trunk(settings: Settings) -> Run:
    """Returns the run to branch from, and its last checkpoint that a run of this length shares.

    Raises:
        UserError: where there is none, or the two would not have been alike up to there.
    """
    assert settings.run.branch_from is not None
    if settings.optim.schedule != "wsd" or settings.optim.decay_sum is not None:
        raise UserError(
            "run.branch_from needs optim.schedule wsd and weight_decay instead of decay_sum: else "
            "runs of different lengths differ from the first step on"
        )
    folder = Path(settings.run.branch_from)
    if not (folder / run_folder.RECIPE).is_file():
        raise UserError(f"run.branch_from: no run folder at '{folder}'; train that run first")
    run_folder.check_same_recipe(folder, settings.as_recipe(), free=_LENGTH)
    trunk = settings_from(run_folder.read_recipe(folder))
    shared = min(_cooldown_step(settings), _cooldown_step(trunk))
    steps = {run_folder.step_of(path): path for path in run_folder.complete_checkpoints(folder)}
    usable = [step for step, path in steps.items() if step <= shared and fault_of(path) is None]
    if not usable:
        raise UserError(
            f"run.branch_from: '{folder}' has no checkpoint up to step {shared}, where the "
            "cool-down begins; it must save one (run.save_every) and keep it (run.keep_every)"
        )
    checkpoint = steps[max(usable)]
    check_tables(folder, checkpoint=checkpoint)
    return run_file.find(str(checkpoint))


def _cooldown_step(settings: Settings) -> int:
    return cooldown_start(settings.run.max_tokens // settings.run.batch_tokens, settings.optim)


def take_over(trunk: Path, folder: Path) -> None:
    """Copies the trunk's tables into a run folder; training drops the rows that are too late."""
    for name in TABLES:
        if (trunk / name).is_file():
            shutil.copyfile(trunk / name, folder / name)
