"""LightningCLI behind every command that builds a model, and the Trainer that it gets."""

import gc
import logging
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from rich.console import Console

from dualpath_cli.cli.launch import CLASSES, Launch
from dualpath_cli.cli.words import add_words, upon
from dualpath_cli.errors import RunFailed, UserError, did_you_mean
from dualpath_cli.output import is_first_rank
from dualpath_cli.output.console import plain_console
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.recipe.parser import OneLine
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.schedule import step_loops
from dualpath_cli.recipe.settings import Settings, TrainerSettings
from dualpath_cli.run.run_folder import TOKENIZER, Run, step_of, way_on
from dualpath_cli.run.trained import keep_scores, label_of_average
from dualpath_cli.run.weights import verify
from dualpath_cli.text.storage import local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training import parallel
from dualpath_cli.training.checkpoint_folder import SafetensorsIO
from dualpath_cli.training.checkpoints import Checkpoints
from dualpath_cli.training.data.data_module import DualPathDataModule
from dualpath_cli.training.logs.loggers import Bar, Lines, loggers
from dualpath_cli.training.logs.tables import BadSteps, MetricsLog, RoutingLog
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.ranks import launch_by
from dualpath_cli.training.stopping import Stopping


class OutOfMemory(RunFailed):
    """A GPU has no room; `half` is the micro-batch with which training can begin again at once."""

    half: int | None = None


@dataclass(frozen=True)
class Session:
    """All that a task gets (`Command.task`)."""

    launch: Launch
    trainer: Trainer
    module: DualPathModule
    datamodule: DualPathDataModule
    console: Console  # quiet on all ranks but the first

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def show_validation(self) -> None:
        """Prints the losses of the last validation, if there was one."""
        if not self.module.val_results:
            return
        numbers = (Column("loss (nats/token)", ""), Column("bits per byte", ""))
        results, keys = self.module.val_results.items(), ("loss", "bits_per_byte")
        rows = [(name, *(f"{result[key]:.4f}" for key in keys)) for name, result in results]
        show(self.console, Table([Column("validation set"), *numbers], rows))


_INSTEAD = {
    "GradientAccumulationScheduler": "run.batch_tokens and run.micro_batch",
    "StochasticWeightAveraging": "dualpath validate (or export) --average N",
    "ModelCheckpoint": "run.save_every, run.keep and run.keep_every",
    "BatchSizeFinder": "run.micro_batch",
    "LearningRateFinder": "dualpath sweep --set optim.lr=A,B",
}
"""Lightning's callbacks that cannot work here, and what there is for their purpose."""


class Parser(OneLine, LightningArgumentParser):
    """LightningCLI's parser with errors of one line."""


class DualPathCLI(LightningCLI):
    """Runs one command, whose words are checked and have become a launch.

    Lightning's parser then reads the same words upon the same recipe, with the classes of its own
    Trainer (callbacks, loggers, plugins, a profiler, a strategy), which it builds.
    """

    def __init__(self, launch: Launch) -> None:
        assert launch.line is not None
        self.launch, self.line = launch, launch.line
        # The run folder holds the recipe; Lightning's subcommands are methods of a trainer.
        super().__init__(
            DualPathModule,
            save_config_callback=None,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            seed_everything_default=launch.settings.seed_everything,
            run=False,
        )

    def setup_parser(self, *args: Any, **kwargs: Any) -> None:
        self.parser = Parser(prog=f"dualpath {self.line.command.name}")
        add_words(self.parser, self.line.command)
        self.parser.add_class_arguments(Settings, fail_untyped=False, skip={"trainer"})
        self.parser.add_lightning_class_args(Trainer, "trainer")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the command's words; those of the process itself, and a --config, are done with.

        Lightning would take hyperparameters from the file that a command's own --ckpt-path names.
        """
        defaults = {"trainer": asdict(TrainerSettings())}  # a recipe's, not those of Lightning
        base = merge(defaults, self.launch.base)
        self.config = upon(parser, base, self.line.words, defaults=True)

    def instantiate_classes(self) -> None:
        """Builds trainer, module and data module from the launch's settings."""
        settings, trainer = self.launch.settings, self.config.trainer.as_dict()
        given = {key: trainer[key] for key in (*CLASSES, "strategy")}
        settings = replace(settings, trainer=replace(settings.trainer, **given))
        try:
            built = self.parser.instantiate(self.config).trainer
        except Exception as error:  # a class that the recipe names may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"trainer: a class cannot be built ({reason})") from error
        _check_callbacks(_as_list(built.callbacks), settings.data.val)
        self.session = build_session(replace(self.launch, settings=settings), dict(built))

    def after_instantiate_classes(self) -> None:
        assert self.line.command.task is not None
        resolve_name(self.line.command.task)(self.session)


