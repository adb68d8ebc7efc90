"""TensorBoard, Weights & Biases, and the progress on the screen, beside the tables of a run."""

import importlib.util
import secrets
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import read_text, write_text
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.console import Progress, counted
from dualpath_cli.training.logs.tables import Row

WANDB_ID = "wandb_id"
"""File of the run folder that holds the id of its W&B run, also when the folder is renamed."""


def loggers(settings: Settings, folder: Path, begins_at: int) -> list[Logger]:
    """TensorBoard where it is installed, W&B where a project is named; CSV files are our own.

    TensorBoard hides what an interrupted start logged from step `begins_at` on.
    """
    run, found = settings.run, importlib.util.find_spec
    made: list[Logger] = []
    if run.tensorboard and found("tensorboard"):
        made.append(TensorBoardLogger(folder, name="", version="tensorboard", purge_step=begins_at))
    if run.wandb:
        if not found("wandb"):
            raise UserError("run.wandb needs the package wandb: pip install 'dualpath[wandb]'")
        kept = folder / WANDB_ID
        one = read_text(kept).strip() if kept.exists() else secrets.token_hex(8)
        title, recipe = f"{run.recipe}/{run.name}", settings.as_recipe()
        late = {"finish_timeout": 60.0}  # seconds that the run's end waits for rows to be sent
        made.append(WandbLogger(title, folder, project=run.wandb, id=one, config=recipe,
                                settings=late))  # fmt: skip
    return made


def begin_wandb(trainer: Trainer, folder: Path) -> None:
    """On the first rank starts or continues the W&B run, whose id stays in the run folder."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            try:
                one = logger.experiment.id
            except Exception as error:  # no network, no key, no such project
                reason = " ".join(str(error).split())[:160]
                raise UserError(
                    f"run.wandb={logger.name}: {type(error).__name__}: {reason}; with "
                    "WANDB_MODE=offline rows go to the run folder, and `wandb sync` sends them"
                ) from error
            write_text(folder / WANDB_ID, f"{one}\n")


class Bar(RichProgressBar):
    """Lightning's bar: steps, time left, and the last row of metrics.csv."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=4)  # a second
        self.metrics: dict[str, Any] = {}

    @property
    def total_train_batches(self) -> int:
        """Of all steps: Lightning takes the steps that are left for micro-batches."""
        return int(self.trainer.max_steps) * self.trainer.accumulate_grad_batches

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Few enough for 80 columns beside the metrics."""
        return [Steps(self), BarColumn(bar_width=12), TimeRemainingColumn()]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return self.metrics

    def show(self, row: Row) -> None:
        self.metrics = {
            "loss": f"{row['loss']:.3f},",
            "bits/byte": f"{row['bits_per_byte']:.3f},",
            "tokens/s": f"{row['tokens_per_second']:,.0f}",
        }
        if "mfu" in row:
            self.metrics["MFU"] = f"{row['mfu']:.1%}"


class Steps(ProgressColumn):
    """`training: 3 of 6 steps`; Lightning counts the micro-batches of an epoch."""

    def __init__(self, bar: Bar) -> None:
        super().__init__()
        self.bar = bar

    def render(self, task: Task) -> Text:
        title, unit, part = task.description.lower(), "batches", 1
        if task.id == self.bar.train_progress_bar_id:
            title, unit, part = "training", "steps", self.bar.trainer.accumulate_grad_batches
        done, total = int(task.completed) // part, int(task.total or 0) // part
        return Text(f"{title}: {counted(unit)(done, total)}")


class Lines(Callback):
    """The same as an occasional line, where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(console, "training", counted("steps"))
        self.step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step
        self.progress.begin(int(trainer.max_steps), done=self.step)

    def show(self, row: Row) -> None:
        status = (
            f"loss {row['loss']:.3f}, {row['bits_per_byte']:.3f} bits/byte, "
            f"{row['tokens_per_second']:,.0f} tokens/s"
        ) + (f", MFU {row['mfu']:.1%}" if "mfu" in row else "")
        self.progress.advance(row["step"] - self.step, status=status)
        self.step = row["step"]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.progress.stop(last_line=True)
