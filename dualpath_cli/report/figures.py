"""Figures as files, the same bytes for the same numbers; and the colours of figures and
pages.

matplotlib is imported when a figure is drawn: many callers need only the colours.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

T = TypeVar("T")

DEEP = "#C7734C"
WIDE = "#4C8CB8"
EVEN = "#F6F5F2"  # between the two, where both paths have equal shares
INK = "#1F2A44"
MUTED = "#56607A"
FAMILY_COLORS = {
    "wide": WIDE,
    "expanded": "#1F5C4A",
    "core": "#4E1FAD",
    "loop": DEEP,
    "dual": "#7D4570",
}
"""A colour for each family of models; families with one path have the path's colour."""
SOURCES = ("#7B5AAE", "#B18E15", "#4EA683", "#86281D", "#2E7065", "#AB8BE3", "#856B1B")
"""Colours of sources or runs, different from those of paths and families."""
LINES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"))
"""Lines and markers of sources or runs: one for all colours, then the next."""
# part of white in the lightest shade of a colour, and of black in the darkest
REACH = 0.2


def shades(color: str, count: int) -> list[str]:
    """`count` shades of a colour from light to dark; for one, the colour itself."""
    from matplotlib.colors import to_hex, to_rgb

    if count == 1:
        return [to_hex(color)]

    rgb = np.array(to_rgb(color))
    white = np.ones(3)
    black = np.zeros(3)
    # From lighter, towards white, to darker, towards black.
    found = []
    for step in np.linspace(REACH, -REACH, count):
        towards = white if step > 0 else black
        red, green, blue = rgb + abs(step) * (towards - rgb)
        found.append(to_hex((red, green, blue)))
    return found


def source_styles() -> Iterator[dict[str, Any]]:
    """Colour, line and marker of each of several sources or runs; the first 28
    differ."""
    for linestyle, marker in cycle(LINES):
        for color in SOURCES:
            yield {"color": color, "linestyle": linestyle, "marker": marker}


def legend_name(name: str) -> str:
    """A name as a legend shows it: matplotlib hides those that begin with `_`."""
    return name.lstrip("_")


def share_colormap() -> "Colormap":
    """Blue at 0, nearly white at half, terracotta at 1, as on the page of `routing`."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("wide_deep", [WIDE, EVEN, DEEP])


def panels(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    square: bool = False,
    **options: Any,
) -> "tuple[Figure, Any]":
    """A figure, with its size in inches, and its axes (rows, columns); `square`: close
    axes."""
    from matplotlib.figure import Figure

    layout: Literal["compressed", "constrained"] = (
        "compressed" if square else "constrained"
    )
    figure = Figure(figsize=(width, height), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(ax: "Axes") -> None:
    """Keeps the left and lower sides of the frame, and puts a light grid behind the
    lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def mark_count(ax: "Axes", count: int, name: str) -> None:
    """Draws a line at a number on an axis of forced numbers, named above the axes,
    where no curve is."""
    ax.axvline(count, color=MUTED, linewidth=0.8, linestyle=":")
    ax.annotate(
        name,
        (count, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=MUTED,
    )


def heat_map(
    ax: "Axes", values: npt.ArrayLike, middle: float, reach: float
) -> "AxesImage":
    """Draws values (rows, columns) in the colours of shares, as far as `reach` from
    `middle`."""
    return ax.imshow(
        values,
        cmap=share_colormap(),
        vmin=middle - reach,
        vmax=middle + reach,
        aspect="auto",
        interpolation="nearest",
    )


def thinned(ticks: Sequence[T], most: int) -> Sequence[T]:
    """Every n-th tick of an axis that has room for the labels of `most`."""
    step = -(-len(ticks) // most) or 1
    return ticks[::step]


def layer_ticks(axis: "Axis", layers: Sequence[int | str], **options: Any) -> None:
    """Labels an axis with the numbers of layers; with many layers, every third number
    or fewer."""
    step = 1 if len(layers) <= 8 else max(3, -(-len(layers) // 8))
    labels = [str(layer) for layer in layers[::step]]
    axis.set_ticks(range(0, len(layers), step), labels, **options)


def save(folder: Path, figures: "Mapping[str, Figure | None]") -> list[Path]:
    """Writes figures as PNG and PDF, deletes old files of figures that are None;
    returns paths."""
    written = []
    for name, figure in figures.items():
        for suffix in ("png", "pdf"):
            path = folder / f"{name}.{suffix}"
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            # Without the time, equal numbers give equal files.
            undated = {"CreationDate": None} if suffix == "pdf" else {}
            with replacing(path) as partial, any_glyph():
                figure.savefig(partial, format=suffix, dpi=160, metadata=undated)
            # the second file keeps the first file's layout
            figure.set_layout_engine("none")
            written.append(path)
    return written


ON_PAGE = {
    **dict.fromkeys(("#000000", INK.lower()), "currentColor"),
    "#ffffff": "var(--page)",
    MUTED.lower(): "var(--muted)",
}  # colours defined by the page; all others get lighter on a dark page


def svg(figure: "Figure", words: str) -> str:
    """A figure as an element of a page, in the page's colours, labelled `words`."""
    import matplotlib as mpl

    # With a fixed salt and without the time, equal numbers give equal text.
    written = io.StringIO()
    undated = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with any_glyph(), mpl.rc_context({"svg.hashsalt": "dualpath"}):
        figure.savefig(written, format="svg", transparent=True, metadata=undated)
    text = written.getvalue()
    text = text[text.index("<svg") :]

    # Only of lines: scales of glyphs need all digits.
    text = re.sub(r' d="[^"]*"', _in_hundredths, text)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}", _color_on_page, text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)


def _in_hundredths(path: re.Match[str]) -> str:
    """The numbers of a path, in hundredths of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])


def _color_on_page(found: re.Match[str]) -> str:
    color = found[0]
    lighter = f"light-dark({color}, color-mix(in oklab, {color} 72%, white))"
    return ON_PAGE.get(color, lighter)


@contextmanager
def any_glyph() -> Iterator[None]:
    """Characters that the font lacks become boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
