"""The tables of a run while it trains: metrics, validation and bad_steps.csv.

metrics.csv gets a row every `log_every` optimizer steps: loss and bits per byte over
the tokens since the last row, learning rate (of the schedule and of each kind of
parameters), gradient norm (before clipping), steps skipped since the last row
(`guard`), for each layer with experts the numbers of their load since the last row
(`balance`), tokens/s, model FLOP/s and, if the peak is known, MFU. Micro-batches whose
loss is not finite are not in the means. Training time includes compiling, saving and
read-outs, but not validation.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from rich.console import Console

from dualpath_cli.base.errors import NumbersFailed
from dualpath_cli.base.files import write_text
from dualpath_cli.flops.count import over_loops, training_flops_of
from dualpath_cli.recipe.schedule import learning_rate, rate_factor
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.report.console import Progress, counted
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.run_folder import way_on
from dualpath_cli.run.tables import (
    BAD_STEPS,
    KEYS,
    METRICS,
    TABLE_COLUMNS,
    VALIDATION,
    TableRow,
    is_validated,
    read_table,
)
from dualpath_cli.spec.config import Kind, ModelConfig
from dualpath_cli.training import internals
from dualpath_cli.training.balance import COLUMNS
from dualpath_cli.training.guard import SkipReason
from dualpath_cli.training.module import DualPathModule

CsvRow = dict[str, Any]
"""A row to write: values by column."""

REPORTED = 20  # skipped steps of a run that get a line each

_CAUSES: dict[SkipReason, str] = {
    "loss": "its loss is not finite",
    "gradient": "its gradient is not finite",
    "outlier": "its gradient norm is far above the mean",
}

PEAKS = {"H200": 989.4, "H100 PCIe": 756.0, "H100": 989.4, "A100": 312.0, "L4": 121.0}
"""Dense bfloat16 TFLOP/s of NVIDIA's data sheets, which print the sparse peak, twice
the dense."""


def peak_tflops(device: torch.device) -> float | None:
    """A device's dense bfloat16 peak in TFLOP/s.

    None if unknown, as for a slice of a GPU (MIG).
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if re.search("NVL|MIG", name):
        return None

    for chip, peak in PEAKS.items():
        if re.search(rf"{chip}\b", name):
            return peak
    return None


@dataclass
class CsvTable:
    """A CSV file of a run; a continued run drops the rows after its first step.

    A table is read when training begins and not again: a spreadsheet that saves the
    file during the night ends no run.
    """

    path: Path
    columns: list[str]
    _rows: list[CsvRow] | None = None  # all rows of the file, where these are known

    def open(self, continued_from: int) -> list[TableRow]:
        """Writes the header, and an existing file's rows up to `continued_from`.

        Returns these rows. Raises UserError for a table that another program has
        damaged.
        """
        before = read_table(self.path) if continued_from else []
        kept = [row for row in before if row.step <= continued_from]
        write_text(self.path, format_csv(kept, self.columns))
        self._rows = [*kept]
        return kept

    def append(self, *rows: CsvRow) -> None:
        self._rows = None
        text = format_csv(_shortened(rows), self.columns, header=False)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)

    def put(self, step: int, rows: Sequence[CsvRow]) -> None:
        """Writes all rows of a step or none, in place of those from this step on."""
        before = read_table(self.path) if self._rows is None else self._rows
        keys = KEYS[self.path.name]

        def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
            return tuple(str(row[key]) for key in keys)

        replaced = {key_of(row) for row in rows}
        kept = [
            row
            for row in before
            if int(row["step"]) <= step and key_of(row) not in replaced
        ]
        self._rows = [*kept, *_shortened(rows)]
        write_text(self.path, format_csv(self._rows, self.columns))


def _shortened(rows: Sequence[CsvRow]) -> list[CsvRow]:
    """The rows, with six digits of each float."""
    shortened = []
    for row in rows:
        values = {}
        for column, value in row.items():
            values[column] = f"{value:.6g}" if isinstance(value, float) else value
        shortened.append(values)
    return shortened


