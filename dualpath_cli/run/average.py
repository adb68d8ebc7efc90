"""`--average N`: the mean of the weights of a run's last N checkpoints. Torch-free."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError
from dualpath_cli.files import format_csv, read_csv, write_text
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.checkpoint_files import facts_of
from dualpath_cli.run.run_folder import (
    AVERAGES,
    Run,
    check_as_written,
    complete_checkpoints,
    read_recipe,
    step_of,
)


def averaged(run: Run, count: int) -> Run:
    """The run with the checkpoints that are averaged: the last ones up to its own.

    A run that was taken back to an older step goes on from there: checkpoints of the part that it
    left are not its own. Raises UserError where there are fewer, or one is of another step or run.
    """
    if count == 1:
        return run
    if run.checkpoint.is_file() and run.checkpoint.suffix:
        raise UserError(f"--average {count}: '{run.checkpoint}' is one file; give the run's folder")
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
    step = (facts_of(checkpoint) or {}).get("taken_back")
    return step if type(step) is int else None


def keep_scores(run: Run, data: Recipe, results: dict[str, dict[str, float]]) -> bool:
    """Writes the scores of an average into the run's folder, in place of its earlier ones.

    Only of the run's own sets, read as its recipe says; returns whether they were.
    """
    asked = ("val", "val_tokens", "val_seed")
    own = read_recipe(run.folder).get("data", {})
    if not results or any(own.get(key) != data.get(key) for key in asked):
        return False
    at = {"step": str(run.step), "average": str(len(run.average))}
    path = run.folder / AVERAGES
    rows: list[Any] = [row for row in read_csv(path) if not at.items() <= row.items()]
    rows += [{**at, "set": name, **result} for name, result in results.items()]
    write_text(path, format_csv(rows))
    return True


def label(run: Run) -> str:
    """What is averaged, in words, such as `mean of 5 checkpoints, steps 360 to 400`."""
    first, last = step_of(run.average[0]), step_of(run.average[-1])
    return f"mean of the weights of {len(run.average)} checkpoints, steps {first:,} to {last:,}"
