"""EachStep: a callback of optimizer steps, however many micro-batches each of them has."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from dualpath_cli.training.module import DualPathModule


class EachStep(Callback):
    """Calls `on_step` after each optimizer step; `step` is the newest one that was made."""

    step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins at the step that the run is continued from."""
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks whether the micro-batch was the last one of its step."""
        if trainer.global_step != self.step:  # else still accumulating
            self.step = trainer.global_step
            assert isinstance(pl_module, DualPathModule)
            self.on_step(trainer, pl_module)

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Is called after each optimizer step, also after one that was left out."""
        raise NotImplementedError
