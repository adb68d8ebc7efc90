"""Trainer, loggers, module and data module of a training or a study, built from its
settings."""

import importlib.util
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from rich.console import Console

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_text, write_text
from dualpath_cli.base.output import joined_lines
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.recipe.schedule import step_loops
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.console import plain_console, print_line
from dualpath_cli.report.table import Column, Table, show
from dualpath_cli.run.checkpoint_folder import SafetensorsIO
from dualpath_cli.run.run_folder import way_on
from dualpath_cli.run.weights import verify
from dualpath_cli.training import parallel
from dualpath_cli.training.checkpoints import Checkpoints
from dualpath_cli.training.data_module import DualPathDataModule
from dualpath_cli.training.faint_gradients import FaintGradients
from dualpath_cli.training.launch import RunLaunch, TrainingLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.ranks import launch_by
from dualpath_cli.training.routing_log import RoutingLog
from dualpath_cli.training.stopping import Stopping
from dualpath_cli.training.tables import BadSteps, MetricsLog

WANDB_ID = "wandb_id"
"""File of the run folder with the id of its W&B run, which stays if the folder is
renamed."""

L = TypeVar("L", bound=TrainingLaunch | RunLaunch)

_UNFIT = (
    TypeError,
    ValueError,
    ImportError,
    RuntimeError,
    OverflowError,
    MisconfigurationException,
)
"""Lightning's errors for settings that do not fit each other, or this machine."""


@dataclass(frozen=True)
class Session(Generic[L]):
    """The argument of a task: launch, trainer, module and data."""

    launch: L
    trainer: Trainer
    module: DualPathModule
    datamodule: DualPathDataModule
    console: Console  # quiet on all ranks but the first

    def say(self, text: str) -> None:
        print_line(self.console, text)

    def show_validation(self) -> None:
        """Prints the losses of the last validation, if there was one."""
        results = self.module.val_results
        if not results:
            return

        columns = [
            Column("validation set"),
            Column("loss (nats/token)", ""),
            Column("bits per byte", ""),
        ]
        rows = [
            (name, f"{result['loss']:.4f}", f"{result['bits_per_byte']:.4f}")
            for name, result in results.items()
        ]
        show(self.console, Table(columns, rows))


def build_session(
    launch: L,
    section: dict[str, Any],
    module_class: Callable[..., DualPathModule],
    name: str,
) -> Session[L]:
    """Builds a launch's session; `section` is the trainer's section, with classes as
    objects.

    `name` is the command's name, by which further ranks are started.
    """
    settings = launch.settings
    seed = settings.seed_everything
    training = launch if isinstance(launch, TrainingLaunch) else None
    console = plain_console(goes_on=True)

    # `load_weights` verifies the weights that it loads; a checkpoint is verified here.
    if training and training.checkpoint is not None and is_first_rank():
        way_out = (
            "; copy it again, or remove it: the branch then begins at an earlier "
            "checkpoint"
        )
        verify(training.checkpoint, way_out=way_out if training.trunk else None)

    try:
        trainer = build_trainer(launch, section, console, name)
    except _UNFIT as error:
        raise UserError(
            f"trainer: {error}; change the recipe's trainer section"
        ) from error
    console.quiet = not trainer.is_global_zero

    compiled = settings.run.compile and training is not None
    device = trainer.strategy.root_device
    if compiled and (reason := parallel.why_not_compiled(device)):
        compiled = False
        text = "dualpath: running eagerly: torch.compile does not work here"
        print_line(console, f"{text} ({reason:.120})")

    tokenizer = launch.tokenizer
    module = _build_module(launch, module_class, tokenizer.token_bytes(), compiled)
    datamodule = DualPathDataModule(
        settings.data,
        tokenizer,
        seq_len=settings.model.max_seq_len,
        micro_batch=settings.run.micro_batch,
        step_sequences=settings.run.batch_tokens // settings.model.max_seq_len,
        seed=seed,
        data_since=training.data_since if training else 0,
        checkpoint=training.checkpoint if training else None,
    )
    return Session(launch, trainer, module, datamodule, console)


def _build_module(
    launch: TrainingLaunch | RunLaunch,
    module_class: Callable[..., DualPathModule],
    token_bytes: list[int],
    compiled: bool,
) -> DualPathModule:
    """The module of a launch, whose weights are drawn or loaded."""
    settings = launch.settings
    seed = settings.seed_everything
    loops = None
    if isinstance(launch, TrainingLaunch):
        loops = step_loops(settings.run, seed)
        weights = launch.weights
        is_random = weights is None and launch.checkpoint is None
    else:
        weights = launch.run.checkpoint
        is_random = False

    unused_rows = settings.model.vocab_size - len(token_bytes)
    return module_class(
        settings.model,
        settings.optim,
        settings.run,
        [*token_bytes, *[0] * unused_rows],
        list(settings.data.val),
        seed=seed if is_random else None,
        compile_blocks=compiled,
        weights=weights,
        step_loops=loops,
    )


