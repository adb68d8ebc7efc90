"""The progress of a run: a bar on a terminal, lines elsewhere."""

from lightning.pytorch import LightningModule, Trainer
from rich.console import Console

from dualpath_cli.output.progress import Progress, counted
from dualpath_cli.training.logs.each_step import EachStep
from dualpath_cli.training.logs.metrics_log import Row
from dualpath_cli.training.module import DualPathModule


class ProgressDisplay(EachStep):
    """Shows steps, loss, tokens/s and the time left; `show` takes each logged row."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(console, "training", counted("steps"))
        self.status = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins at the step that the run is continued from."""
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            self.progress.begin(int(trainer.max_steps), done=self.step)
            self.progress.start()

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Counts it."""
        if trainer.is_global_zero:
            self.progress.advance()

    def show(self, row: Row) -> None:
        """Takes a row of metrics, to be shown beside the steps."""
        self.status = (
            f"loss {row['loss']:.3f}, {row['bits_per_byte']:.3f} bits/byte, "
            f"{row['tokens_per_second']:,.0f} tokens/s"
        )
        if "mfu" in row:
            self.status += f", MFU {row['mfu']:.1%}"
        self.progress.advance(0, status=self.status)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows why the steps stand still."""
        if trainer.is_global_zero:
            self.progress.advance(0, status="validating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the last row again."""
        if trainer.is_global_zero:
            self.progress.advance(0, status=self.status)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the last step on the screen."""
        if trainer.is_global_zero:
            self.progress.stop(last_line=True)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leaves the terminal clean before the error is printed."""
        self.progress.stop()
