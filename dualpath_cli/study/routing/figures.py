"""The four figures of a run's routing: over layers, of gates, of tokens, by part of speech."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.report.figures import (
    INK,
    MUTED,
    SOURCES,
    heat_map,
    layer_ticks,
    panels,
    plain,
    share_colormap,
)
from dualpath_cli.study.parts_of_speech import UPOS
from dualpath_cli.study.routing.readouts import CONTRIBUTION_BINS, CONTRIBUTION_END, Sums
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.routing.tokens import Example, share_reach

MOST_TOKENS = 160  # of an example that are drawn
WIDTH = 108  # characters in a line of text


def depth(sources: Mapping[str, Summary], mean: Summary) -> Figure:
    """Deep share and cosine per layer: a line a source, and their mean.

    The paper's figure `path_alignment`, there with a line a checkpoint.
    """
    figure, axes = panels(8.2, 3.0, 1, 2)
    for ax, name, title, even in (
        (axes[0, 0], "deep_share", "deep share", 0.5),
        (axes[0, 1], "cosine", "cosine of the paths' updates", 0),
    ):
        for color, (label, line) in zip(cycle(SOURCES), sources.items(), strict=False):
            _line(ax, line, line.means[name], color, label)
        if len(sources) > 1:
            ax.plot(mean.layers, mean.means[name][0], color=INK, linewidth=2.2, label="mean")
        _layer_axis(ax, mean.layers, title)
        ax.axhline(even, color=MUTED, linewidth=0.8, linestyle=":")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center",
                  frameon=False, fontsize=8)  # fmt: skip
    return figure


def bands(sums: Mapping[str, Sums], average: Summary) -> Figure:
    """Joint densities of gates and of gated updates, in bands of layers, averaged over sources.

    The paper's figure `gate_density`: (g_w, g_d) above, log(1 + g ‖Δ‖) below.
    """
    names = average.bands
    figure, axes = panels(2.3 * len(names) + 0.8, 4.6, 2, len(names), square=True)
    gates, contributions = (
        {
            name: np.mean([_density(source[kind][places].sum(0)) for source in sums.values()], 0)
            for name, places in names.items()
        }
        for kind in ("gate_density", "contribution_density")
    )
    for row, densities, extent, end, label in (
        (axes[0], gates, 1.0, 1.0, "$g_w$"),
        (axes[1], contributions, CONTRIBUTION_END, _end_of(contributions.values()),
         r"$\log(1 + g_w \|\Delta_w\|)$"),
    ):  # fmt: skip
        for ax, name in zip(row, names, strict=True):
            most = max(float(density.max()) for density in densities.values()) or 1.0
            image = _square(ax, densities[name], extent, end, most)
            ax.set(xlabel=label)
        bar = figure.colorbar(image, ax=row.ravel().tolist(), fraction=0.03)
        bar.set_label("share of tokens in a bin", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    for ax, (name, places) in zip(axes[0], names.items(), strict=True):
        ax.set(title=f"{name}: {average.named(places)}")
    axes[0, 0].set_ylabel("$g_d$")
    axes[1, 0].set_ylabel(r"$\log(1 + g_d \|\Delta_d\|)$")
    for ax in axes.flat:
        ax.title.set_fontsize(9)
    return figure


def _line(ax: Axes, line: Summary, values: Floats, color: str, label: str) -> None:
    low, high = line.interval(values)
    ax.fill_between(line.layers, low, high, color=color, alpha=0.18, linewidth=0)
    ax.plot(line.layers, values[0], color=color, marker="o", markersize=3,
            linewidth=1.2, label=label)  # fmt: skip


def _layer_axis(ax: Axes, layers: tuple[int, ...], title: str) -> None:
    plain(ax)
    ax.set(xlabel="layer", xticks=layers[:: 1 if len(layers) <= 8 else 2])
    ax.set_title(title, fontsize=9)


def _density(counts: Floats) -> Floats:
    """Share of the tokens in each bin."""
    return np.asarray(counts / max(1.0, counts.sum()))


def _end_of(densities: Any) -> float:
    """Where the axes of contributions end: just past the last bin that is not empty."""
    used = [np.flatnonzero(density.sum(0) + density.sum(1)) for density in densities]
    last = max((int(bins[-1]) for bins in used if len(bins)), default=0)
    return CONTRIBUTION_END * min(CONTRIBUTION_BINS, int(1.05 * last) + 2) / CONTRIBUTION_BINS


def _square(ax: Axes, density: Floats, extent: float, end: float, most: float) -> AxesImage:
    """A density (deep, wide) with equal axes and the diagonal of equal weights."""
    image = ax.imshow(
        density, origin="lower", extent=(0, extent, 0, extent), cmap="cividis",
        norm=LogNorm(most / 1000, most, clip=True), interpolation="nearest",
    )  # fmt: skip
    ax.plot([0, end], [0, end], color="white", linewidth=0.7, linestyle="--")
    ax.set(xlim=(0, end), ylim=(0, end), aspect="equal")
    return image


def coloured_text(examples: Sequence[Example]) -> Figure:
    """Each token on its deep share, the mean over layers: blue wide, red deep.

    The paper's figure `routing_pref_page_8`.
    """
    placed = [_lines(example.first(MOST_TOKENS)) for example in examples]
    rows = [1.8 + max(row for row, _, _ in places) for places in placed]
    figure, axes = panels(7.2, 0.19 * sum(rows) + 0.5, len(examples), height_ratios=rows)
    colors = share_colormap()
    reach = share_reach([example.deep_share.mean(1) for example in examples])
    for ax, example, places, height in zip(axes[:, 0], examples, placed, rows, strict=True):
        ax.set(xlim=(0, WIDTH), ylim=(height - 0.5, -0.6))
        ax.axis("off")
        shares = example.deep_share.mean(1)
        cut = f", first {MOST_TOKENS} of {example.length:,} tokens"
        title = f"{example.source}, sequence {example.number}"
        title += cut if example.length > MOST_TOKENS else ""
        ax.set_title(title, fontsize=8, loc="left")
        for (row, column, text), share in zip(places, shares, strict=False):
            color = colors(0.5 + (float(share) - 0.5) / (2 * reach))
            box = Rectangle((column, row - 0.46), len(text), 0.92, facecolor=color, linewidth=0)
            ax.add_patch(box)
            ax.text(column, row, text, family="monospace", fontsize=7.6, va="center",
                    color=INK, parse_math=False)  # fmt: skip
    low, high = 0.5 - reach, 0.5 + reach
    scale = ScalarMappable(Normalize(low, high), colors)
    bar = figure.colorbar(scale, ax=axes.ravel().tolist(), location="bottom", aspect=45,
                          shrink=0.5, pad=0.02, extend="both" if reach < 0.5 else "neither",
                          label="deep share, mean over layers")  # fmt: skip
    bar.set_ticks([low, 0.5, high], labels=[f"{low:.2f} wide", "0.5", f"{high:.2f} deep"])
    bar.ax.tick_params(labelsize=7)
    bar.ax.xaxis.label.set_fontsize(8)
    return figure


def heat_maps(sources: Mapping[str, Summary], average: Summary) -> Figure | None:
    """Mean deep share by part of speech and layer: a map a source, and one of their mean.

    The paper's figure `pos_main`, panels a to d. Tags are sorted by the mean over sources and
    layers, the deepest at the bottom; one with fewer than ten tokens in a source is grey there.
    """
    tags = average.known_tags
    if not tags:
        return None
    maps = dict(sources) | ({"mean of the sources": average} if len(sources) > 1 else {})
    across = 2 if len(maps) in (2, 4) else min(3, len(maps))
    down = -(-len(maps) // across)
    width = min(2.4, max(1.5, 0.3 * len(average.layers))) * across + 1.8
    figure, axes = panels(width, (0.17 * len(tags) + 0.7) * down, down, across,
                          sharex=True, sharey=True)  # fmt: skip
    shown = [summary.tag_means[0, tags] for summary in maps.values()]
    reach = max(float(np.nanmax(np.abs(values - 0.5))) for values in shown)
    for ax in axes.flat[len(maps) :]:
        ax.axis("off")
    for number, (ax, name, values) in enumerate(zip(axes.flat, maps, shown, strict=False)):
        image = heat_map(ax, values, 0.5, reach)
        ax.set_facecolor("#B9BDC7")  # where a source has too few tokens
        ax.set_title(name, fontsize=8)
        ax.set_yticks(range(len(tags)), [UPOS[tag] for tag in tags], fontsize=7)
        layer_ticks(ax.xaxis, average.layers, fontsize=7)
        if number + across >= len(maps):
            ax.set_xlabel("layer", fontsize=8)
            ax.tick_params(labelbottom=True)
    figure.colorbar(image, ax=axes.ravel().tolist(), label="deep share", fraction=0.04)
    return figure


def _lines(example: Example) -> list[tuple[int, int, str]]:
    """Row, column and text of each token, broken into lines at newlines and at the width."""
    row = column = 0
    placed = []
    for token in example.tokens:
        shown = (c if c.isprintable() else " " for c in token.replace("\n", "↵"))
        text = "".join(shown)[:WIDTH]
        if column + len(text) > WIDTH:
            row, column = row + 1, 0
        placed.append((row, column, text))
        column += len(text)
        if "\n" in token:
            row, column = row + 1, 0
    return placed
