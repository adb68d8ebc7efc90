"""LightningCLI for every command that builds a model: builds the Trainer's classes."""

import gc
import logging
import threading
import warnings
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from dualpath_cli.cli.commands import Command
from dualpath_cli.recipe.parser import CLASSES
from dualpath_cli.report.console import plain_console, print_line
from dualpath_cli.training import classes
from dualpath_cli.training.endings import OutOfMemory
from dualpath_cli.training.launch import RunLaunch, TrainingLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import build_session


class DualPathCLI(LightningCLI):
    """Builds the session of a checked launch.

    The parser has only Trainer's arguments, and reads the recipe's section.
    """

    def __init__(self, command: Command, launch: TrainingLaunch | RunLaunch) -> None:
        self.command = command
        self.launch = launch
        # The run folder holds the recipe; Lightning's subcommands are methods of
        # Trainer.
        super().__init__(
            DualPathModule,
            args=[],
            save_config_callback=None,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            run=False,
        )

    def setup_parser(self, *args: Any, **kwargs: Any) -> None:
        self.parser = classes.trainer_parser()

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        has_run = isinstance(self.launch, RunLaunch)
        read = [self.launch.folder] if has_run else []
        self.config = classes.read_trainer(parser, self.launch.settings, read)

    def instantiate_classes(self) -> None:
        """Builds trainer, module and data module from the launch's settings."""
        settings = self.launch.settings
        section = self.config.trainer.as_dict()
        named = {key: section[key] for key in CLASSES}
        settings = replace(settings, trainer=replace(settings.trainer, **named))

        built = classes.instantiate(self.parser, self.config, settings.data.val)
        launch = replace(self.launch, settings=settings)
        module = resolve_name(self.command.module)
        self.session = build_session(launch, built, module, self.command.name)


def run_task(command: Command, launch: TrainingLaunch | RunLaunch) -> None:
    """Runs a command's task on the session that LightningCLI builds.

    A training too large for the GPU begins again once, with half the micro-batch.
    """
    _quiet()
    assert command.task is not None
    task = resolve_name(command.task)
    settings = launch.settings
    try:
        task(DualPathCLI(command, launch).session)
        return
    except OutOfMemory as failure:
        half = failure.half
        if half is None:
            raise

    # No reference to the failed training's memory is left.
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    print_line(
        plain_console(goes_on=True),
        f"memory  run.micro_batch={settings.run.micro_batch} does not fit into the "
        f"GPU; restarting with {half}, and more micro-batches for the same batch",
    )
    halved = replace(settings, run=replace(settings.run, micro_batch=half))
    task(DualPathCLI(command, replace(launch, settings=halved)).session)


_NEEDLESS_WARNINGS = (
    ".*`broadcast_buffers` is deprecated.*",  # buffers are equal on all ranks
    ".*isinstance.treespec, LeafSpec.*",
    ".*TensorFloat32 tensor cores.*",  # float32 is meant to be float32
    ".*across ranks is zero.*",  # an ablation with all passes finished
)


def _quiet() -> None:
    """Silences messages that Lightning prints in every run."""
    threading.excepthook = _report_unless_of_disk

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # these were requested
    for name in ("profilers", "callbacks", "utilities.model_summary"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    # Compiling for the CPU, torch looks for CUDA, and warns if there is none.
    logging.getLogger("torch.utils.cpp_extension").addFilter(
        lambda record: not record.getMessage().startswith("No CUDA runtime is found")
    )

    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    for message in _NEEDLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def _report_unless_of_disk(failure: threading.ExceptHookArgs) -> None:
    """Prints a thread's failure, except for those of a disk.

    TensorBoard's thread passes these to the main thread's next write, which reports
    them in one line.
    """
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
