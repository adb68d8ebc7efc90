"""Counts as people write them: 80M FLOPs, 38.5B tokens."""

import re

from dualpath_cli.errors import UserError

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