def build_session(launch: Launch, trainer_section: dict[str, Any]) -> Session:
    """Builds what a launch needs; `trainer_section` holds the trainer's classes as objects."""
    settings, seed = launch.settings, launch.settings.seed_everything
    fitting = launch.command.needs == "recipe"
    console = plain_console(goes_on=fitting)
    if fitting and launch.checkpoint is not None and is_first_rank():  # the others wait
        # `load_weights` verifies what it loads itself.
        way_out = "; copy it again, or remove it: the branch then begins at an earlier checkpoint"
        verify(launch.checkpoint, way_out=way_out if launch.trunk else None)
    try:
        trainer = build_trainer(launch, trainer_section, console)
    except (TypeError, ValueError, ImportError, RuntimeError, OverflowError,
            MisconfigurationException) as error:  # fmt: skip
        # The section's settings do not fit each other, or this machine.
        raise UserError(f"trainer: {error}; change the recipe's trainer section") from error
    console.quiet = not trainer.is_global_zero
    device = trainer.strategy.root_device
    compiled = settings.run.compile and fitting and parallel.can_compile(device)
    checkpointing = parallel.chosen(settings.run.activation_checkpointing, compiled)
    source = settings.data.path if fitting else launch.run_folder
    tokenizer = Tokenizer.load(local_copy(f"{source}/{TOKENIZER}"))
    token_bytes = tokenizer.token_bytes()
    start = launch.weights if fitting else launch.checkpoint
    weights = launch.averaged.average if launch.averaged else [start] if start else []
    drawn = start is None and launch.checkpoint is None  # else they are loaded
    module: DualPathModule = resolve_name(launch.command.module)(
        settings.model,
        settings.optim,
        [*token_bytes, *[0] * (settings.model.vocab_size - len(token_bytes))],
        list(settings.data.val),
        seed=seed if drawn else None,
        compile_blocks=compiled,
        checkpointing=checkpointing,
        reduce_dtype=parallel.reduce_dtype(settings.run),
        weights=weights,
        step_loops=step_loops(settings.run, seed) if fitting else None,
    )
    datamodule = DualPathDataModule(
        settings.data,
        tokenizer,
        seq_len=settings.model.max_seq_len,
        micro_batch=settings.run.micro_batch,
        seed=seed,
        data_since=launch.data_since,
    )
    return Session(launch, trainer, module, datamodule, console)


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
    max_time = section.pop("max_time")  # Lightning's own timer would validate once more
    seconds = None if max_time is None else Timer(max_time).time_remaining()
    if name not in ("fsdp", "hsdp"):  # whose strategy writes by all ranks
        plugins.append(SafetensorsIO())
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
    own = [logger for logger in _as_list(section["logger"]) if not isinstance(logger, bool)]
    continued = launch.checkpoint if fitting else None  # others read files of other names, too
    begins_at = 0 if continued is None else step_of(continued) + 1
    ours = {
        "strategy": parallel.build_strategy(name, run) if isinstance(name, str) else name,
        "devices": devices,
        "plugins": plugins,
        "callbacks": callbacks,
        "logger": [*loggers(launch.settings, folder, begins_at), *own] if fitting else False,
        "default_root_dir": str(folder),  # for the traces of a profiler
        # Ours run in float64 sums, which Apple's MPS lacks: `auto` is a CUDA GPU or the CPU.
        "accelerator": accelerator,
        # FSDP2 must not gather its weights for the first time under inference mode.
        "inference_mode": False,
        "max_epochs": -1,  # the token budget ends the run
        "max_steps": run.steps if fitting else -1,
        "num_sanity_val_steps": -1,  # a fresh run begins with a validation, as its step 0
        "log_every_n_steps": run.log_every,  # of callbacks such as LearningRateMonitor
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_progress_bar": fitting and console.is_terminal,
        "enable_model_summary": False,
    }
    trainer = Trainer(**{**section, **ours})
    if fitting and run.reduce_dtype and trainer.world_size > 1 and name not in parallel.STRATEGIES:
        raise UserError("run.reduce_dtype has no effect on a class; choose trainer.strategy=ddp")
    if isinstance(trainer.strategy, parallel.FullyShardedStrategy):
        trainer.strategy.check_shards()
    elif not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        kind = type(trainer.strategy).__name__  # checkpoints need parameters by their names
        raise UserError(f"trainer.strategy {kind}: choose single, ddp, fsdp or hsdp in its place")
    launch_by(
        trainer, launch.command.name, timeout,
        lambda: f"; {way_on(folder)}" if fitting else "",
    )  # fmt: skip
    return trainer