class MetricsLog(Callback):
    """Measures training for metrics.csv, validation.csv, loggers and progress."""

    def __init__(
        self, run_folder: Path, settings: RunSettings, begins_at: int, console: Console
    ) -> None:
        self.settings = settings
        self.progress = Progress(console, "training", counted("steps"))
        self.status = ""
        self.metrics = CsvTable(run_folder / METRICS, [*TABLE_COLUMNS[METRICS]])
        self.validation = CsvTable(
            run_folder / VALIDATION, [*TABLE_COLUMNS[VALIDATION]]
        )
        self.kinds: list[Kind] = []

        self.step = begins_at
        """The newest finished optimizer step."""
        self.logged_step: int | None = None
        """The step of the last row; None before a run begins."""
        self.seconds = 0.0
        """Time of training since the last row, up to the last pause."""
        self.since: float | None = None
        """When training began or went on; None in a pause."""
        self.total_seconds = 0.0
        """The time of training up to the last row; only the first rank counts."""
        self.validated: int | None = None
        """The step of the last validation, which the state of callbacks includes."""
        self.validation_due = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.step = trainer.global_step
        if self.logged_step is None:
            self.logged_step = self.step
        self.kinds = [
            group["name"]
            for optimizer in trainer.optimizers
            for group in optimizer.param_groups
        ]
        self._add_columns(pl_module.config)

        if trainer.is_global_zero:
            rows = self.metrics.open(self.step)
            if rows:
                self.total_seconds = rows[-1].number("seconds")
            self.validation.open(self.step)
            self.progress.begin(int(trainer.max_steps), done=self.step)
            self.progress.start()

        self.validation_due = self._lacks_validation(trainer, pl_module)
        if self.step == 0:
            self._log_validation(trainer, pl_module)
        self.since = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """The beginning of the next row, which a continued run completes."""
        return {
            "logged_step": self.logged_step,
            "seconds": self._elapsed(),
            "validated": self.validated,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.logged_step = state_dict["logged_step"]
        self.seconds = state_dict["seconds"]
        # not in checkpoints of earlier versions
        self.validated = state_dict.get("validated")

    def _add_columns(self, config: ModelConfig) -> None:
        """Adds the columns of this model, after the column `lr`."""
        rates = [f"lr_{kind}" for kind in self.kinds]
        loads = []
        for number, layer in enumerate(config.layers):
            if layer.n_experts:
                loads += [f"{name}_{number}" for name in COLUMNS]
        after_rate = self.metrics.columns.index("lr") + 1
        self.metrics.columns[after_rate:after_rate] = [*rates, *loads]

    def _lacks_validation(self, trainer: Trainer, module: DualPathModule) -> bool:
        """Whether this step's validation is still to be made, or made again."""
        every = self.settings.validate_every
        validates = bool(module.val_names) and every > 0
        due = validates and self.step > 0 and self.step % every == 0

        lacks = False
        if due:
            folder = self.validation.path.parent
            lacks = not is_validated(folder, self.step, module.val_names)
            # A step's checkpoint is older than its validation, which callbacks such as
            # EarlyStopping must see.
            lacks |= self.validated != self.step and _has_callbacks_of_others(trainer)
        return bool(trainer.strategy.broadcast(lacks))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Makes up for a validation, which Lightning counts as done."""
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
        """Writes the row of the steps since the last one."""
        # Reduced over ranks; reading the numbers waits for the device, before the clock
        # stops.
        sums = module.train_loss.compute()
        means = {key: value.item() for key, value in sums.items()}
        module.train_loss.reset()
        seconds = self._elapsed()
        self.seconds = 0.0
        self.since = time.perf_counter()

        row: CsvRow = {
            "step": self.step,
            "tokens": self.step * self.settings.batch_tokens,
            "loss": means["loss"],
            "bits_per_byte": means["bits_per_byte"],
            **self._rates(trainer, module),
            **module.expert_loads.report(),
            "grad_norm": module.grad_norm.item(),
            "skipped": module.guard.report(),
            **self._speed(trainer, module, seconds),
        }
        self.logged_step = self.step

        numbers = {name: value for name, value in row.items() if name != "step"}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, self.step)

        if trainer.is_global_zero:
            self.total_seconds += seconds
            self.metrics.append({**row, "seconds": self.total_seconds})
            self.status = _status(row)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        # A callback that ended the run sees what it saw then, and ends it again.
        self.validated = None
        if trainer.is_global_zero:
            self.progress.stop(last_line=True)

    def on_exception(self, trainer: Trainer, pl_module: Any, *error: Any) -> None:
        self.progress.stop()

    def _elapsed(self) -> float:
        """Time of training since the last row."""
        running = 0.0 if self.since is None else time.perf_counter() - self.since
        return self.seconds + running

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.seconds = self._elapsed()
        self.since = None  # a pause

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return  # a fresh run's step 0; the tables are opened when training starts
        self._log_validation(trainer, pl_module)
        self.validated = self.step
        self.since = time.perf_counter()

    def _log_validation(self, trainer: Trainer, module: DualPathModule) -> None:
        for name, result in module.val_results.items():
            numbers = {f"val/{name}/{key}": value for key, value in result.items()}
            for logger in trainer.loggers:
                logger.log_metrics(numbers, self.step)

        if trainer.is_global_zero:
            tokens = self.step * self.settings.batch_tokens
            rows = [
                {"step": self.step, "tokens": tokens, "set": name, **result}
                for name, result in module.val_results.items()
            ]
            self.validation.put(self.step, rows)

    def _rates(self, trainer: Trainer, module: DualPathModule) -> CsvRow:
        """The learning rate of the last step: the schedule's, and that of each kind."""
        settings = module.optim_settings
        rate = learning_rate(self.step - 1, trainer.max_steps, settings)
        row = {"lr": rate}
        for kind in self.kinds:
            factor = rate_factor(kind, settings, module.config.d_model)
            row[f"lr_{kind}"] = rate * factor
        return row

    def _speed(
        self, trainer: Trainer, module: DualPathModule, seconds: float
    ) -> CsvRow:
        """The speed of the steps since the last row, which took so many seconds."""
        assert self.logged_step is not None
        steps = range(self.logged_step, self.step)
        speed = len(steps) * self.settings.batch_tokens / seconds
        flops = speed * self._flops_per_token(module, steps)

        row = {"tokens_per_second": speed, "tflops_per_second": flops / 1e12}
        peak = self.settings.peak_tflops or peak_tflops(module.device)
        if peak is not None:
            row["mfu"] = flops / (peak * 1e12 * trainer.world_size)
        return row

    def _flops_per_token(self, module: DualPathModule, steps: range) -> float:
        """The mean over steps, whose loops may differ."""
        loops: Mapping[int, int] = {}
        if module.step_loops is not None:
            loops = Counter(module.step_loops.at(step) for step in steps)
        return over_loops(training_flops_of(self.settings), module.config, loops)


def _has_callbacks_of_others(trainer: Trainer) -> bool:
    callbacks: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    modules = (type(callback).__module__ for callback in callbacks)
    return not all(module.startswith("dualpath_cli.") for module in modules)


def _status(row: CsvRow) -> str:
    status = (
        f"loss {row['loss']:.3f}, {row['bits_per_byte']:.3f} bits/byte, "
        f"{row['tokens_per_second']:,.0f} tokens/s"
    )
    if "mfu" in row:
        status += f", MFU {row['mfu']:.1%}"
    return status


class BadSteps(Callback):
    """Records skipped steps; `limit` consecutive ones end the run."""

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
            self.say(
                f"{self.table.path} has rows of {len(rows):,} of the {skipped:,} steps "
                f"that were skipped up to step {trainer.global_step:,}"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, *ignored: Any
    ) -> None:
        """Records the step if it was skipped.

        Raises NumbersFailed, on all ranks, after too many.
        """
        module: DualPathModule = pl_module
        step = trainer.global_step
        if module.bad_step is None:
            return

        # Over all ranks: they skip the same steps, and reach this line together.
        loss = float(trainer.strategy.reduce(module.bad_step.loss, reduce_op="mean"))
        reason: SkipReason = module.bad_step.kind if math.isfinite(loss) else "loss"
        if module.guard.skipped <= REPORTED:
            self.say(f"step {step} is skipped: {_CAUSES[reason]}")

        if trainer.is_global_zero:
            if not self.table.path.exists():
                self.table.open(0)
            grad_norm = module.grad_norm.item()
            row = {"step": step, "kind": reason, "loss": loss, "grad_norm": grad_norm}
            self.table.append(row)

        in_a_row = module.guard.in_a_row
        if in_a_row < self.limit:
            return

        setting = "lower optim.lr"
        if reason == "outlier":
            setting = "raise optim.skip_sigma"
        why = (
            f"steps {step - in_a_row + 1} to {step} were skipped, the last because "
            f"{_CAUSES[reason]}; {self.table.path} lists them; check the data, "
            f"{setting} (under another --run.name) or raise run.max_bad_steps; "
            f"{way_on(self.run_folder)}"
        )
        # the first rank reports
        raise NumbersFailed(why if trainer.is_global_zero else "")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        skipped = pl_module.guard.skipped
        if skipped:
            self.say(
                f"{skipped:,} of {trainer.global_step:,} steps were skipped: see "
                f"{self.table.path}"
            )
