"""The colours of all figures and pages: of paths, of families of models, of sources and runs."""

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.colors import ListedColormap

DEEP, WIDE = "#C7734C", "#4C8CB8"
EVEN = "#F6F5F2"  # between the two, where both paths have equal shares
INK, MUTED = "#1F2A44", "#56607A"
FAMILY_COLORS = {"wide": WIDE, "expanded": "#1F5C4A", "loop": DEEP, "dual": "#7D4570"}
"""A family of models each, those of one path in its colour."""
SOURCES = ("#7B5AAE", "#B18E15", "#4EA683", "#86281D", "#2E7065", "#AB8BE3", "#856B1B")
"""A source or run each: no path's and no family's colour."""
REACH = 0.1  # how much lighter and darker, in OKLab, the ends of a colour's shades are


def shades(color: str, count: int) -> list[str]:
    """A colour's shades from light to dark, as many as are asked for; of one, the colour itself."""
    from matplotlib.colors import to_hex, to_rgb

    lab = _oklab(np.array(to_rgb(color)))
    steps = np.linspace(REACH, -REACH, count) if count > 1 else [0.0]
    found = (_srgb(lab + np.array([step, 0, 0])) for step in steps)
    return [to_hex((red, green, blue)) for red, green, blue in found]


@cache
def share_colormap() -> "ListedColormap":
    """Blue where a share is 0, nearly white at one half, terracotta at 1; even to the eye.

    Straight lines in OKLab (Ottosson 2020), where equal distances look equally large.
    """
    from matplotlib.colors import ListedColormap, to_rgb

    ends = [_oklab(np.array(to_rgb(color))) for color in (WIDE, EVEN, DEEP)]
    half = np.linspace(0, 1, 128)[:, None]
    lab = np.concatenate([low + half * (high - low) for low, high in pairwise(ends)])
    return ListedColormap(_srgb(lab), name="wide_deep")


_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _oklab(srgb: np.ndarray) -> np.ndarray:
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T


def _srgb(oklab: np.ndarray) -> np.ndarray:
    linear = (oklab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
