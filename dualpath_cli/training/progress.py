"""What a person sees of a run: a progress bar on a terminal, a line now and then elsewhere."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dualpath_cli.training.metrics_log import Row

LINE_EVERY = 15.0
"""Seconds between two lines where no terminal shows the bar."""


class ProgressDisplay(Callback):
    """Shows steps, loss, tokens/s and the time left; `show` takes each logged row."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.step = self.first_step = 0
        self.started = self.last_line = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins at the step that the run is continued from."""
        self.step = self.first_step = trainer.global_step
        self.total = int(trainer.max_steps)
        self.started = time.monotonic()
        if trainer.is_global_zero and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("steps  {task.fields[status]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=self.total, completed=self.step, status="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Moves the bar."""
        self.step = trainer.global_step
        if self.bar is not None:
            self.bar.update(self.task, completed=self.step)

    def show(self, row: Row) -> None:
        """Takes a row of metrics: beside the bar, or as a line every LINE_EVERY seconds."""
        status = (
            f"loss {row['loss']:.3f}  {row['bits_per_byte']:.3f} bits/byte  "
            f"{row['tokens_per_second']:,.0f} tokens/s"
        )
        if "mfu" in row:
            status += f"  MFU {row['mfu']:.1%}"
        if self.bar is not None:
            self.bar.update(self.task, completed=row["step"], status=status)
            return
        now = time.monotonic()
        if now - self.last_line < LINE_EVERY and row["step"] != self.total:
            return
        self.last_line = now
        pace = (now - self.started) / max(1, row["step"] - self.first_step)
        left = pace * (self.total - row["step"])
        self.console.print(
            f"step {row['step']}/{self.total}  {status}  {left / 60:.1f} min left",
            highlight=False,
            soft_wrap=True,
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says why the bar stands still."""
        if self.bar is not None:
            self.bar.update(self.task, status="validating")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the finished bar on the screen."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Gives the terminal back before the error is printed."""
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
