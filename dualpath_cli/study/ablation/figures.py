"""The figures of an ablation: forced loops, layers, sublayers passed, depth."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from dualpath_cli.report.figures import (
    MUTED,
    SOURCES,
    legend_name,
    mark_count,
    panels,
    plain,
    save,
    source_styles,
    thinned,
)
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import BASELINE, DEPTH, SHORTER
from dualpath_cli.study.ablation.scores import AS_TRAINED, Result
from dualpath_cli.study.ablation.tables import by_layer, meaning_of

DIFFERENCE = "loss minus that of the learned router (nats per token)"


def draw_figures(
    folder: Path, results: Sequence[Result], model: ModelConfig
) -> list[Path]:
    """Writes each figure with rows in the results, as PNG and PDF; returns their
    paths."""
    figures = {
        "forced_loops": _forced(results, FORCED_LOOPS, model.same_loops),
        "forced_core_loops": _forced(results, FORCED_CORE_LOOPS, model.core_loops),
        "layers": _layers(results),
        "passes": _passes(results),
        # `depth` is a figure of routing, which may be in the same folder.
        "fewer_steps": _depth(results),
    }
    return save(folder, figures)


class Forced(NamedTuple):
    """A number that an intervention forces."""

    field: str  # of Intervention
    symbol: str  # K or R
    axis: str  # the label of its axis


FORCED_LOOPS = Forced("loops", "K", "forced loops")
FORCED_CORE_LOOPS = Forced("core_loops", "R", "forced repetitions of the core")


def _forced(
    results: Sequence[Result], number: Forced, trained: int | None
) -> Figure | None:
    """Difference to the learned router over a forced number, without other overrides: a
    line for each source, the trained number marked (None: layers differ)."""
    by_source: dict[str, dict[int, Result]] = {}
    for result in results:
        count = getattr(result.intervention, number.field)
        # The suite `depth` scores fewer documents.
        if count is None or result.suite == DEPTH:
            continue
        only_this: dict[str, Any] = {number.field: count}
        if result.intervention == Intervention(**only_this):
            by_source.setdefault(result.source, {})[count] = result

    counts = sorted({count for by_count in by_source.values() for count in by_count})
    if len(counts) < 2:
        return None

    figure, axes = panels(5.2, 3.6)
    ax = axes[0, 0]
    for source, style in zip(by_source, source_styles(), strict=False):
        x = list(by_source[source])
        line = list(by_source[source].values())
        low = [result.low for result in line]
        high = [result.high for result in line]
        ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
        _plot_differences(ax, x, line, name=legend_name(source), **style)

    if trained is not None:
        mark_count(ax, trained, f"trained {number.symbol} = {trained}")
    ax.set(xlabel=number.axis, ylabel=DIFFERENCE, xticks=thinned(counts, 12))
    _finish(ax)
    ax.legend(frameon=False)
    return figure


def _plot_differences(
    ax: Axes,
    x: Sequence[float],
    line: Sequence[Result],
    color: str,
    name: str,
    **style: Any,
) -> None:
    y = [result.difference for result in line]
    marked = {"marker": "o", "markersize": 4, **style}
    ax.plot(x, y, color=color, label=name, **marked)


def _passes(results: Sequence[Result]) -> Figure | None:
    """Difference by the sublayers that a token passes: a panel a source, a line a
    suite."""
    shorter = [result for result in results if result.suite in SHORTER]
    if not shorter:
        return None

    sources = list(dict.fromkeys(result.source for result in shorter))
    suites = list(dict.fromkeys(result.suite for result in shorter))
    width = 1.2 + 3.4 * len(sources)
    figure, axes = panels(width, 3.4, 1, len(sources), sharey=True)

    for ax, source in zip(axes[0], sources, strict=True):
        own = [result for result in results if result.source == source]
        for suite, color in zip(suites, SOURCES, strict=False):
            # The learned router is where each suite's line ends.
            line = [result for result in own if result.suite == suite]
            line += [result for result in own if result.suite == BASELINE]
            line.sort(key=lambda result: result.passes)
            x = [result.passes for result in line]
            _plot_differences(ax, x, line, color, suite)

        ax.set(title=source, xlabel="sublayers that a token passes in a layer")
        ax.set_yscale("symlog", linthresh=1e-3)
        _finish(ax)

    axes[0, 0].set_ylabel(DIFFERENCE, fontsize=8)
    axes[0, 0].legend(frameon=False)
    return figure


class Curve(NamedTuple):
    """A line of the figure `fewer_steps`, and a dotted one with a fitted read-out."""

    name: str
    field: str  # of Intervention: what all but the learned router have
    width: float  # of the line: held states may coincide with forced steps
    blind: str | None = None

    def of(self, results: Sequence[Result], read_out: str) -> list[Result]:
        """Its rows, by depth; the learned router is the deepest."""
        rows = []
        for result in results:
            change = result.intervention
            is_own = getattr(change, self.field) is not None
            is_own = is_own and change.blind == self.blind
            is_learned = change == Intervention()
            if result.read_out == read_out and (is_own or is_learned):
                rows.append(result)
        return sorted(rows, key=lambda result: result.passes)


CURVES = (
    Curve("fewer steps, forced", "loops", 5),
    Curve("fewer steps, held", "held", 2),
    Curve("repetitions, forced", "core_loops", 5),
    Curve("repetitions, held", "core_held", 2),
    Curve("exits", "halting", 2),
    Curve("blind: one for all tokens", "halting", 1.5, blind="all"),
    Curve("blind: by position", "halting", 1.5, blind="position"),
)
"""A colour each."""
LINES = {AS_TRAINED: ("", "-"), "affine": ("; affine", ":")}
"""The end of a line's name, and its style, by read-out."""


