"""Figures of an ablation: loss by forced loops, by sublayers that a token passes, by layer."""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from dualpath_cli.report.figures import MUTED, SOURCES, panels, plain, save
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import BASELINE, SHORTER
from dualpath_cli.study.ablation.scores import Result
from dualpath_cli.study.ablation.tables import by_layer, meaning_of

TITLE = "loss less that of the learned router (nats per token)"


def draw(folder: Path, results: Sequence[Result], loops: int | None) -> list[Path]:
    """Writes each figure with rows in the results, as PNG and PDF; returns their paths."""
    return save(folder, {
        "forced_loops": _forced_loops(results, loops), "layers": _layers(results),
        "passes": _passes(results),
    })  # fmt: skip


def _forced_loops(results: Sequence[Result], trained: int | None) -> Figure | None:
    """Difference to the learned router by forced K, a line a source; marks the trained K."""
    points = [
        (loops, r)
        for r in results
        if (loops := r.intervention.loops) and r.intervention == Intervention(loops=loops)
    ]
    if len({loops for loops, _ in points}) < 2:
        return None
    figure, axes = panels(5.2, 3.6)
    ax = axes[0, 0]
    sources = dict.fromkeys(r.source for _, r in points)
    for source, color in zip(sources, cycle(SOURCES), strict=False):
        line = [r for _, r in points if r.source == source]
        x = [loops for loops, r in points if r.source == source]
        ax.fill_between(x, [r.low for r in line], [r.high for r in line], color=color, alpha=0.2,
                        linewidth=0)  # fmt: skip
        ax.plot(x, [r.difference for r in line], color=color, marker="o", markersize=4,
                label=source)  # fmt: skip
    if trained is not None:
        ax.axvline(trained, color=MUTED, linewidth=0.8, linestyle=":")
        ax.annotate(f"trained K = {trained}", (trained, 0.97), xycoords=("data", "axes fraction"),
                    xytext=(4, 0), textcoords="offset points", va="top", color=MUTED)  # fmt: skip
    ax.set(xlabel="forced loops", ylabel=TITLE, xticks=sorted({loops for loops, _ in points}))
    _finish(ax)
    ax.legend(frameon=False)
    return figure


def _passes(results: Sequence[Result]) -> Figure | None:
    """Difference by the sublayers that a token passes: a panel a source, a line a suite."""
    rows = [r for r in results if r.suite in SHORTER]
    if not rows:
        return None
    sources = list(dict.fromkeys(r.source for r in rows))
    figure, axes = panels(1.2 + 3.4 * len(sources), 3.4, 1, len(sources), sharey=True)

    for ax, source in zip(axes[0], sources, strict=True):
        learned = [r for r in results if r.source == source and r.suite == BASELINE]
        for suite, color in zip(dict.fromkeys(r.suite for r in rows), SOURCES, strict=False):
            line = [r for r in rows if r.source == source and r.suite == suite]
            line = sorted([*line, *learned], key=lambda r: r.passes)
            ax.plot([r.passes for r in line], [r.difference for r in line], color=color,
                    marker="o", markersize=4, label=suite)  # fmt: skip
        ax.set(title=source, xlabel="sublayers that a token passes in a layer")
        ax.set_yscale("symlog", linthresh=1e-3)
        _finish(ax)
    axes[0, 0].set_ylabel(TITLE, fontsize=8)
    axes[0, 0].legend(frameon=False)
    return figure


def _layers(results: Sequence[Result]) -> Figure | None:
    """A heat map for each source: an override a row, its layer a column."""
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


def _finish(ax: Axes) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.8)
    plain(ax)
    ax.yaxis.label.set_fontsize(8)
