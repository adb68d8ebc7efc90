"""How fast this machine trains: a few steps of one run of each family, or what was measured before.

Torch-free; `dualpath fit` is run on a recipe with few steps.
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console

from dualpath_cli import recipes
from dualpath_cli.errors import Stopped, UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.csv_text import format_csv, read_csv
from dualpath_cli.recipes import Recipe
from dualpath_cli.seeds import seed_from
from dualpath_cli.settings import settings_from
from dualpath_cli.sweep.plan import training_flops
from dualpath_cli.sweep.runner import asked_to_stop
from dualpath_cli.sweep.runs import Run
from dualpath_cli.sweep.worker import last_words, start

STEPS = 8
"""Of which the second half is timed: the first ones compile."""
POLL = 0.1
"""Seconds between two looks at the process."""
_NO_SPEED = {
    "optim": {"lr", "lr_start", "lr_end", "weight_decay", "decay_sum"},
    "run": {"recipe", "name", "budget", "keep"},
}


def speeds(runs: Sequence[Run], out: Path, jobs: int, console: Console) -> dict[str, float]:
    """FLOP/s of training by family, on this machine, of one run alone.

    Kept in OUT/speed.csv; the same steps on as many threads are not timed again on this machine,
    and a family whose runs are finished is not timed at all.

    Raises:
        UserError: where a run of a family cannot start.
        Stopped: after a signal.
    """
    left = {run.configuration.cell.family for run in runs if not run.is_finished}
    path, host = out / "speed.csv", os.uname().nodename
    rows: list[Mapping[str, object]] = [*read_csv(path)]
    known: dict[str, float] = {}
    for run in runs:
        family = run.configuration.cell.family
        if family in known:
            continue
        timed = f"{seed_from(yaml.safe_dump(_decisive(run)), jobs):016x}"
        for row in rows:
            if (row["host"], row["timed"]) == (host, timed):
                known[family] = float(str(row["flops_per_second"]))
        if family in known or family not in left:
            continue
        console.print(f"measuring how fast this machine trains: {family}", highlight=False)
        tokens = _tokens_per_second(run, jobs)
        known[family] = tokens * training_flops(run.settings)
        rows.append({"host": host, "family": family, "timed": timed, "tokens_per_second": tokens,
                     "flops_per_second": known[family]})  # fmt: skip
        write_text(path, format_csv(rows))
    return known


def _tokens_per_second(run: Run, jobs: int) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        recipe, path = _short(run, folder), Path(folder) / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        short = replace(
            run, recipe=recipe, settings=settings_from(recipe), path=path, log=Path(folder) / "log"
        )
        if code := _ended(short, jobs):
            raise UserError(f"a first try of {run.path} ended with {code}: {last_words(short)}")
        rows = read_csv(short.folder / "metrics.csv")
    return statistics.median(float(row["tokens_per_second"]) for row in rows[STEPS // 2 :])


def _ended(run: Run, jobs: int) -> int:
    """Trains it to its end, or ends all of its processes after a signal; returns its exit code."""
    with asked_to_stop() as signals:
        process = start(run, 0, jobs)
        while process.poll() is None:
            if signals:
                os.killpg(process.pid, signal.SIGKILL)  # nothing of it is kept
                process.wait()
                code = 130 if signals[0] == signal.SIGINT else 143
                raise Stopped("stopped; the same command continues", code, quiet=False)
            time.sleep(POLL)
    return process.returncode


def _decisive(run: Run) -> Recipe:
    """What decides how fast a run's steps are: neither its rates, nor its seed or name."""
    recipe = _short(run, "")
    recipe.pop("seed_everything")
    for section, keys in _NO_SPEED.items():
        recipe[section] = {k: v for k, v in recipe[section].items() if k not in keys}
    return recipe


def _short(run: Run, folder: str) -> Recipe:
    """The run's recipe with a few steps, each of one micro-batch where that is known."""
    settings = run.settings
    batch: int = settings.run.batch_tokens
    if settings.run.micro_batch != "auto" and str(settings.trainer.devices) == "1":
        batch = settings.run.micro_batch * settings.model.max_seq_len
    short = {
        "run": {
            "dir": folder, "max_tokens": STEPS * batch, "batch_tokens": batch, "log_every": 1,
            "save_every": STEPS, "validate_every": 0, "gates_every": 0, "branch_from": None,
            "tensorboard": False, "wandb": None,
        },
        "optim": {"warmup_steps": 1},
    }  # fmt: skip
    recipe = recipes.merge(run.recipe, short)
    recipe["data"] = recipe.get("data", {}) | {"val": {}}
    return recipe