def _depth(results: Sequence[Result]) -> Figure | None:
    """Difference by depth: a panel a source, a line a way of taking fewer steps."""
    depth = [result for result in results if result.suite == DEPTH]
    if not depth:
        return None

    sources = list(dict.fromkeys(result.source for result in depth))
    figure, axes = panels(1.2 + 3.4 * len(sources), 4.2, 1, len(sources), sharey=True)
    for ax, source in zip(axes[0], sources, strict=True):
        own = [result for result in depth if result.source == source]
        for curve, color in zip(CURVES, SOURCES, strict=True):
            for read_out, (ending, linestyle) in LINES.items():
                line = curve.of(own, read_out)
                if len(line) < 2:  # of the learned router, or of none
                    continue
                x = [result.passes for result in line]
                style = {
                    "linestyle": linestyle,
                    "linewidth": curve.width,
                    "markersize": 2 + curve.width,
                }
                _plot_differences(ax, x, line, color, curve.name + ending, **style)

        ax.set(title=source, xlabel="sublayers that a token passes in a layer")
        _finish(ax)

    # Differences of fitted read-outs are to the learned router's with its own.
    axes[0, 0].set_ylabel(DIFFERENCE, fontsize=8)
    names = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        *names,
        loc="outside lower center",
        ncols=2 if len(sources) == 1 else 3,  # one panel has room for two
        frameon=False,
        fontsize=8,
    )
    return figure


def _layers(results: Sequence[Result]) -> Figure | None:
    """A heat map for each source: an override a row, its layer a column."""
    rows = [result for result in results if result.suite == "layers"]
    if not rows:
        return None

    sources = list(dict.fromkeys(result.source for result in rows))
    overrides, layers, _ = by_layer(rows)
    width = 1.2 + (1.9 + 0.42 * len(layers)) * len(sources)
    height = 1.1 + 0.24 * len(overrides)
    figure, axes = panels(width, height, 1, len(sources), sharey=True)

    # Differences span decades: linear below a thousandth of the largest, logarithmic
    # above.
    sizes = [abs(result.difference) for result in rows]
    largest = max(filter(math.isfinite, sizes), default=0) or 1.0
    smallest = largest / 1000
    norm = SymLogNorm(linthresh=smallest, vmin=-largest, vmax=largest)

    names = [meaning_of(override) or override.name for override in overrides]
    for ax, source in zip(axes[0], sources, strict=True):
        _, _, differences = by_layer(
            result for result in rows if result.source == source
        )
        grid = [
            [differences.get((override, layer), np.nan) for layer in layers]
            for override in overrides
        ]
        image = ax.imshow(grid, cmap="RdBu_r", norm=norm, aspect="auto")
        ax.set(title=source, xlabel="only this layer", xticks=range(len(layers)))
        ax.set_xticklabels([str(layer) for layer in layers])
        ax.set_yticks(range(len(overrides)), names)

    powers = [10.0**n for n in range(-9, 9) if smallest < 10.0**n <= largest]
    ticks = [*(-power for power in reversed(powers)), 0.0, *powers]
    bar = "difference (nats per token)"
    figure.colorbar(image, ax=axes[0].tolist(), label=bar, ticks=ticks)
    return figure


def _finish(ax: Axes) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.8)
    plain(ax)
    ax.yaxis.label.set_fontsize(8)
