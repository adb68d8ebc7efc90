"""Figures of an ablation: loss against forced loops, expected loops and passes; layers.

A source has the same colour in all of them.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from dualpath_cli.report.figures import MUTED, SOURCES, panels, plain, save
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import BASELINE, SHORTER
from dualpath_cli.study.ablation.tables import Result, by_layer, meaning_of

TITLE = "loss less that of the learned router (nats per token)"


def draw(folder: Path, results: Sequence[Result], loops: int | None) -> list[Path]:
    """Writes the figures that the results have rows for, as PNG and PDF; returns their paths."""
    return save(folder, {
        "forced_loops": _forced_loops(results, loops), "halting": _halting(results),
        "layers": _layers(results), "passes": _passes(results),
    })  # fmt: skip


def _forced_loops(results: Sequence[Result], trained: int | None) -> Figure | None:
    """Difference to the learned router against forced K, a line a source; the trained K marked."""
    points = [
        (loops, r)
        for r in results
        if (loops := r.intervention.loops) and r.intervention == Intervention(loops=loops)
    ]
    if len({loops for loops, _ in points}) < 2:
        return None
    figure, axes = panels(5.2, 3.6)
    ax = axes[0, 0]
    for source, color in _colors(r for _, r in points):
        line = [(loops, r) for loops, r in points if r.source == source]
        _curve(ax, [loops for loops, _ in line], [r for _, r in line], color)
    if trained is not None:
        ax.axvline(trained, color=MUTED, linewidth=0.8, linestyle=":")
        ax.annotate(f"trained K = {trained}", (trained, 0.97), xycoords=("data", "axes fraction"),
                    xytext=(4, 0), textcoords="offset points", va="top", color=MUTED)  # fmt: skip
    ax.set(xlabel="forced loops", ylabel=TITLE, xticks=sorted({loops for loops, _ in points}))
    _finish(ax)
    ax.legend(frameon=False)
    return figure


def _halting(results: Sequence[Result]) -> Figure | None:
    """Difference against mean expected loops, a line a source; labelled by the threshold."""
    if not any(r.suite == "halting" for r in results):
        return None
    rows = [r for r in results if r.suite in ("halting", BASELINE)]
    figure, axes = panels(5.2, 3.6)
    ax = axes[0, 0]
    for source, color in _colors(rows):
        line = [r for r in rows if r.source == source]
        line.sort(key=lambda r: r.expected_loops)
        _curve(ax, [r.expected_loops for r in line], line, color)
        if source == rows[0].source:
            for r in _apart(line):
                threshold = r.intervention.halting
                text = r.intervention.name if threshold is None else f"{threshold:g}"
                ax.annotate(text, (r.expected_loops, r.difference), xytext=(3, 5),
                            textcoords="offset points", fontsize=7, color=color)  # fmt: skip
    ax.set(xlabel="expected loops, mean over tokens and layers", ylabel=TITLE)
    _finish(ax)
    ax.legend(frameon=False, title="threshold at the points")
    return figure


def _passes(results: Sequence[Result]) -> Figure | None:
    """Difference against the sublayers that a token passes: a panel a source, a line a rule."""
    rows = [r for r in results if r.suite in SHORTER]
    if not any(r.suite != "halting" for r in rows):
        return None
    sources = list(dict.fromkeys(r.source for r in rows))
    figure, axes = panels(1.2 + 3.4 * len(sources), 3.4, 1, len(sources), sharey=True)

    def rule(row: Result) -> str:
        """The savings that end a token's loop or leave a path out."""
        return "gates" if row.intervention.halting is None else "remaining mass"

    for ax, source in zip(axes[0], sources, strict=True):
        learned = [r for r in results if r.source == source and r.suite == BASELINE]
        for name, color in zip(dict.fromkeys(map(rule, rows)), cycle(SOURCES), strict=False):
            line = [r for r in rows if r.source == source and rule(r) == name]
            line = sorted([*line, *learned], key=lambda r: r.passes)
            ax.plot([r.passes for r in line], [r.difference for r in line], color=color,
                    marker="o", markersize=4, label=name)  # fmt: skip
        ax.set(title=source, xlabel="sublayers that a token passes in a layer")
        ax.set_yscale("symlog", linthresh=1e-3)
        _finish(ax)
    axes[0, 0].set_ylabel(TITLE, fontsize=8)
    axes[0, 0].legend(frameon=False)
    return figure


def _layers(results: Sequence[Result]) -> Figure | None:
    """Heat map a source: an override a row, the layer that it is made in a column."""
    rows = [r for r in results if r.suite == "layers"]
    if not rows:
        return None
    sources = list(dict.fromkeys(r.source for r in rows))
    overrides, layers, _ = by_layer(rows)
    width, height = 1.9 + 0.42 * len(layers), 1.1 + 0.24 * len(overrides)
    figure, axes = panels(1.2 + width * len(sources), height, 1, len(sources), sharey=True)
    finite = (abs(r.difference) for r in rows if math.isfinite(r.difference))
    largest = max(finite, default=0) or 1.0
    # Differences span decades: linear below a thousandth of the largest, logarithmic above.
    norm = SymLogNorm(linthresh=largest / 1000, vmin=-largest, vmax=largest)
    for ax, source in zip(axes[0], sources, strict=True):
        _, _, differences = by_layer(r for r in rows if r.source == source)
        grid = [[differences.get((o, layer), np.nan) for layer in layers] for o in overrides]
        image = ax.imshow(grid, cmap="RdBu_r", norm=norm, aspect="auto")
        ax.set(title=source, xlabel="only this layer", xticks=range(len(layers)))
        ax.set_xticklabels([str(layer) for layer in layers])
        ax.set_yticks(range(len(overrides)), [meaning_of(o) or o.name for o in overrides])
    powers = [10.0**n for n in range(-9, 9) if largest / 1000 < 10.0**n <= largest]
    ticks = [*(-value for value in reversed(powers)), 0.0, *powers]
    label = "difference (nats per token)"
    figure.colorbar(image, ax=axes[0].tolist(), label=label, ticks=ticks)
    return figure


def _curve(ax: Axes, x: Sequence[float], rows: Sequence[Result], color: str) -> None:
    ax.fill_between(x, [r.low for r in rows], [r.high for r in rows], color=color, alpha=0.2,
                    linewidth=0)  # fmt: skip
    ax.plot(x, [r.difference for r in rows], color=color, marker="o", markersize=4,
            label=rows[0].source)  # fmt: skip


def _apart(rows: Sequence[Result]) -> list[Result]:
    """Those of growing expected loops that are far enough from the one before for a label."""
    least = 0.06 * (rows[-1].expected_loops - rows[0].expected_loops)
    chosen: list[Result] = []
    for row in rows:
        if not chosen or row.expected_loops - chosen[-1].expected_loops > least:
            chosen.append(row)
    return chosen


def _colors(results: Iterable[Result]) -> list[tuple[str, str]]:
    sources = dict.fromkeys(r.source for r in results)
    return list(zip(sources, cycle(SOURCES), strict=False))


def _finish(ax: Axes) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.8)
    plain(ax)
    ax.yaxis.label.set_fontsize(8)
