"""Writes gates, gains and expected loops of each layer, measured on one sequence, to routing.csv.

One extra forward pass every `gates_every` steps, so that the training graph stays free of
read-outs, with the step's first sequence: the first rank's first, on any number of ranks. It runs
`model.loops`, as validation does, whatever the step was trained with.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch.distributed.tensor import DTensor

from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.training.logs.each_step import EachStep
from dualpath_cli.training.logs.metrics_log import CsvTable, Row
from dualpath_cli.training.module import DualPathModule


class RoutingLog(EachStep):
    """Writes a row per layer; gains are after the softplus (s in Eq. 1)."""

    def __init__(self, run_folder: Path, every: int, loops: int) -> None:
        self.every = every
        self.gain_columns = [f"gain_deep_{k}" for k in range(1, loops + 1)]
        self.table = CsvTable(
            run_folder / "routing.csv",
            ["step", "layer", "gate_deep", "gate_wide", "expected_loops", *self.gain_columns,
             "gain_wide"],
        )  # fmt: skip
        self._first: torch.Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Opens the table, cut to the step that the run is continued from."""
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            self.table.open(self.step)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the step's first sequence."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._first = batch[0][:1]

    def on_step(self, trainer: Trainer, module: DualPathModule) -> None:
        """Reads out a step that is due."""
        if self.step % self.every:
            return
        assert module.model is not None
        assert self._first is not None
        # All ranks: under fsdp a forward pass is a collective.
        with trainer.precision_plugin.forward_context():
            rows = self.read_out(module.model, self._first)
        for logger in trainer.loggers:
            for row in rows:
                layer = f"{row['layer']:02d}"
                named = {f"routing/layer_{layer}/{k}": v for k, v in row.items() if k != "layer"}
                logger.log_metrics(named, self.step)
        if trainer.is_global_zero:
            self.table.append(*({"step": self.step, **row} for row in rows))

    @torch.no_grad()
    def read_out(self, model: DualPathLM, tokens: torch.Tensor) -> list[Row]:
        """Means over the tokens (B, T) per layer; a layer leaves out what it does not have."""
        trace = RoutingTrace()
        with torch.compiler.set_stance("force_eager"):
            model(tokens, trace=trace)
        rows: list[Row] = []
        for i, (layer, block) in enumerate(zip(trace.layers, model.blocks, strict=True)):
            row: Row = {"layer": i}
            for key, values in (
                ("gate_deep", layer.gate_deep),
                ("gate_wide", layer.gate_wide),
                ("expected_loops", layer.expected_loops),
            ):
                if values is not None:
                    row[key] = values.float().mean().item()
            assert isinstance(block, DualPathBlock)
            if block.kind != "wide":
                row |= dict(zip(self.gain_columns, _gains(block.deep.gains), strict=False))
            if block.kind != "loop":
                (row["gain_wide"],) = _gains(block.wide.gain)
            rows.append(row)
        return rows


def _gains(parameter: torch.Tensor) -> list[float]:
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return F.softplus(whole.float()).tolist()
