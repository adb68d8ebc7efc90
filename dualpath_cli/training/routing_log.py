"""routing.csv of a run while it trains.

It gets gates, gains and expected loops of each layer every `gates_every` steps, by an
extra forward pass with `model.loops` on the step's first sequence: the first rank's
first, on any number of ranks. So the training graph stays free of read-outs.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer

from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.run.tables import ROUTING, TABLE_COLUMNS
from dualpath_cli.run.weights import whole
from dualpath_cli.spec.config import LayerConfig, ModelConfig
from dualpath_cli.training.tables import CsvRow, CsvTable

CORE_COLUMN = "expected_core_loops"


class RoutingLog(Callback):
    """Writes a row per layer; gains are after the softplus (s in Eq. 1).

    A layer of the core has means over its repetitions, and gains of each.
    """

    def __init__(self, run_folder: Path, every: int, model: ModelConfig) -> None:
        """Writes rows every `every` optimizer steps; 0: never."""
        self.every = every
        columns = [
            *TABLE_COLUMNS[ROUTING],
            *_gain_columns(model.core_loops, model.most_loops),
            *_gain_columns(model.core_loops),
        ]
        if model.routes_core:
            columns.append(CORE_COLUMN)
        self.table = CsvTable(run_folder / ROUTING, columns)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        # Without read-outs there may still be rows after the step to continue from.
        if trainer.is_global_zero and (self.every or self.table.path.exists()):
            self.table.open(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.every or trainer.global_step % self.every:
            return

        # All ranks: under fsdp a forward pass is a collective.
        tokens, _ = batch
        with trainer.precision_plugin.forward_context():
            rows = self.read_out(pl_module.model, tokens[:1])

        for logger in trainer.loggers:
            for row in rows:
                prefix = f"routing/layer_{row['layer']:02d}"
                numbers = {
                    f"{prefix}/{name}": value
                    for name, value in row.items()
                    if name != "layer"
                }
                logger.log_metrics(numbers, trainer.global_step)

        if trainer.is_global_zero:
            self.table.append(*({"step": trainer.global_step, **row} for row in rows))

    @torch.no_grad()
    def read_out(self, model: DualPathLM, tokens: torch.Tensor) -> list[CsvRow]:
        """Means over tokens (B, T) per layer; columns that a layer lacks stay empty."""
        trace = RoutingTrace()
        with torch.compiler.set_stance("force_eager"):
            model(tokens, trace=trace)

        rows: list[CsvRow] = []
        for number, block in enumerate(model.blocks):
            row: CsvRow = {"layer": number}
            applications = [own for own in trace.layers if own.layer == number]
            for column in ("gate_deep", "gate_wide", "expected_loops"):
                values = [getattr(own, column) for own in applications]
                if values[0] is not None:
                    row[column] = torch.stack(values).float().mean().item()

            assert isinstance(block, DualPathBlock)
            row |= _gains_of(block, model.config.layers[number])
            rows.append(row)

        if trace.core is not None and model.config.routes_core:
            expected = trace.core.expected_loops
            assert expected is not None
            _, core, _ = model.config.stretches
            for number in core:
                rows[number][CORE_COLUMN] = expected.float().mean().item()
        return rows


def _gain_columns(repetitions: int, steps: int | None = None) -> list[str]:
    """The columns of a path's gains, in the order of its parameter.

    A deep path has one for each of its `steps` in each repetition of the core, a wide
    path one for each repetition.
    """
    names = ["gain_wide"]
    if steps is not None:
        names = [f"gain_deep_{k}" for k in range(1, steps + 1)]

    columns = [*names]
    for r in range(2, repetitions + 1):
        columns += [f"{name}_r{r}" for name in names]
    return columns


def _gains_of(block: DualPathBlock, layer: LayerConfig) -> CsvRow:
    row: CsvRow = {}
    if block.kind != "wide":
        columns = _gain_columns(layer.core_loops, layer.loops)
        row |= zip(columns, _gains(block.deep.gains), strict=True)
    if block.kind != "loop":
        columns = _gain_columns(layer.core_loops)
        row |= zip(columns, _gains(block.wide.gain), strict=True)
    return row


def _gains(parameter: torch.Tensor) -> list[float]:
    return F.softplus(whole(parameter).float()).tolist()
