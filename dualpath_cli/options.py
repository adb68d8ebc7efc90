"""Options that commands share, and checks of values; imports nothing slow."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.machine import visible_gpus
from dualpath_cli.ranges import Range, check_path, check_ranges
from dualpath_cli.sizes import parse_size


@dataclass(frozen=True)
class OwnClasses:
    """Option of a command whose model, and so its classes, is named by what it reads."""

    own_classes: bool = False
    """Import the Python class that a run or folder names as its model's gate or combination. This
    runs the class's code: for runs that you trust."""


@dataclass(frozen=True)
class Average:
    """Option of a command that takes the mean of checkpoints."""

    average: int = 1
    """Take the mean of the weights of the last N checkpoints, up to RUN's own, in place of the last
    one's; run.keep decides how many there are."""

    def __post_init__(self) -> None:
        check_ranges(self, {"average": (1, 10_000)})


@dataclass(frozen=True)
class Validate(Average, OwnClasses):
    """Scores a run's model on its validation sets, and on those that --data.val.NAME adds to them;
    --data.val '{NAME: PATH}' takes the place of all.

    Each window of a text starts after an end-of-text token; evaluate's rolling_bpb starts after the
    preceding token and is mostly lower.
    """


@dataclass(frozen=True)
class Overrides:
    """Options of a command that forces a model's loops or gates: see `overrides`."""

    loops: int | None = None
    """Forced loops of every deep path."""
    intervention: tuple[str, ...] = ()
    """Other overrides, as results name them: gates=1,0, shuffled, shuffled:7, experts=1,
    experts=random:7, halting=0.1, skip=0.1, kv_slots=1, layers=0,2; K=3 is --loops 3."""

    def __post_init__(self) -> None:
        ranges: dict[str, Range] = {"loops": (1, 1000), "kv_slots": (1, 1000)}
        ranges |= {"skip_below": (0, 1), "exit_below": (0, 1)}
        check_ranges(self, {name: ranges[name] for name in ranges if hasattr(self, name)})


@dataclass(frozen=True)
class Where:
    """Options of a command that runs a model by itself."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products: float32 or bfloat16."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        check_device(self.device)


def whole_number(option: str, text: str, least: int, most: int) -> int:
    """Reads a number such as 16 or 2K. Raises UserError where it is none, or out of its range."""
    with suppress(UserError):
        size = parse_size(str(text), option)
        if least <= size <= most:
            return size
    wanted = f"a whole number from {least:,} to {most:,}"
    raise UserError(f"{option} must be {wanted}, not '{text!s:.60}'")


def number(option: str, text: str, wanted: str, least: float, most: float = math.inf) -> float:
    """Reads a number from `least` to `most`, which `wanted` says in words."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        raise UserError(f"{option} must be {wanted}, not '{text:.60}'")
    return value


def check_choice(option: str, value: str, allowed: Sequence[str]) -> Any:
    """A value of those allowed. Raises UserError for another one, with the nearest of them."""
    if value not in allowed:
        hint = did_you_mean(value, allowed) or f"; choose from {', '.join(allowed)}"
        raise UserError(f"{option} '{value}' is none{hint}")
    return value


def check_device(name: str) -> None:
    """Raises UserError unless it is a name of a device, which is there as far as known here."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise UserError(f"--device '{name}' is none: give auto, cpu, cuda or cuda:N")
    kind, _, number = name.partition(":")
    there = visible_gpus() if kind == "cuda" else None
    if there is not None and int(number or 0) >= there:
        raise UserError(f"--device {name}: this machine has {there} such devices; give cpu or auto")


def path_of(option: str, text: str) -> Path:
    """Raises UserError unless a text can be a path on this machine."""
    try:
        check_path(option, text)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Path(text)


def folder_of(option: str, text: str | Path) -> Path:
    """A folder that is there, or can be made. Raises UserError where a file is in its way."""
    folder = path_of(option, str(text))
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{option} '{folder}': '{existing}' is a file; give a folder")
    return folder
