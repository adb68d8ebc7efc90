"""Session: a checked launch with its trainer, module and data; `dualpath validate` on one."""

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from rich.console import Console

from dualpath_cli.cli.launch import Launch
from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.run_folder import AVERAGES, Run, newest_step, read_recipe
from dualpath_cli.run.trained import label_of_average
from dualpath_cli.system import format_csv, read_csv, write_text
from dualpath_cli.training.data.data_module import DualPathDataModule
from dualpath_cli.training.module import DualPathModule


class OutOfMemory(RunFailed):
    """A GPU has no room; `half` is the micro-batch with which training can begin again at once."""

    def __init__(self, message: str, half: int | None) -> None:
        super().__init__(message)
        self.half = half


@dataclass(frozen=True)
class Session:
    """All that a task gets (`Command.task`)."""

    launch: Launch
    trainer: Trainer
    module: DualPathModule
    datamodule: DualPathDataModule
    console: Console  # quiet on all ranks but the first

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    @property
    def way_on(self) -> str:
        """What to say of a run that ended early."""
        return f"the same command continues from {newest_step(self.launch.run_folder)}"

    def show_validation(self) -> None:
        """Prints the losses of the last validation, if there was one."""
        if not self.module.val_results:
            return
        numbers = (Column("loss (nats/token)", ""), Column("bits per byte", ""))
        rows = [
            (name, f"{result['loss']:.4f}", f"{result['bits_per_byte']:.4f}")
            for name, result in self.module.val_results.items()
        ]
        caption = (
            "windows of a text are read after end-of-text; for evaluate's rolling_bpb, after the "
            "token before"
        )
        show(self.console, Table([Column("validation set"), *numbers], rows, caption=caption))


def validate(session: Session) -> None:
    """Scores the checkpoint on every validation set; UserError if the run names none."""
    if not session.launch.settings.data.val:
        raise UserError("the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER")
    session.trainer.validate(session.module, datamodule=session.datamodule, verbose=False)
    session.show_validation()
    launch, data = session.launch, session.launch.settings.as_recipe()["data"]
    assert launch.checkpoint is not None
    assert launch.step is not None
    run = launch.averaged or Run(launch.run_folder, launch.checkpoint, launch.step)
    if label := label_of_average(run):
        session.say(label)
    results, first = session.module.val_results, session.trainer.is_global_zero
    if run.average and first and _keep_scores(run, data, results):
        session.say(f"kept: {run.folder / AVERAGES}")


def _keep_scores(run: Run, data: Recipe, results: dict[str, dict[str, float]]) -> bool:
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
