"""Figures over layers: deep share and cosine, steps, polarisation, classes, gates, experts.

Shapes: L layers with gates, S sources.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dualpath_cli.output.colors import DEEP, INK, MUTED, SOURCES, shades
from dualpath_cli.output.figures import heat_map, layer_ticks, panels, plain
from dualpath_cli.statistics.bootstrap import Floats
from dualpath_cli.study.classes import TokenClass
from dualpath_cli.study.routing.experts import expert_loads
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.routing.sums import CONTRIBUTION_BINS, CONTRIBUTION_END, CORNER, Sums


def depth(lines: Mapping[str, Summary], untrained: Summary) -> Figure:
    """Deep share and cosine per layer: a line each, and their mean where it has a meaning.

    `untrained` is the mean over sources, or over runs as well, of the model before training.

    The paper's figure `path_alignment`, there with a line a checkpoint.
    """
    figure, axes = panels(8.2, 3.0, 1, 2)
    for ax, name, title, even in (
        (axes[0, 0], "deep_share", "deep share", 0.5),
        (axes[0, 1], "cosine", "cosine of the paths' updates", 0),
    ):
        for color, (label, line) in zip(cycle(SOURCES), lines.items(), strict=False):
            _line(ax, line, line.means[name], color, label)
        if len(lines) > 1 and len({line.layers for line in lines.values()}) == 1:
            mean = Summary.average(list(lines.values()))
            ax.plot(mean.layers, mean.means[name][0], color=INK, linewidth=2.2, label="mean")
        ax.plot(untrained.layers, untrained.means[name][0], "--", color=MUTED, linewidth=1.2,
                label="untrained")  # fmt: skip
        _layer_axis(ax, max((line.layers for line in lines.values()), key=len), title)
        ax.axhline(even, color=MUTED, linewidth=0.8, linestyle=":")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def steps(lines: Mapping[str, Summary], untrained: Summary) -> Figure:
    """What each step of the deep path does, per layer: a row of panels a line, a colour a step.

    The size of its update on a logarithmic scale and, from the second step on, the cosine of the
    update and the one before it; dashed of the model before training.
    """
    most = max(line.loops for line in lines.values())
    kinds = [("step_size", "size of the update beside the state", 1)]
    kinds += [("step_cosine", "cosine with the update before it", 2)] if most > 1 else []
    figure, axes = panels(4.1 * len(kinds), 0.4 + 2.4 * len(lines), len(lines), len(kinds),
                          sharex=True, sharey="col")  # fmt: skip
    for row, (label, line) in zip(axes, lines.items(), strict=True):
        for ax, (kind, title, first) in zip(row, kinds, strict=True):
            _layer_axis(ax, line.layers, title if ax in axes[0] else "")
            for k, color in enumerate(shades(DEEP, most), 1):
                name = f"{kind}_{k}"
                if k < first or name not in line.means:
                    continue
                _line(ax, line, line.means[name], color, f"step {k}")
                if name in untrained.means:
                    ax.plot(untrained.layers, untrained.means[name][0], "--", color=color,
                            linewidth=1.2)  # fmt: skip
            if kind == "step_size":
                ax.set(yscale="log", ylabel=label)
            if ax not in axes[-1]:
                ax.set(xlabel="")
    axes[0, 0].plot([], [], "--", color=MUTED, linewidth=1.2, label="untrained")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def polarisation(lines: Mapping[str, Summary]) -> Figure:
    """How far apart a token's gates are, and how many tokens are in a corner, per layer."""
    figure, axes = panels(7.2, 3.0, 1, 2)
    gap, corner = axes[0]
    for color, (label, line) in zip(cycle(SOURCES), lines.items(), strict=False):
        _line(gap, line, line.means["gate_difference"], color, label)
        for name, style in (("only_deep", "-"), ("only_wide", "--")):
            _line(corner, line, line.means[name], color, None, style)
    corner.plot([], [], "-", color=MUTED, label="the deep one is open")
    corner.plot([], [], "--", color=MUTED, label="the wide one is open")
    layers = max((line.layers for line in lines.values()), key=len)
    _layer_axis(gap, layers, r"mean $|g_d - g_w|$")
    _layer_axis(corner, layers, f"tokens with one gate above {1 - CORNER:g}, one below {CORNER:g}")
    shares = [line.means[name] for line in lines.values() for name in ("only_deep", "only_wide")]
    if not any(share[0].any() for share in shares):
        corner.text(0.5, 0.5, "no such token", transform=corner.transAxes, ha="center")
    for ax in (gap, corner):
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False, fontsize=8)
    return figure


