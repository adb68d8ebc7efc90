"""Values of options: numbers, choices, devices and paths; imports nothing slow."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.machine import visible_gpus
from dualpath_cli.ranges import check_path
from dualpath_cli.sizes import parse_size

PRECISIONS = ("float32", "bfloat16")
"""Of matrix products; that of the weights, or lower by autocast."""


def add_list_option(parser: Any, name: str, metavar: str, text: str) -> None:
    """Adds an option of one word or more, which may be repeated."""
    parser.add_argument(name, nargs="+", action="extend", default=[], metavar=metavar, help=text)


def add_precision(group: Any) -> None:
    """Adds `--precision`."""
    text = f"Type of matrix products, {' or '.join(PRECISIONS)} (default {PRECISIONS[0]})."
    group.add_argument("--precision", metavar="TYPE", default=PRECISIONS[0], help=text)


def add_device(group: Any) -> None:
    """Adds `--device`."""
    text = "auto (default), cpu, cuda or cuda:N."
    group.add_argument("--device", metavar="DEVICE", default="auto", help=text)


def percent(value: str | float) -> float:
    """Reads percents, such as 50 or 50%. Raises ValueError where it is no number."""
    return float(str(value).removesuffix("%"))  # jsonargparse reads what it has read again


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


def seed_number(option: str, text: str) -> int:
    """Reads a seed. Raises UserError where it is none."""
    if not text.isdecimal() or int(text) >= 1 << 62:
        raise UserError(f"{option} must be a whole number from 0 on, not '{text:.60}'")
    return int(text)


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
