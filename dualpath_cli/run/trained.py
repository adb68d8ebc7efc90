"""A trained model that a command's words name: found and checked without importing torch.

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
from dualpath_cli.run.checkpoint_files import facts_of
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
    """Finds the model of any RUN, averaged over so many checkpoints up to that one.

    Its custom classes are imported where `own_classes` says so.
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
    """The run with the checkpoints that are averaged: the last ones up to its own.

    A run that was taken back to an older step goes on from there: checkpoints of the part that it
    left are not its own.
    """
    if count == 1:
        return run
    if run.checkpoint == run.folder:
        raise UserError(f"--average {count}: '{run.folder}' was exported; give the run's folder")
    own = lineage(run.checkpoint, complete_checkpoints(run.folder))[:count]
    if len(own) < count:
        raise UserError(
            f"--average {count}: '{run.folder}' keeps {len(own)} on its way to step {run.step:,}, "
            f"from step {step_of(own[-1]):,} on; run.keep={count} in training keeps as many"
        )
    for checkpoint in own:
        check_as_written(run.folder, checkpoint)
    return replace(run, average=tuple(reversed(own)))


def lineage(checkpoint: Path, kept: list[Path]) -> list[Path]:
    """A checkpoint and those that its run went through, of all that are kept, newest first.

    The facts of a checkpoint say to which step the run was last taken back before it. What was
    saved after going back to one step for the first time, and for the second, looks alike.
    """
    found, back = [checkpoint], _taken_back(checkpoint)
    older = (path for path in kept if step_of(path) < step_of(checkpoint))
    for path in sorted(older, key=step_of, reverse=True):
        if back is None or step_of(path) > back:
            if _taken_back(path) == back:
                found.append(path)
        elif step_of(path) == back:
            found.append(path)
            back = _taken_back(path)
        else:  # the step that it went back to is gone: what is older cannot be told apart
            break
    return found


def _taken_back(checkpoint: Path) -> int | None:
    step = facts_of(checkpoint).get("taken_back")
    return step if type(step) is int else None


def label_of_average(run: Run) -> str | None:
    """Which checkpoints' weights the run's are the mean of, exported or not; None: of no others."""
    steps = [step_of(path) for path in run.average] or run.facts.get("averaged_steps")
    if not steps:
        return None
    return f"mean of the weights of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"


def keep_scores(run: Run, data: Recipe, results: dict[str, dict[str, float]]) -> Path | None:
    """Writes the scores of an average into the run's folder, in place of its earlier ones.

    Only of the run's own sets, read as its recipe says; returns the file, or None.
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
