"""Session: a checked launch, and the trainer, module and data module built for its command."""

from dataclasses import dataclass

from lightning.pytorch import Trainer
from rich.console import Console

from dualpath_cli.cli.launch import Launch
from dualpath_cli.errors import RunFailed
from dualpath_cli.output.table import Column, Table, show
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
