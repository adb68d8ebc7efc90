"""Figures as files: drawn without a display, written whole, the same bytes for the same numbers."""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dualpath_cli.files import replacing
from dualpath_cli.output.colors import INK, MUTED, share_colormap


def panels(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    square: bool = False,
    **options: Any,
) -> tuple[Figure, Any]:
    """Returns a figure of a size in inches and its axes, an array (rows, columns).

    `square` axes have a fixed aspect, and are drawn close together.
    """
    layout: Literal["compressed", "constrained"] = "compressed" if square else "constrained"
    figure = Figure(figsize=(width, height), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(ax: Axes) -> None:
    """Keeps the left and lower sides of the frame, and puts a light grid behind the lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def heat_map(
    ax: Axes, values: npt.ArrayLike, middle: float, reach: float, **options: Any
) -> AxesImage:
    """Draws values (rows, columns) in the colours of shares, as far as `reach` from `middle`."""
    return ax.imshow(values, cmap=share_colormap(), vmin=middle - reach, vmax=middle + reach,
                     aspect="auto", interpolation="nearest", **options)  # fmt: skip


def layer_ticks(axis: Axis, layers: Sequence[int], **options: Any) -> None:
    """Labels places along an axis with the numbers of their layers, every third where many are."""
    step = 1 if len(layers) <= 8 else 3
    labels = [str(layer) for layer in layers[::step]]
    axis.set_ticks(range(0, len(layers), step), labels, **options)


def save(folder: Path, figures: Mapping[str, Figure | None]) -> list[Path]:
    """Writes figures as PNG and PDF, and removes those that are None, which an earlier call left.

    Returns the paths of the written files.
    """
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
}
"""The colours that are a page's own; all others are lighter where it is dark."""


def svg(figure: Figure, words: str) -> str:
    """Returns a figure as an element of a page (`output.page`), whose ink and ground it takes.

    `words` are read out in its place.
    """
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
