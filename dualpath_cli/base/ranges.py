"""Checks of settings: ranges of numbers, names, paths, and sizes such as 38.5B.

Imports nothing slow: `dualpath flops` checks a model with it.
"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

Range = tuple[float, float]  # the least and the most that a number may be

# bytes of a name: files are called after it, and a file's name has 255 at most
LONGEST_NAME = 100


def check_ranges(settings: object, ranges: Mapping[str, Range]) -> None:
    """Raises ValueError for the first number that is out of its range.

    Of a list each number is checked; other values pass.
    """
    for name, allowed in ranges.items():
        value = getattr(settings, name)
        values = {name: value}
        if isinstance(value, list | tuple):
            values = {f"{name}[{n}]": item for n, item in enumerate(value)}

        for place, number in values.items():
            if isinstance(number, int | float):
                check_range(place, number, allowed)


def check_range(name: str, value: float, allowed: Range) -> None:
    """Raises ValueError for a number that is out of its range, as `nan` is."""
    low, high = allowed
    if low <= value <= high:
        return

    shown = f"{value:g}" if isinstance(value, float) else value
    if value < low:
        raise ValueError(f"{name} must be at least {_bound(low)}, not {shown}")
    raise ValueError(
        f"{name} must be from {_bound(low)} to {_bound(high)}, not {shown}"
    )


def _bound(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def check_name(what: str, name: str, way_out: str = "") -> None:
    """Raises ValueError unless a name can be part of a path, and stays in its folder.

    `what` is what has the name, in the message.
    """
    # Figures would set what stands between two dollars as a formula.
    has_forbidden = bool(set(name) & set("/\\$"))
    is_folder = name in ("", ".", "..")
    is_plain = name.isprintable() and not has_forbidden and not is_folder

    if not is_plain or len(name.encode()) > LONGEST_NAME:
        raise ValueError(
            f"{what} must be a plain name, without '/', '\\', '$' and control "
            f"characters, of at most {LONGEST_NAME} bytes, not '{name:.60}'{way_out}"
        )


def check_path(what: str, path: str, remote: bool = False) -> None:
    """Raises ValueError unless a text can be a path; `remote` allows s3://.

    Bytes of a file's name that are not UTF-8 are characters from U+DC80 to U+DCFF.
    """
    can_be_name = all(c.isprintable() or "\udc80" <= c <= "\udcff" for c in path)
    if not path or not can_be_name:
        raise ValueError(
            f"{what} must be a path without control characters, not '{path:.60}'"
        )

    scheme, colon, _ = path.partition("://")
    is_url = bool(colon) and "/" not in scheme
    if is_url and not (remote and scheme == "s3"):
        places = "a path on this machine" + (" or s3://" if remote else "")
        raise ValueError(f"{what} must be {places}, not '{path:.60}'")


if TYPE_CHECKING:
    Place = str
else:

    class Place(str):
        """A path of an option or a recipe; jsonargparse reads it by `expand_home`."""


PATH_FORM = (
    "a path, without variables (write out what '$' stands for), '~' being a home folder"
)


def expand_home(path: Any) -> str:
    """A path with the home folder in place of a leading ~.

    Shells leave ~ in --out=~/x and in recipes. Raises ValueError for the home of an
    unknown user, for variables, which nobody fills in, and for what is not a text.
    """
    expanded = os.path.expanduser(path) if isinstance(path, str) else "~"
    if "$" in expanded or expanded.startswith("~"):
        raise ValueError(f"{PATH_FORM}, not '{path}'")
    return expanded


# powers of ten; B and G are the same
SUFFIXES = {"K": 3, "M": 6, "B": 9, "G": 9, "T": 12}

LARGEST = 10**18  # no count of this package is above it

SIZE_FORM = "a whole number from 1 to 10^18 (such as 80M, 38.5B or 80e6)"

_SIZE = re.compile(
    r"(\d[\d_]*)(?:\.(\d+))?(?:[eE]\+?(\d{1,2}))?\s*([KMBGT]?)", re.IGNORECASE
)


class Size(int):
    """A whole number that recipes and options may write as `38.5B` or `1e6`."""


def parse_size(text: str) -> int:
    """Reads ``80M``, ``38.5B``, ``1.28G``, ``80e6`` or ``80_000_000``.

    Raises ValueError for anything else, in the words of jsonargparse.
    """
    match = _SIZE.fullmatch(text.strip())
    if match and len(text) < 100:
        whole, fraction, exponent, suffix = match.groups()
        fraction = (fraction or "").rstrip("0")
        digits = int(whole.replace("_", "") + fraction)
        power = int(exponent or 0)
        power += SUFFIXES.get(suffix.upper(), 0)
        power -= len(fraction)

        # With a power below 0, digits of the fraction are left over.
        size = digits * 10 ** max(power, 0)
        if power >= 0 and 0 < size <= LARGEST:
            return size

    raise ValueError(f"Got value: {text}")


def format_size(value: int) -> str:
    """Writes a number with a suffix where three decimals keep it exact.

    `parse_size` reads it back. 80000000 becomes 80M, 1280000000 becomes 1.28B, 4718592
    stays 4718592.
    """
    for suffix in ("T", "B", "M", "K"):
        unit = 10 ** SUFFIXES[suffix]
        is_exact = value * 1000 % unit == 0
        if unit <= value < 1000 * unit and is_exact:
            digits = f"{value / unit:.3f}".rstrip("0").rstrip(".")
            return digits + suffix
    return str(value)
