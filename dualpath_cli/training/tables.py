"""The tables of a run while it trains: metrics, validation, routing and bad_steps.csv.

metrics.csv gets a row every `log_every` optimizer steps: loss and bits per byte over
the tokens since the last row, learning rate (of the schedule and of each kind of
parameters), gradient norm (before clipping), steps skipped since the last row
(`guard`), for each layer with experts the numbers of their load since the last row
(`balance`), tokens/s, model FLOP/s and, if the peak is known, MFU. Micro-batches whose
loss is not finite are not in the means. Training time includes compiling, saving and
read-outs, but not validation.

routing.csv gets gates, gains and expected loops of each layer every `gates_every`
steps, by an extra forward pass with `model.loops` on the step's first sequence: the
first rank's first, on any number of ranks. So the training graph stays free of
read-outs.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from rich.console import Console
from torch.distributed.tensor import DTensor

from dualpath_cli.base.errors import NumbersFailed
from dualpath_cli.base.files import write_text
from dualpath_cli.flops.count import over_loops, training_flops_per_token
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.recipe.schedule import learning_rate, rate_factor
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.report.console import Progress, counted
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.run_folder import VALIDATION, way_on
from dualpath_cli.run.tables import (
    BAD_STEPS,
    KEYS,
    METRICS,
    ROUTING,
    TABLE_COLUMNS,
    TableRow,
    is_validated,
    read_table,
)
from dualpath_cli.spec.config import Kind
from dualpath_cli.training import internals
from dualpath_cli.training.balance import COLUMNS
from dualpath_cli.training.guard import Kind as Cause
from dualpath_cli.training.module import DualPathModule

Row = dict[str, Any]

SAID = 20  # skipped steps of a run that get a line each

_CAUSES: dict[Cause, str] = {
    "loss": "its loss is not finite",
    "gradient": "its gradient is not finite",
    "outlier": "its gradient norm is far above the mean",
}


PEAKS = {"H200": 989.4, "H100 PCIe": 756.0, "H100": 989.4, "A100": 312.0, "L4": 121.0}
"""Dense bfloat16 TFLOP/s of NVIDIA's data sheets, which print the sparse peak, twice
the dense."""


def peak_tflops(device: torch.device) -> float | None:
    """A device's dense bfloat16 peak in TFLOP/s; None if unknown, as for a slice of a
    GPU (MIG)."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if re.search("NVL|MIG", name):
        return None
    return next(
        (peak for chip, peak in PEAKS.items() if re.search(rf"{chip}\b", name)), None
    )


@dataclass
class CsvTable:
    """A CSV file of a run; a continued run drops the rows after its first step.

    A table is read when training begins and not again: a spreadsheet that saves the
    file during the night ends no run.
    """

    path: Path
    columns: list[str]
    _rows: list[Row] | None = None  # all rows of the file, where these are known

    def open(self, continued_from: int) -> list[TableRow]:
        """Writes the header; keeps, and returns, an existing file's rows up to
        `continued_from`.

        Raises UserError for a table that another program has damaged.
        """
        before = read_table(self.path) if continued_from else []
        kept = [row for row in before if row.step <= continued_from]
        write_text(self.path, format_csv(kept, self.columns))
        self._rows = [*kept]
        return kept

    def append(self, *rows: Row) -> None:
        self._rows = None
        with self.path.open("a", newline="") as file:
            file.write(format_csv(_short(rows), self.columns, header=False))

    def put(self, step: int, rows: Sequence[Row]) -> None:
        """Writes all rows of a step or none, in place of rows of the same and of later
        steps."""
        before = read_table(self.path) if self._rows is None else self._rows
        keys = KEYS[self.path.name]
        new = {tuple(str(row[key]) for key in keys) for row in rows}
        kept = [
            row
            for row in before
            if int(row["step"]) <= step
            and tuple(str(row[key]) for key in keys) not in new
        ]
        self._rows = [*kept, *_short(rows)]
        write_text(self.path, format_csv(self._rows, self.columns))


def _short(rows: Sequence[Row]) -> list[Row]:
    return [
        {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()}
        for r in rows
    ]


