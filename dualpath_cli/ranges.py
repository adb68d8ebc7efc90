"""What settings check of their fields: ranges of numbers, names, paths, and sizes such as 38.5B.

Imports nothing slow: `dualpath flops` checks a model with it.
"""

import re
from collections.abc import Mapping
from typing import Any

from dualpath_cli.errors import UserError

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


# Counts as people write them: 80M FLOPs, 38.5B tokens

SUFFIXES = {"K": 3, "M": 6, "B": 9, "G": 9, "T": 12}  # powers of ten; B and G are the same

LARGEST = 10**18  # no count of this package is above it

_SIZE = re.compile(r"(\d[\d_]*)(?:\.(\d+))?(?:[eE]\+?(\d{1,2}))?\s*([KMBGT]?)", re.IGNORECASE)


def parse_size(text: str, name: str, most: int | None = LARGEST) -> int:
    """Reads ``80M``, ``38.5B``, ``1.28G``, ``80e6`` or ``80_000_000`` as a whole number.

    Raises UserError, which names the value as ``name``, for anything else, for zero and for what
    is above `most`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match and len(text) < 100:
        whole, fraction, exponent, suffix = match.groups()
        fraction = (fraction or "").rstrip("0")
        power = int(exponent or 0) + SUFFIXES.get(suffix.upper(), 0) - len(fraction)
        digits = int(whole.replace("_", "") + fraction)
        if power >= 0 and digits > 0:
            if most is not None and digits * 10**power > most:
                raise UserError(f"{name} must be at most {most:,}, not '{text:.60}'")
            return digits * 10**power
    raise UserError(
        f"{name} must be a whole number above 0 such as 80M, 38.5B, 80e6 or 80000000, "
        f"not '{text:.60}'"
    )


class Size(int):
    """A whole number that may be written `38.5B` or `1e6`, in recipes and on the command line."""


def format_size(value: int) -> str:
    """Writes a number with a suffix where three decimals keep it exact; parse_size reads it back.

    80000000 becomes 80M, 1280000000 becomes 1.28B, 4718592 stays 4718592.
    """
    for suffix in ("T", "B", "M", "K"):
        unit = 10 ** SUFFIXES[suffix]
        if unit <= value < 1000 * unit and value * 1000 % unit == 0:
            return f"{value / unit:.3f}".rstrip("0").rstrip(".") + suffix
    return str(value)
