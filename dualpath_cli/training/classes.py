"""The Lightning classes that a trainer's section names: found, read by Lightning's
parser, checked.

A class of the user's own is found as a custom gate is: in the working directory or on
PYTHONPATH.
"""

from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.recipe.dialect import Loader
from dualpath_cli.recipe.internals import reading_by
from dualpath_cli.recipe.parser import A_CLASS, CLASSES, reason_of
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec.own_checks import find_class

_INSTEAD = {
    "GradientAccumulationScheduler": "run.batch_tokens and run.micro_batch",
    **dict.fromkeys(
        ("StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging"),
        "a falling rate, optim.schedule",
    ),
    "ModelCheckpoint": "run.save_every, run.keep and run.keep_every",
    "BatchSizeFinder": "run.micro_batch",
    "LearningRateFinder": "dualpath sweep --set optim.lr=A,B",
}
"""Lightning's callbacks that cannot work here, and their replacements."""


def trainer_parser() -> LightningArgumentParser:
    """The parser of the section `trainer`, with Trainer's own arguments and types."""
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_argument("--seed_everything", type=int)
    parser.add_lightning_class_args(Trainer, "trainer")
    return parser


def read_trainer(
    parser: LightningArgumentParser, settings: Settings, read: Sequence[Path] = ()
) -> Namespace:
    """Returns the parsed section, each class with its arguments; builds no class.

    Nothing inside the folders `read` is imported. Raises UserError for a class that is
    not found, or that does not take its arguments.
    """
    for key in CLASSES:
        for path in _class_paths(getattr(settings.trainer, key)):
            find_class(path, f"trainer.{key} '{path}'", read)

    base = {
        "trainer": asdict(settings.trainer),
        "seed_everything": settings.seed_everything,
    }
    try:
        with reading_by(Loader):
            return parser.parse_object(base, defaults=False)
    except ArgumentError as error:
        key = str(error).partition('"')[2].partition('"')[0]
        reason, _, own_names = reason_of(error).partition(" Subclass types expect")
        is_bare_name = reason.startswith("Expected a dot import path string")
        form = f"; {A_CLASS}" if own_names or is_bare_name else ""
        raise UserError(f"{key} cannot be built: {reason}{form}") from error


def _class_paths(value: Any) -> Iterator[str]:
    """The dotted class paths in a value, also in arguments; Lightning's own need no
    module."""
    if isinstance(value, dict):
        path = value.get("class_path")
        if isinstance(path, str) and "." in path:
            yield path
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _class_paths(part)


def instantiate(
    parser: LightningArgumentParser, parsed: Namespace, sets: Iterable[str]
) -> dict[str, Any]:
    """The section with its classes built: lists of callbacks, plugins and loggers.

    Raises UserError where a class cannot be built, or a callback cannot work; `sets`
    are the names of the validation sets.
    """
    try:
        section = dict(parser.instantiate(parsed).trainer)
    except Exception as error:  # a class named by the recipe may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"trainer: a class cannot be built ({reason})") from error

    for key in ("callbacks", "plugins", "logger"):
        built = section[key]
        if not isinstance(built, list):
            section[key] = [] if built is None else [built]
    _check_callbacks(section["callbacks"], sets)
    return section


def _check_callbacks(callbacks: Sequence[Any], sets: Iterable[str]) -> None:
    """Raises UserError for a callback that cannot work, or monitors an unknown
    metric."""
    known = [f"val/{name}/{key}" for name in sets for key in ("loss", "bits_per_byte")]
    modules = [type(callback).__module__ for callback in callbacks]
    all_of_lightning = all(module.startswith("lightning.") for module in modules)

    for callback in callbacks:
        name = type(callback).__name__
        if name in _INSTEAD:
            raise UserError(
                f"trainer.callbacks: {name} cannot work; use {_INSTEAD[name]}"
            )

        metric = getattr(callback, "monitor", None)
        is_needed = isinstance(metric, str) and getattr(callback, "strict", True)
        # Custom callbacks may log metrics.
        if is_needed and metric not in known and all_of_lightning:
            hint = did_you_mean(str(metric), known)
            if not hint:
                hint = f"; there are {', '.join(known) or 'none'}"
            raise UserError(
                f"trainer.callbacks: {name} monitors '{metric:.60}', which is not a "
                f"metric{hint}"
            )


def check_classes(settings: Settings) -> None:
    """Checks the classes of a training that other processes will run.

    Callbacks are built, as their arguments decide whether they can work. Loggers and
    profilers are only read: building one may begin a run at a service.
    """
    parser = trainer_parser()
    parsed = read_trainer(parser, settings)
    for key in CLASSES:
        if key != "callbacks":
            parsed.trainer[key] = None

    instantiate(parser, parsed, settings.data.val)