class MetricsLog(Callback):
    """Measures training; writes metrics.csv, validation.csv, all loggers and the
    progress."""

    def __init__(
        self, run_folder: Path, settings: RunSettings, console: Console
    ) -> None:
        self.settings = settings
        self.progress, self.status = Progress(console, "training", counted("steps")), ""
        self.metrics = CsvTable(run_folder / METRICS, [*TABLE_COLUMNS[METRICS]])
        self.validation = CsvTable(
            run_folder / VALIDATION, [*TABLE_COLUMNS[VALIDATION]]
        )
        self.kinds: list[Kind] = []
        self.step = 0
        """The newest finished optimizer step."""
        self.logged_step = 0
        self.seconds = 0.0
        self.since: float | None = None
        self.validation_due = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.step = self.logged_step = trainer.global_step
        self.kinds = [g["name"] for one in trainer.optimizers for g in one.param_groups]
        sparse = [
            n for n, layer in enumerate(pl_module.config.layers) if layer.n_experts
        ]
        self.metrics.columns[5:5] = [  # after lr
            *(f"lr_{kind}" for kind in self.kinds),
            *(f"{name}_{layer}" for layer in sparse for name in COLUMNS),
        ]
        if trainer.is_global_zero:
            rows = self.metrics.open(self.step)
            self.total_seconds = rows[-1].number("seconds") if rows else 0.0
            self.validation.open(self.step)
            self.progress.begin(int(trainer.max_steps), done=self.step)
            self.progress.start()
        self.validation_due = self._lacks_validation(trainer, pl_module)
        if self.step == 0:
            self._log_validation(trainer, pl_module)
        self.since = time.perf_counter()

    def _lacks_validation(self, trainer: Trainer, module: DualPathModule) -> bool:
        """Whether the run was stopped before the end of this step's validation."""
        every = self.settings.validate_every
        due = (
            bool(module.val_names)
            and self.step > 0
            and every > 0
            and self.step % every == 0
        )
        folder = self.validation.path.parent
        lacks = due and not is_validated(folder, self.step, module.val_names)
        return bool(trainer.strategy.broadcast(lacks))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Repeats an interrupted validation, which Lightning counts as done."""
        if self.validation_due:
            self.validation_due = False
            internals.validate_between_batches(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *ignored: Any
    ) -> None:
        self.step = trainer.global_step
        if self.step % self.settings.log_every == 0 or self.step == trainer.max_steps:
            self._log(trainer, pl_module)
        if trainer.is_global_zero:
            self.progress.advance(status=self.status)

    def _log(self, trainer: Trainer, module: DualPathModule) -> None:
        # Reduced over ranks; reading the numbers waits for the device, before the clock
        # stops.
        means = {
            key: value.item() for key, value in module.train_loss.compute().items()
        }
        module.train_loss.reset()
        self._pause()
        seconds, self.seconds = self.seconds, 0.0
        self.since = time.perf_counter()
        steps = range(self.logged_step, self.step)
        new_tokens = len(steps) * self.settings.batch_tokens
        self.logged_step = self.step
        speed = new_tokens / seconds
        loops = (
            {}
            if module.step_loops is None
            else Counter(map(module.step_loops.at, steps))
        )
        flops = speed * over_loops(training_flops_per_token, module.config, loops)
        rate = learning_rate(self.step - 1, trainer.max_steps, module.optim)
        factors = {
            k: rate_factor(k, module.optim, module.config.d_model) for k in self.kinds
        }
        row: Row = {
            "step": self.step,
            "tokens": self.step * self.settings.batch_tokens,
            "loss": means["loss"],
            "bits_per_byte": means["bits_per_byte"],
            "lr": rate,
            **{f"lr_{kind}": rate * factor for kind, factor in factors.items()},
            **module.expert_loads.report(),
            "grad_norm": module.grad_norm.item(),
            "skipped": module.guard.report(),
            "tokens_per_second": speed,
            "tflops_per_second": flops / 1e12,
        }
        peak = self.settings.peak_tflops or peak_tflops(module.device)
        if peak is not None:
            row["mfu"] = flops / (peak * 1e12 * trainer.world_size)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in row.items() if k != "step"}, self.step)
        if trainer.is_global_zero:
            self.total_seconds += seconds
            self.metrics.append({**row, "seconds": self.total_seconds})
            self.status = (
                f"loss {row['loss']:.3f}, {row['bits_per_byte']:.3f} bits/byte, "
                f"{speed:,.0f} tokens/s"
            ) + (f", MFU {row['mfu']:.1%}" if "mfu" in row else "")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.progress.stop(last_line=True)

    def on_exception(self, trainer: Trainer, pl_module: Any, *error: Any) -> None:
        self.progress.stop()

    def _pause(self) -> None:
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._pause()

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return  # a fresh run's step 0; the tables are opened when training starts
        self._log_validation(trainer, pl_module)
        self.since = time.perf_counter()

    def _log_validation(self, trainer: Trainer, module: DualPathModule) -> None:
        at = {"step": self.step, "tokens": self.step * self.settings.batch_tokens}
        for name, result in module.val_results.items():
            named = {f"val/{name}/{key}": value for key, value in result.items()}
            for logger in trainer.loggers:
                logger.log_metrics(named, self.step)
        if trainer.is_global_zero:
            rows = [
                {**at, "set": name, **result}
                for name, result in module.val_results.items()
            ]
            self.validation.put(self.step, rows)


class RoutingLog(Callback):
    """Writes a row per layer; gains are after the softplus (s in Eq. 1)."""

    def __init__(self, run_folder: Path, every: int, loops: int) -> None:
        self.every = every
        self.gain_columns = [f"gain_deep_{k}" for k in range(1, loops + 1)]
        columns = [*TABLE_COLUMNS[ROUTING], *self.gain_columns, "gain_wide"]
        self.table = CsvTable(run_folder / ROUTING, columns)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.table.open(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every:
            return
        tokens, _ = batch
        # All ranks: under fsdp a forward pass is a collective.
        with trainer.precision_plugin.forward_context():
            rows = self.read_out(pl_module.model, tokens[:1])
        for logger in trainer.loggers:
            for row in rows:
                layer = f"{row['layer']:02d}"
                named = {
                    f"routing/layer_{layer}/{k}": v
                    for k, v in row.items()
                    if k != "layer"
                }
                logger.log_metrics(named, trainer.global_step)
        if trainer.is_global_zero:
            self.table.append(*({"step": trainer.global_step, **row} for row in rows))

    @torch.no_grad()
    def read_out(self, model: DualPathLM, tokens: torch.Tensor) -> list[Row]:
        """Means over the tokens (B, T) per layer; columns that a layer lacks stay
        empty."""
        trace = RoutingTrace()
        with torch.compiler.set_stance("force_eager"):
            model(tokens, trace=trace)
        rows: list[Row] = []
        for i, (layer, block) in enumerate(
            zip(trace.layers, model.blocks, strict=True)
        ):
            row: Row = {"layer": i}
            for key in ("gate_deep", "gate_wide", "expected_loops"):
                if (values := getattr(layer, key)) is not None:
                    row[key] = values.float().mean().item()
            assert isinstance(block, DualPathBlock)
            if block.kind != "wide":
                row |= dict(
                    zip(self.gain_columns, _gains(block.deep.gains), strict=False)
                )
            if block.kind != "loop":
                (row["gain_wide"],) = _gains(block.wide.gain)
            rows.append(row)
        return rows


def _gains(parameter: torch.Tensor) -> list[float]:
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return F.softplus(whole.float()).tolist()


class BadSteps(Callback):
    """Records the steps that the module's guard skipped; `limit` in a row end the
    run."""

    def __init__(
        self, run_folder: Path, limit: int, say: Callable[[str], None]
    ) -> None:
        self.run_folder = run_folder
        self.limit = limit
        self.say = say
        self.table = CsvTable(run_folder / BAD_STEPS, [*TABLE_COLUMNS[BAD_STEPS]])

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        skipped = pl_module.guard.skipped
        rows = self.table.open(trainer.global_step) if self.table.path.exists() else []
        if len(rows) < skipped:
            there = f"{len(rows):,} of the {skipped:,} steps that were skipped"
            self.say(
                f"{self.table.path} has rows of {there} up to step "
                f"{trainer.global_step:,}"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *ignored: Any
    ) -> None:
        """Records the step if it was skipped; NumbersFailed, on all ranks, after too
        many."""
        module: DualPathModule = pl_module
        step = trainer.global_step
        if module.bad_step is None:
            return
        # Over all ranks: they skip the same steps, and reach this line together.
        loss = float(trainer.strategy.reduce(module.bad_step.loss, reduce_op="mean"))
        kind: Cause = module.bad_step.kind if math.isfinite(loss) else "loss"
        if module.guard.skipped <= SAID:
            self.say(f"step {step} is skipped: {_CAUSES[kind]}")
        if trainer.is_global_zero:
            if not self.table.path.exists():
                self.table.open(0)
            row = {"step": step, "kind": kind, "loss": loss}
            self.table.append({**row, "grad_norm": module.grad_norm.item()})
        if (in_a_row := module.guard.in_a_row) >= self.limit:
            setting = (
                "raise optim.skip_sigma" if kind == "outlier" else "lower optim.lr"
            )
            why = (
                f"steps {step - in_a_row + 1} to {step} were skipped, the last because "
                f"{_CAUSES[kind]}; {self.table.path} lists them; check the data, "
                f"{setting} (under another --run.name) or raise run.max_bad_steps; "
                f"{way_on(self.run_folder)}"
            )
            # the first rank reports
            raise NumbersFailed(why if trainer.is_global_zero else "")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if skipped := pl_module.guard.skipped:
            self.say(
                f"{skipped:,} of {trainer.global_step:,} steps were skipped: see "
                f"{self.table.path}"
            )
