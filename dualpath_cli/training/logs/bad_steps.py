"""Records skipped steps, and ends a run that skips too many in a row.

`bad_steps.csv` has a row for each; `bad_steps/` the tokens and losses of the first ones, a file a
rank: ``numpy.load`` gives input_ids and target_ids (micro-batches, B, T), losses (micro-batches).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from dualpath_cli.errors import NumbersFailed
from dualpath_cli.files import replacing
from dualpath_cli.run.run_folder import newest_step
from dualpath_cli.training.guard import BadStep, Kind
from dualpath_cli.training.logs.each_step import EachStep
from dualpath_cli.training.logs.metrics_log import CsvTable
from dualpath_cli.training.module import DualPathModule

RECORDED = 20
"""Steps of a run whose tokens are kept."""

CAUSES: dict[Kind, str] = {
    "loss": "its loss is no finite number",
    "gradient": "its gradient is no finite number",
    "outlier": "its gradient norm is far above the mean",
}


class BadSteps(EachStep):
    """Records what the module's guard skipped; `limit` steps in a row end the run."""

    def __init__(self, run_folder: Path, limit: int, say: Callable[[str], None]) -> None:
        self.run_folder = run_folder
        self.limit = limit
        self.say = say
        self.table = CsvTable(run_folder / "bad_steps.csv", ["step", "kind", "loss", "grad_norm"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Removes what came after the step that the run is continued from."""
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            if self.table.path.exists():
                self.table.open(self.step)
            for path in self.run_folder.glob("bad_steps/step-*-rank-*.npz"):
                if int(path.name.split("-")[1]) > self.step:
                    path.unlink()
        trainer.strategy.barrier("forgot later bad steps")

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Records the step if it was skipped.

        Raises:
            NumbersFailed: after too many in a row, on all ranks.
        """
        if module.bad_step is not None:
            kind = self._record(trainer, module, module.bad_step)
            if module.guard.in_a_row >= self.limit:
                why = self._why(module.guard.in_a_row, kind)
                # The first rank tells it.
                raise NumbersFailed(why if trainer.is_global_zero else "")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeats at the end that steps were skipped."""
        assert isinstance(pl_module, DualPathModule)
        if skipped := pl_module.guard.skipped:
            self.say(f"{skipped:,} of {self.step:,} steps were skipped: see {self.table.path}")

    def _record(self, trainer: Trainer, module: DualPathModule, bad: BadStep) -> Kind:
        losses = torch.stack(bad.losses).float()
        # Over all ranks: they skip the same steps, and are here together.
        loss = float(trainer.strategy.reduce(losses.mean(), reduce_op="mean"))
        kind: Kind = bad.kind if np.isfinite(loss) else "loss"
        if module.guard.skipped <= RECORDED:
            path = f"bad_steps/step-{self.step:08d}-rank-{trainer.global_rank}.npz"
            inputs, targets = zip(*bad.tokens, strict=True)
            with replacing(self.run_folder / path) as partial, partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    input_ids=torch.stack(inputs).numpy(force=True),
                    target_ids=torch.stack(targets).numpy(force=True),
                    losses=losses.numpy(force=True),
                )
            self.say(f"step {self.step} is skipped: {CAUSES[kind]}")
        if trainer.is_global_zero:
            if not self.table.path.exists():
                self.table.open(0)
            row = {"step": self.step, "kind": kind, "loss": loss}
            self.table.append({**row, "grad_norm": module.grad_norm.item()})
        return kind

    def _why(self, in_a_row: int, kind: Kind) -> str:
        setting = "raise optim.skip_sigma" if kind == "outlier" else "lower optim.lr"
        return (
            f"steps {self.step - in_a_row + 1} to {self.step} were skipped, the last because "
            f"{CAUSES[kind]}; {self.table.path} lists them, bad_steps beside it holds their "
            f"tokens; check the data, {setting} (under another --run.name) or raise "
            f"run.max_bad_steps; the same command continues from {newest_step(self.run_folder)}"
        )
