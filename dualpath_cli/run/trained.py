"""Finds and checks the trained model that a command's words name. Torch-free.

`--average N` means the mean of the weights of a run's last N checkpoints.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.system import format_csv, read_csv, write_text
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.exported_folder import is_exported, read_folder
from dualpath_cli.run.run_folder import (
    AVERAGES,
    CHECKPOINTS,
    RECIPE,
    STEP,
    TOKENIZER,
    Run,
    check_as_written,
    complete_checkpoints,
    newest_checkpoint,
    step_of,
)
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import check_as_trained


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and the settings that it was trained with."""

    path: str  # as the user gave it
    run: Run
    settings: Settings

    def check(self, change: Intervention | None) -> None:
        if change is not None and (problem := change.problem(self.settings.model)):
            raise UserError(f"{change.name}: {problem} ({self.path})")

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.run.folder / TOKENIZER)


def find(path: str, average: int = 1, own_classes: bool = False) -> Trained:
    """Finds the model of any RUN, averaged over its last `average` checkpoints.

    `own_classes` allows importing its custom classes.
    """
    run = averaged(find_run(path), average)
    settings = settings_from(run_folder.read_recipe(run.folder))
    check_as_trained(run, settings.model, own_classes)
    return Trained(path, run, settings)


def find_run(path: str) -> Run:
    """Understands any RUN: a run folder, a checkpoint inside one, or an exported folder."""
    if is_exported(Path(path)):
        return read_folder(Path(path))
    run = _find_run(path)
    check_as_written(run.folder, run.checkpoint)
    return run


def _find_run(path: str) -> Run:
    given = Path(path)
    if not given.exists():
        siblings = [p.name for p in given.parent.iterdir()] if given.parent.is_dir() else []
        hint = did_you_mean(given.name, siblings) or "; runs are kept as runs/<recipe>/<name>"
        raise UserError(f"no run or checkpoint at '{path}'{hint}")
    if (given / RECIPE).is_file():
        checkpoint = newest_checkpoint(given)
        if checkpoint is None:
            raise UserError(f"run '{path}' has no complete checkpoint yet; let fit write one first")
        return Run(given, checkpoint, step_of(checkpoint))
    folder = given.resolve().parent.parent
    if STEP.fullmatch(given.resolve().name) and (folder / RECIPE).is_file():
        return Run(folder, given.resolve(), step_of(given))
    raise UserError(
        f"'{path}' is neither a run folder (it would hold {RECIPE}), nor a checkpoint inside one "
        f"({CHECKPOINTS}/step-...), nor a folder of dualpath export"
    )


def averaged(run: Run, count: int) -> Run:
    """The run with its last `count` checkpoints up to its own, to be averaged."""
    if count == 1:
        return run
    if run.checkpoint == run.folder:
        raise UserError(f"--average {count}: '{run.folder}' was exported; give the run's folder")
    kept = sorted(complete_checkpoints(run.folder), key=step_of)
    own = [*[path for path in kept if step_of(path) < run.step][1 - count :], run.checkpoint]
    if len(own) < count:
        raise UserError(
            f"--average {count}: '{run.folder}' keeps {len(own)} on its way to step {run.step:,}, "
            f"from step {step_of(own[0]):,} on; run.keep={count} in training keeps as many"
        )
    for checkpoint in own:
        check_as_written(run.folder, checkpoint)
    return replace(run, average=tuple(own))


def label_of_average(run: Run) -> str | None:
    """The line that names the averaged checkpoints of a run or export; None without average."""
    steps = [step_of(path) for path in run.average] or run.facts.get("averaged_steps")
    if not steps:
        return None
    return f"mean of the weights of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"


def keep_scores(run: Run, data: Recipe, results: dict[str, dict[str, float]]) -> Path | None:
    """Writes the scores of an average into the run's folder, replacing its earlier ones.

    Returns the file; None, and writes nothing, if sets were read in another way than the recipe's.
    """
    asked = ("val", "val_tokens", "val_seed")
    own = run_folder.read_recipe(run.folder).get("data", {})
    if not results or any(own.get(key) != data.get(key) for key in asked):
        return None
    at = {"step": str(run.step), "average": str(len(run.average))}
    path = run.folder / AVERAGES
    rows: list[Any] = [row for row in read_csv(path) if not at.items() <= row.items()]
    rows += [{**at, "set": name, **result} for name, result in results.items()]
    write_text(path, format_csv(rows))
    return path
