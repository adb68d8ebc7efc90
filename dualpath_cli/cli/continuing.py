"""A run that goes on from elsewhere: on other data (`--new-data`), or from another run.

`run.branch_from`: under schedule `wsd` runs of all lengths are alike up to the cool-down of the
shortest. So one long run, the trunk, gives the stable part of the shorter ones.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.recipe.options import WithRecipe
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import fault_of
from dualpath_cli.run.run_folder import TABLES, Run, check_tables
from dualpath_cli.run.trained import find_run
from dualpath_cli.text.manifest import Manifest
from dualpath_cli.text.tokenizer import Tokenizer

_LENGTH = {"run": {"max_tokens", "recipe"}}
"""The keys in which a branch differs from its trunk."""


@dataclass(frozen=True, kw_only=True)
class Fit(WithRecipe):
    """Train a model from a recipe; the same command continues an interrupted run."""

    ckpt_path: tuple[str, ...] = ()
    """One RUN: another run, or a checkpoint of one, whose weights to start from; or an older
    checkpoint of this run to go back to."""
    new_data: bool = False
    """Continue the run on other data than it has been trained on up to now, from their beginning;
    else they are refused."""


def data_since(folder: Path, checkpoint: Path, manifest: Manifest, new_data: bool) -> int:
    """Returns the step at which a run, continued from a checkpoint, began to train on its data.

    Raises UserError for other data without `new_data`, and for data of other tokens.
    """
    before = run_folder.facts_at(folder, checkpoint)
    trained_on, since = str(before.get("data_fingerprint")), before.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since
    if not new_data:
        raise UserError(
            f"{folder} was trained on data of the fingerprint {trained_on:.12}, these are "
            f"{manifest.summary}; go back to those, give this run a name (--run.name NAME), or go "
            "on with these from their beginning (--new-data)"
        )
    if Tokenizer.load(folder / run_folder.TOKENIZER).fingerprint != manifest.tokenizer:
        raise UserError(
            f"{folder} was trained with another tokenizer than that of the new data, whose ids "
            "mean other texts; prepare them with the run's: --tokenizer "
            f"{folder / run_folder.TOKENIZER}"
        )
    return run_folder.step_of(checkpoint)


def find_trunk(settings: Settings) -> Run:
    """Returns the run to branch from, and its last checkpoint that a run of this length shares.

    Raises UserError where there is none, or the two would not have been alike up to there.
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
    shared = min(stable_steps(settings), stable_steps(trunk))
    steps = {run_folder.step_of(path): path for path in run_folder.complete_checkpoints(folder)}
    usable = [step for step, path in steps.items() if step <= shared and fault_of(path) is None]
    if not usable:
        raise UserError(
            f"run.branch_from: '{folder}' has no checkpoint up to step {shared}, where cool-down "
            "or second phase begins; it must save one (run.save_every) and keep it (run.keep_every)"
        )
    checkpoint = steps[max(usable)]
    check_tables(folder, checkpoint=checkpoint)
    return find_run(str(checkpoint))


def take_over(trunk: Path, folder: Path) -> None:
    """Copies the trunk's tables into a run folder; training drops the rows that are too late."""
    for name in TABLES:
        if (trunk / name).is_file():
            shutil.copyfile(trunk / name, folder / name)
