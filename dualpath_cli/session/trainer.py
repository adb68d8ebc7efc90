"""Lightning's Trainer for a launch: strategy, callbacks and loggers put together."""

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from rich.console import Console

from dualpath_cli.command.launch import Launch
from dualpath_cli.errors import UserError
from dualpath_cli.run.run_folder import newest_step, step_of
from dualpath_cli.training.logs.loggers import Bar, Lines, loggers
from dualpath_cli.training.logs.tables import BadSteps, MetricsLog, RoutingLog
from dualpath_cli.training.ranks import launch_by
from dualpath_cli.training.state.checkpoint import Checkpoints, DirectCheckpointIO
from dualpath_cli.training.stopping import Stopping
from dualpath_cli.training.strategies import STRATEGIES, FullyShardedStrategy, build_strategy


def build_trainer(launch: Launch, section: dict[str, Any], console: Console) -> Trainer:
    """Returns the trainer of a recipe's parsed `trainer` section, completed with what is ours."""
    model, run, folder = launch.settings.model, launch.settings.run, launch.run_folder
    fitting = launch.command.needs == "recipe"
    name = section["strategy"]
    devices = 1 if name == "single" else section["devices"]
    accelerator = section["accelerator"]
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.cuda.device_count() if accelerator in ("cuda", "gpu") else 1
    given = launch.settings.trainer.devices_of_a_node
    if name == "auto" and section["num_nodes"] * (there if given is None else given) > 1:
        name = "ddp"
    plugins = _as_list(section["plugins"])
    seconds = _seconds(section.pop("max_time"))
    if not launch.settings.trainer.is_sharded:  # else the strategy writes its shards itself
        plugins.append(DirectCheckpointIO())
    callbacks = _as_list(section["callbacks"])
    timeout = timedelta(minutes=run.rank_timeout)
    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    if fitting:
        progress = Bar() if console.is_terminal else Lines(console)
        callbacks += [
            progress,
            MetricsLog(folder, run, show=progress.show),
            BadSteps(folder, run.max_bad_steps, say),  # a step that ends the run is not saved
        ]
        if run.gates_every:
            callbacks.append(RoutingLog(folder, run.gates_every, model.most_loops))
        checkpoints = Checkpoints(folder, run)
        # After all that write rows.
        callbacks += [checkpoints, Stopping(checkpoints, timeout, seconds)]
    begun = launch.checkpoint if fitting else None  # an exported file has no step in its name
    begins_at = 0 if begun is None else step_of(begun) + 1
    ours = {
        "strategy": build_strategy(name, run) if isinstance(name, str) else name,
        "devices": devices,
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": loggers(launch.settings, folder, begins_at) if fitting else False,
        "default_root_dir": str(folder),  # for the traces of a profiler
        # Ours run in float64 sums, which Apple's MPS lacks: `auto` is a CUDA GPU or the CPU.
        "accelerator": accelerator,
        # FSDP2 must not gather its weights for the first time under inference mode.
        "inference_mode": False,
        "max_epochs": -1,  # the token budget ends the run
        "max_steps": run.max_tokens // run.batch_tokens if fitting else -1,
        "num_sanity_val_steps": -1,  # a fresh run begins with a validation, as its step 0
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_progress_bar": fitting and console.is_terminal,
        "enable_model_summary": False,
    }
    try:
        trainer = Trainer(**{**section, **ours})
    except MisconfigurationException as error:  # what the recipe asks for is not on this machine
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error
    if isinstance(trainer.strategy, FullyShardedStrategy):
        trainer.strategy.check_shards()
    launch_by(
        trainer, launch.command.name, timeout,
        lambda: f"; the same command continues from {newest_step(folder)}" if fitting else "",
    )  # fmt: skip
    if fitting and run.reduce_dtype and trainer.world_size > 1 and name not in STRATEGIES:
        raise UserError(
            f"run.reduce_dtype={run.reduce_dtype} would be left out by a strategy given as a "
            f"class; choose trainer.strategy {', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}"
        )
    return trainer


def _seconds(max_time: Any) -> float | None:
    """Returns `trainer.max_time` in seconds; Lightning's own timer would validate once more."""
    return None if max_time is None else Timer(max_time).time_remaining()


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