def build_trainer(
    launch: TrainingLaunch | RunLaunch,
    section: dict[str, Any],
    console: Console,
    command: str,
) -> Trainer:
    """Returns the trainer of a recipe's parsed `trainer` section, with this package's
    callbacks."""
    run = launch.settings.run
    folder = launch.folder
    timeout = timedelta(minutes=run.rank_timeout)
    accelerator = section["accelerator"]
    if accelerator == "auto":  # not Apple's MPS, which lacks the float64 of metrics
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    strategy = _strategy_name(launch.settings, section, accelerator)

    plugins = list(section["plugins"])
    if strategy not in ("fsdp", "hsdp"):  # under these all ranks write
        plugins.append(SafetensorsIO())

    max_time = section.pop("max_time")  # Lightning's timer would validate once more
    callbacks = list(section["callbacks"])
    logger: list[Any] | bool = False
    steps = -1
    if isinstance(launch, TrainingLaunch):
        callbacks += _callbacks_of_training(launch, console, timeout, max_time)
        begins_at = 0 if launch.step is None else launch.step + 1
        logger = loggers(launch.settings, folder, begins_at) + section["logger"]
        steps = run.steps

    ours = {
        "strategy": parallel.build_strategy(strategy, run),
        "devices": 1 if strategy == "single" else section["devices"],
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": logger,
        "default_root_dir": str(folder),  # for the traces of a profiler
        "accelerator": accelerator,
        # FSDP2 must not gather its weights for the first time under inference mode.
        "inference_mode": False,
        "max_epochs": -1,  # the token budget ends the run
        "max_steps": steps,
        # a fresh run begins with a validation, as its step 0
        "num_sanity_val_steps": -1,
        "log_every_n_steps": run.log_every,  # of callbacks such as LearningRateMonitor
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(**{**section, **ours})

    if isinstance(trainer.strategy, parallel.FullyShardedStrategy):
        trainer.strategy.check_shards()
    is_training = isinstance(launch, TrainingLaunch)
    launch_by(
        trainer, command, timeout, lambda: f"; {way_on(folder)}" if is_training else ""
    )
    return trainer


def _strategy_name(
    settings: Settings, section: dict[str, Any], accelerator: str
) -> str:
    """The strategy of the section; for auto, ddp on several devices."""
    name: str = section["strategy"]
    if name != "auto":
        return name

    devices = settings.trainer.devices_of_a_node
    if devices is None:  # all
        on_gpu = accelerator in ("cuda", "gpu")
        devices = torch.cuda.device_count() if on_gpu else 1
    return "ddp" if section["num_nodes"] * devices > 1 else name


def _callbacks_of_training(
    launch: TrainingLaunch, console: Console, timeout: timedelta, max_time: Any
) -> list[Callback]:
    """What happens at the end of each optimizer step, in this order: before it the
    user's own callbacks, after it a validation that is due."""
    run = launch.settings.run
    folder = launch.folder
    say = partial(print_line, console)
    seconds = None if max_time is None else Timer(max_time).time_remaining()
    checkpoints = Checkpoints(folder, run)

    return [
        MetricsLog(folder, run, launch.step or 0, console),
        BadSteps(folder, run.max_bad_steps, say),  # a step that ends the run is unsaved
        FaintGradients(say),
        RoutingLog(folder, run.gates_every, launch.settings.model),
        checkpoints,  # all rows of the step are written
        Stopping(checkpoints, timeout, seconds),  # saves, where the step is not saved
    ]


def loggers(settings: Settings, folder: Path, begins_at: int) -> list[Logger]:
    """TensorBoard if installed, W&B if a project is named.

    TensorBoard hides rows that an interrupted start wrote from step `begins_at` on.
    """
    run = settings.run
    is_installed = importlib.util.find_spec

    built: list[Logger] = []
    if run.tensorboard and is_installed("tensorboard"):
        board = TensorBoardLogger(
            folder, name="", version="tensorboard", purge_step=begins_at
        )
        built.append(board)
    if run.wandb:
        if not is_installed("wandb"):
            raise UserError(
                "run.wandb needs wandb: in the clone, pip install '.[wandb]'"
            )
        kept_id = folder / WANDB_ID
        id_ = read_text(kept_id).strip() if kept_id.exists() else secrets.token_hex(8)
        wandb = WandbLogger(
            f"{run.recipe}/{run.name}",
            folder,
            project=run.wandb,
            id=id_,
            config=settings.as_recipe(),
            settings={"finish_timeout": 60.0},  # seconds to send rows at the run's end
        )
        built.append(wandb)
    return built


def begin_wandb(trainer: Trainer, folder: Path) -> None:
    """On the first rank, starts or continues the W&B run; its id is kept in the run
    folder."""
    for logger in trainer.loggers:
        if not isinstance(logger, WandbLogger):
            continue
        try:
            id_ = logger.experiment.id
        except Exception as error:  # no network, no key, no such project
            reason = joined_lines(error, 160)
            raise UserError(
                f"run.wandb={logger.name}: {type(error).__name__}: {reason}; with "
                "WANDB_MODE=offline rows go to the run folder, and `wandb sync` sends "
                "them"
            ) from error
        write_text(folder / WANDB_ID, f"{id_}\n")


def validate(session: Session[RunLaunch]) -> None:
    """Scores the checkpoint on every validation set."""
    session.trainer.validate(
        session.module, datamodule=session.datamodule, verbose=False
    )
    session.show_validation()
