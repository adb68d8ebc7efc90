"""Figures as files, the same bytes for the same numbers; and the colours of figures and pages.

matplotlib is imported where something is drawn: many need the colours alone.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.system import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


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
    """Blue at 0, nearly white at half, terracotta at 1: lines in OKLab (Ottosson 2020)."""
    from matplotlib.colors import ListedColormap, to_rgb

    ends = [_oklab(np.array(to_rgb(color))) for color in (WIDE, EVEN, DEEP)]
    half = np.linspace(0, 1, 128)[:, None]
    lab = np.concatenate([low + half * (high - low) for low, high in pairwise(ends)])
    return ListedColormap(_srgb(lab), name="wide_deep")


_TO_CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
_TO_LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def _oklab(srgb: np.ndarray) -> np.ndarray:
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T


def _srgb(oklab: np.ndarray) -> np.ndarray:
    linear = (oklab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def panels(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    square: bool = False,
    **options: Any,
) -> "tuple[Figure, Any]":
    """A figure of a size in inches and its axes (rows, columns), `square` ones close together."""
    from matplotlib.figure import Figure

    layout: Literal["compressed", "constrained"] = "compressed" if square else "constrained"
    figure = Figure(figsize=(width, height), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(ax: "Axes") -> None:
    """Keeps the left and lower sides of the frame, and puts a light grid behind the lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def heat_map(
    ax: "Axes", values: npt.ArrayLike, middle: float, reach: float, **options: Any
) -> "AxesImage":
    """Draws values (rows, columns) in the colours of shares, as far as `reach` from `middle`."""
    return ax.imshow(values, cmap=share_colormap(), vmin=middle - reach, vmax=middle + reach,
                     aspect="auto", interpolation="nearest", **options)  # fmt: skip


def layer_ticks(axis: "Axis", layers: Sequence[int], **options: Any) -> None:
    """Labels places along an axis with the numbers of their layers, every third where many are."""
    step = 1 if len(layers) <= 8 else 3
    labels = [str(layer) for layer in layers[::step]]
    axis.set_ticks(range(0, len(layers), step), labels, **options)


def save(folder: Path, figures: "Mapping[str, Figure | None]") -> list[Path]:
    """Writes figures as PNG and PDF, deletes earlier ones that are None now; returns paths."""
    written = []
    for name, figure in figures.items():
        for suffix in ("png", "pdf"):
            path = folder / f"{name}.{suffix}"
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            # Without the time, equal numbers give equal files.
            undated = {"CreationDate": None} if suffix == "pdf" else {}
            with replacing(path) as partial, _any_glyph():
                figure.savefig(partial, format=suffix, dpi=160, metadata=undated)
            figure.set_layout_engine("none")  # it is laid out: the second file needs no other
            written.append(path)
    return written


ON_PAGE = {
    **dict.fromkeys(("#000000", INK.lower()), "currentColor"),
    "#ffffff": "var(--page)",
    MUTED.lower(): "var(--muted)",
}  # the colours that are a page's own; all others are lighter where it is dark


def svg(figure: "Figure", words: str) -> str:
    """A figure as an element of a page (`report.page`), in its colours, read out as `words`."""
    import matplotlib as mpl

    written = io.StringIO()
    with _any_glyph(), mpl.rc_context({"svg.hashsalt": "dualpath"}):  # else ids are drawn anew
        undated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=undated)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    # Hundredths of a point are enough for lines; scales of glyphs need all digits.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: _on_page(found[0]), text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)


def _on_page(color: str) -> str:
    lighter = f"light-dark({color}, color-mix(in oklab, {color} 72%, white))"
    return ON_PAGE.get(color, lighter)


@contextmanager
def _any_glyph() -> Iterator[None]:
    """Characters that the font lacks become boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