def _check_callbacks(callbacks: Sequence[Any], sets: Iterable[str]) -> None:
    """Raises UserError for one that cannot work, or waits for a metric that no validation gives."""
    known = [f"val/{name}/{key}" for name in sets for key in ("loss", "bits_per_byte")]
    all_theirs = all(type(one).__module__.startswith("lightning.") for one in callbacks)
    for callback in callbacks:
        name, metric = type(callback).__name__, getattr(callback, "monitor", None)
        if name in _INSTEAD:
            raise UserError(f"trainer.callbacks: {name} cannot work; use {_INSTEAD[name]}")
        needed = isinstance(metric, str) and getattr(callback, "strict", True)
        if needed and metric not in known and all_theirs:  # others may log metrics
            hint = did_you_mean(str(metric), known) or f"; there are {', '.join(known) or 'none'}"
            raise UserError(f"trainer.callbacks: {name} monitors '{metric:.60}', no metric{hint}")


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def validate(session: Session) -> None:
    """Scores the checkpoint on every validation set; UserError if the run names none."""
    if not session.launch.settings.data.val:
        raise UserError("the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER")
    session.trainer.validate(session.module, datamodule=session.datamodule, verbose=False)
    session.show_validation()
    launch, data = session.launch, session.launch.settings.as_recipe()["data"]
    assert launch.checkpoint is not None
    assert launch.step is not None
    run = launch.averaged or Run(launch.run_folder, launch.checkpoint, launch.step)
    if label := label_of_average(run):
        session.say(label)
    results, first = session.module.val_results, session.trainer.is_global_zero
    if run.average and first and (kept := keep_scores(run, data, results)):
        session.say(f"kept: {kept}")


def run(launch: Launch) -> int:
    """Runs a checked launch through LightningCLI; returns the exit code.

    Training that is too large for the GPU begins again with half the micro-batch, once.
    """
    _quiet()
    settings = launch.settings
    try:
        DualPathCLI(launch)
        return 0
    except OutOfMemory as failure:
        half = failure.half
        if half is None:
            raise
    # Nothing refers any longer to what was allocated.
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    print(
        f"memory  run.micro_batch={settings.run.micro_batch} does not fit into the GPU; "
        f"beginning again with {half}, accumulated over more micro-batches to the same batch"
    )
    halved = replace(settings, run=replace(settings.run, micro_batch=half))
    DualPathCLI(replace(launch, settings=halved))
    return 0


def _quiet() -> None:
    """Silences what Lightning tells every user in every run."""
    # TensorBoard's thread hands the disk's failures to the next write of the main one, which says
    # them in one line.
    threading.excepthook = lambda failure: (
        None if isinstance(failure.exc_value, OSError) else threading.__excepthook__(failure)
    )
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("profilers", "callbacks", "utilities.model_summary"):  # which were asked for
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    # A compiler of CUDA without a GPU, which torch looks for as it compiles for the CPU.
    logging.getLogger("torch.utils.cpp_extension").addFilter(
        lambda record: not record.getMessage().startswith("No CUDA runtime is found")
    )
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    for message in (
        ".*srun. command is available.*",
        ".*tensorboardX.*",
        ".*`broadcast_buffers` is deprecated.*",  # ours are equal on all ranks
        ".*isinstance.treespec, LeafSpec.*",
        ".*TensorFloat32 tensor cores.*",  # float32 is meant to be float32
        ".*across ranks is zero.*",  # an ablation all of whose passes are there already
    ):
        warnings.filterwarnings("ignore", message=message)
