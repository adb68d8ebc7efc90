"""Ranges of numbers, and names that can be part of a path: what settings check of their fields.

Imports nothing slow: `dualpath flops` checks a model with it.
"""

from collections.abc import Mapping
from typing import Any

Range = tuple[float, float]  # the least and the most that a number may be

LONGEST_NAME = 100  # bytes of a name: files are called after it, and a file's name has 255 at most


def check_ranges(settings: object, ranges: Mapping[str, Range]) -> None:
    """Raises ValueError for the first field, or item of a list, that is out of its range.

    None is let through.
    """
    for name, allowed in ranges.items():
        value = getattr(settings, name)
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for n, item in items:
            if item is not None:
                check_range(name if n is None else f"{name}[{n}]", item, allowed)


def check_range(name: str, value: float, allowed: Range) -> None:
    """Raises ValueError for a number that is out of its range, as `nan` is."""
    low, high = allowed
    if low <= value <= high:
        return
    least, most = (f"{n:g}" if isinstance(n, float) else f"{n:,}" for n in allowed)
    wanted = f"at least {least}" if value < low else f"from {least} to {most}"
    raise ValueError(f"{name} must be {wanted}, not {_short(value)}")


def check_name(what: str, name: str, way_out: str = "") -> None:
    """Raises ValueError unless a name can be part of a path, and stays in its folder."""
    if not name or name in (".", "..") or not name.isprintable() or set(name) & set("/\\$"):
        # Figures would set what stands between two dollars as a formula.
        problem = "must be a plain name, without '/', '\\', '$' and control characters"
    elif len(name.encode()) > LONGEST_NAME:
        problem = f"must have at most {LONGEST_NAME} bytes"
    else:
        return
    raise ValueError(f"{what} {problem}, not {shown(name)}{way_out}")


def check_path(what: str, path: str, remote: bool = False) -> None:
    """Raises ValueError unless a text can be a path; `remote` allows s3://."""
    if not path or any(not c.isprintable() and not _is_byte(c) for c in path):
        raise ValueError(f"{what} must be a path without control characters, not {shown(path)}")
    scheme, colon, _ = path.partition("://")
    if colon and "/" not in scheme and not (remote and scheme == "s3"):
        places = "a path on this machine" + (" or s3://" if remote else "")
        raise ValueError(f"{what} must be {places}, not {shown(path)}")


def shown(text: str) -> str:
    """Returns a text in quotes, its middle left out where it is long."""
    return f"'{text}'" if len(text) <= 60 else f"'{text[:40]}...{text[-10:]}'"


def _is_byte(character: str) -> bool:
    """Whether a character stands for a byte of a file's name that is no UTF-8."""
    return "\udc80" <= character <= "\udcff"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    try:
        text = str(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