def classes(lines: Mapping[str, Summary], chosen: Sequence[TokenClass]) -> Figure | None:
    """Deep share of classes minus that of other tokens, by layer: a panel a class, a line each."""
    if not chosen:
        return None
    figure, axes = panels(0.8 + 3.2 * len(chosen), 3.0, 1, len(chosen), sharey=True)
    for ax, token_class in zip(axes[0], chosen, strict=True):
        for color, (label, line) in zip(cycle(SOURCES), lines.items(), strict=False):
            _line(ax, line, line.class_differences[token_class], color, label)
        _layer_axis(ax, line.layers, f"{token_class.name} ({', '.join(token_class.upos)})")
        ax.axhline(0, color=MUTED, linewidth=0.8, linestyle=":")
    axes[0, 0].set_ylabel("deep share minus that of other tokens", fontsize=8)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def bands(sums: Mapping[str, Sums], average: Summary) -> Figure:
    """Joint densities in bands of layers, averaged over sources: gates, and what they let through.

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
            image = _square(ax, densities[name], extent, end, _top(densities.values()))
            ax.set(xlabel=label)
        _scale(figure, image, row)
    for ax, (name, places) in zip(axes[0], names.items(), strict=True):
        ax.set(title=f"{name}: {average.named(places)}")
    axes[0, 0].set_ylabel("$g_d$")
    axes[1, 0].set_ylabel(r"$\log(1 + g_d \|\Delta_d\|)$")
    for ax in axes.flat:
        ax.title.set_fontsize(9)
    return figure


def grid(sums: Mapping[str, Sums], layers: tuple[int, ...]) -> Figure:
    """Joint density of the gates in each layer (across) and source (down), as in the appendix."""
    size = 1.25 if len(layers) <= 8 else 0.6
    figure, axes = panels(
        size * len(layers) + 1.7, size * len(sums) + 0.6, len(sums), len(layers),
        square=True, sharex=True, sharey=True,
    )  # fmt: skip
    top = _top(_density(layer) for source in sums.values() for layer in source["gate_density"])
    for row, (name, source) in zip(axes, sums.items(), strict=True):
        for place, ax in enumerate(row):
            image = _square(ax, _density(source["gate_density"][place]), 1.0, 1.0, top)
            ax.tick_params(labelsize=7)
            ax.set(xticks=[0, 1], yticks=[0, 1])
        row[0].set_ylabel(f"{name}\n$g_d$", fontsize=8)
    for place, layer in enumerate(layers):
        axes[0, place].set_title(f"layer {layer}" if len(layers) <= 8 else str(layer), fontsize=8)
        axes[-1, place].set_xlabel("$g_w$", fontsize=8)
    _scale(figure, image, axes)
    return figure


def loads(sums: Mapping[str, Sums], layers: Sequence[int]) -> Figure | None:
    """Load of each expert over the mean of its layer, by layer: a map a source.

    1 is an even load; from 2 on all have one colour. Grey where a layer has no such expert. None
    for a model without experts.
    """
    shown = {name: expert_loads(source) * source["experts"][:, None]
             for name, source in sums.items() if source["experts"].any()}  # fmt: skip
    if not shown:
        return None
    most = max(values.shape[1] for values in shown.values())
    width = min(6.0, max(1.8, 0.22 * len(layers) + 0.6)) * len(shown) + 1.2
    figure, axes = panels(width, 0.16 * most + 1.2, 1, len(shown), sharey=True)
    for ax, (name, values) in zip(axes[0], shown.items(), strict=True):
        image = heat_map(ax, values.T, 1.0, 1.0)
        ax.set_facecolor("#B9BDC7")
        ax.set_title(name, fontsize=8)
        ax.set_yticks(range(most), range(most), fontsize=7)
        layer_ticks(ax.xaxis, layers, fontsize=7)
        ax.set_xlabel("layer", fontsize=8)
    axes[0, 0].set_ylabel("expert", fontsize=8)
    figure.colorbar(image, ax=axes.ravel().tolist(), label="load over the mean", fraction=0.04,
                    extend="max")  # fmt: skip
    return figure


def _line(
    ax: Axes, line: Summary, values: Floats, color: str, label: str | None, style: str = "-"
) -> None:
    low, high = line.interval(values)
    ax.fill_between(line.layers, low, high, color=color, alpha=0.18, linewidth=0)
    ax.plot(line.layers, values[0], style, color=color, marker="o", markersize=3,
            linewidth=1.2, label=label)  # fmt: skip


def _layer_axis(ax: Axes, layers: tuple[int, ...], title: str) -> None:
    plain(ax)
    step = 1 if len(layers) <= 8 else 2
    ax.set(xlabel="layer", xticks=layers[::step])
    ax.set_title(title, fontsize=9)


def _density(counts: Floats) -> Floats:
    """Share of the tokens in each bin."""
    return np.asarray(counts / max(1.0, counts.sum()))


def _end_of(densities: Any) -> float:
    """Where the axes of contributions end: just past the last bin that is not empty."""
    used = [np.flatnonzero(density.sum(0) + density.sum(1)) for density in densities]
    last = max((int(bins[-1]) for bins in used if len(bins)), default=0)
    return CONTRIBUTION_END * min(CONTRIBUTION_BINS, int(1.05 * last) + 2) / CONTRIBUTION_BINS


def _top(densities: Iterable[Floats]) -> float:
    return max(float(density.max()) for density in densities) or 1.0


def _square(ax: Axes, density: Floats, extent: float, end: float, top: float) -> AxesImage:
    """A density (deep, wide) with equal axes and the diagonal of equal weights."""
    image = ax.imshow(
        density, origin="lower", extent=(0, extent, 0, extent), cmap="cividis",
        norm=LogNorm(top / 1000, top, clip=True), interpolation="nearest",
    )  # fmt: skip
    ax.plot([0, end], [0, end], color="white", linewidth=0.7, linestyle="--")
    ax.set(xlim=(0, end), ylim=(0, end), aspect="equal")
    return image


def _scale(figure: Figure, image: AxesImage, axes: Any) -> None:
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), fraction=0.03)
    bar.set_label("share of tokens in a bin", fontsize=8)
    bar.ax.tick_params(labelsize=7)
