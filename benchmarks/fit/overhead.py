"""The cost of `dualpath fit` beside the training step: against a bare loop over the same step.

python -m benchmarks.fit.overhead --data data/sample

`fit` runs as its users run it, with everything that it logs. A callback stops it every `--steps`
steps and lets a bare loop make as many: the same model, optimizer, schedule and clipping, on the
batches that `fit` has just had, in memory. So both are timed by turns in one process, and a slower
minute of the machine slows down both. Saving checkpoints and validating are no part of either.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.results import show, spread, write
from dualpath_cli.cli import main as dualpath
from dualpath_cli.model import AuxiliaryLoss
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.parallel import build_model

MODELS = {
    # A step of next to nothing: what `fit` adds to it, in milliseconds, it adds to any step.
    "least": [
        *("--model.block", "wide", "--model.n_layers", "1", "--model.d_model", "16"),
        *("--model.d_ffn_wide", "64", "--model.max_seq_len", "16", "--run.budget", "null"),
        *("--run.micro_batch", "1", "--run.batch_tokens", "16"),
    ],
    # The quickstart's 1.6M parameters: its own recipe.
    "quickstart": [],
}
"""Words that make the quickstart's recipe another model."""


class Beside(Callback):
    """Times `fit` and a bare loop by turns, `steps` optimizer steps each, `rounds` times."""

    def __init__(self, steps: int, rounds: int, out: str) -> None:
        self.steps, self.rounds, self.out = steps, rounds, out
        self.step = 0
        self.times: dict[str, list[list[float]]] = {"fit": [], "bare": []}
        self.batches: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Builds the bare loop, and lets it make the steps that allocate."""
        assert isinstance(pl_module, DualPathModule)
        config, optim = pl_module.config, pl_module.optim
        model = build_model(config, 0, pl_module.compile_blocks, pl_module.checkpointing)
        optimizer = build_optimizer(model.named_parameters(), optim, int(trainer.max_steps))
        scheduler = build_scheduler(optimizer, int(trainer.max_steps), optim)
        accumulate = int(trainer.accumulate_grad_batches)
        precision = trainer.precision_plugin

        def step(micro_batches: Sequence[Any]) -> None:
            for tokens, targets in micro_batches:
                with precision.forward_context():
                    auxiliary = AuxiliaryLoss()
                    loss = model(tokens, targets, auxiliary=auxiliary).mean() + auxiliary.total
                (loss / accumulate).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
            norm.item()  # bad steps are left out: that they are looked for is part of the step
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)

        self.bare, self.accumulate = step, accumulate

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends a turn of `fit` and makes one of the bare loop.

        It is the first callback: what the others do after a step counts for the next turn, which
        begins with it.
        """
        self.batches.append(batch)
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        if self.step % self.steps:
            return
        if self.step > self.steps:  # the first turn warms up
            self.times["fit"].append(since(self.began))
        batches, self.batches, began = self.batches, [], now()
        for first in range(0, len(batches), self.accumulate):
            self.bare(batches[first : first + self.accumulate])
        if self.step > self.steps:
            self.times["bare"].append(since(began))
        if len(self.times["bare"]) == self.rounds:
            Path(self.out).write_text(json.dumps(self.times))
            trainer.should_stop = True
            trainer.limit_val_batches = 0
        self.began = now()


def now() -> list[float]:
    """CPU seconds of this process, and seconds by the clock."""
    return [time.process_time(), time.perf_counter()]


def since(began: list[float]) -> list[float]:
    """How many of both have passed."""
    return [end - begin for end, begin in zip(now(), began, strict=True)]


def measure(model: str, given: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """Returns each round's seconds of `fit` and of the bare loop: CPU, and by the clock."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "times.json"))
        arguments = {"steps": given.steps, "rounds": given.rounds, "out": out}
        callback = {"class_path": "benchmarks.fit.overhead.Beside", "init_args": arguments}
        code = dualpath([
            *("fit", "--config", "quickstart", *MODELS[model], "--run.dir", folder),
            *("--data.path", given.data, "--data.val", "{}", "--run.max_tokens", "1B"),
            *("--run.save_every", "1000000", "--data.max_epochs", "1000"),
            *("--trainer.callbacks", json.dumps([callback]), *words),
        ])  # fmt: skip
        if code:
            raise SystemExit(code)
        times: dict[str, Any] = json.loads(Path(out).read_text())
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="data/sample", help="Data folder of the quickstart.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=10, help="Of each turn: with all logs.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="File for the results.")
    options, words = parser.parse_known_args(arguments)
    measured = {model: measure(model, options, words) for model in options.models}
    rows = []
    for model, times in measured.items():
        pairs = list(zip(times["fit"], times["bare"], strict=True))
        for number, kind in enumerate(("CPU", "clock")):
            seconds = [bare[number] / options.steps for _, bare in pairs]
            more = [1e3 * (fit[number] - bare[number]) / options.steps for fit, bare in pairs]
            speed = [bare[number] / fit[number] for fit, bare in pairs]
            rows.append([model, kind, spread(seconds, 3), spread(more, 1), spread(speed, 3)])
    show(["model", "seconds", "a bare step", "fit adds, ms a step", "fit / bare, speed"], rows)
    write(options.json, {"steps": options.steps, "models": measured})


if __name__ == "__main__":
    main()
