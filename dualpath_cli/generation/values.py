"""Values of the options that the commands around a model's answers share; imports nothing slow."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.ranges import check_path
from dualpath_cli.sizes import parse_size

PRECISIONS = ("float32", "bfloat16")
"""Of matrix products; that of the weights, or lower by autocast."""
DEVICE_HELP = "auto (default), cpu, cuda or cuda:N."
PRECISION_HELP = f"Type of matrix products, {' or '.join(PRECISIONS)} (default {PRECISIONS[0]})."


def whole_number(option: str, text: str, least: int, most: int) -> int:
    """Reads a number such as 16 or 2K. Raises UserError where it is none, or out of its range."""
    size = parse_size(str(text), option)
    if not least <= size <= most:
        raise UserError(f"{option} must be from {least:,} to {most:,}, not '{text}'")
    return size


def number(option: str, text: str, wanted: str, least: float, most: float = math.inf) -> float:
    """Reads a number from `least` to `most`, which `wanted` says in words.

    Raises:
        UserError: where it is none, or out of its range.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        raise UserError(f"{option} must be {wanted}, not '{text:.60}'")
    return value


def check_choice(option: str, value: str, allowed: Sequence[str]) -> None:
    """Raises UserError for a value that is none of those allowed, with the nearest one."""
    if value not in allowed:
        hint = did_you_mean(value, allowed) or f"; choose from {', '.join(allowed)}"
        raise UserError(f"{option} '{value}' is none{hint}")


def check_device(name: str) -> None:
    """Raises UserError unless it is a name of a device; whether that is there, torch knows."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise UserError(f"--device '{name}' is none: give auto, cpu, cuda or cuda:N")


def path_of(option: str, text: str) -> Path:
    """Raises UserError unless a text can be a path on this machine."""
    try:
        check_path(option, text)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Path(text)
