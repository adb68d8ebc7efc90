"""The figures of `dualpath routing`: by depth, of gates, by part of speech, of a
core."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.report.figures import (
    INK,
    MUTED,
    heat_map,
    layer_ticks,
    legend_name,
    panels,
    plain,
    source_styles,
    thinned,
)
from dualpath_cli.study.parts_of_speech import UPOS
from dualpath_cli.study.routing.readouts import (
    CONTRIBUTION_BINS,
    CONTRIBUTION_END,
    Sums,
)
from dualpath_cli.study.routing.summary import Summary

NO_DATA = "#B9BDC7"  # grey, where a source has too few tokens
# of a panel of one layer's gates, in inches: small enough for sixteen in a row, but
# with more pixels than bins
LEAST_SIDE = 0.8
MOST_SIDE = 2.2
ROW_WIDTH = 16.0  # inches, of a row of panels that are not the largest or smallest
BOXES_WIDTH = 2.4  # inches, of the box plot beside maps


def depth_figure(sources: Mapping[str, Summary], mean: Summary) -> Figure:
    """Deep share and cosine per layer: a line a source, and their mean.

    The paper's figure `path_alignment`, there with a line a checkpoint.
    """
    figure, axes = panels(8.2, 3.0, 1, 2)
    share_ax, cosine_ax = axes[0]
    _plot_depth(share_ax, "deep_share", sources, mean)
    share_ax.set_title("deep share", fontsize=9)
    share_ax.axhline(0.5, color=MUTED, linewidth=0.8, linestyle=":")

    _plot_depth(cosine_ax, "cosine", sources, mean)
    cosine_ax.set_title("cosine of the paths' updates", fontsize=9)
    cosine_ax.axhline(0, color=MUTED, linewidth=0.8, linestyle=":")

    figure.legend(
        *share_ax.get_legend_handles_labels(),
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
    return figure


def _plot_depth(
    ax: Axes, readout: str, sources: Mapping[str, Summary], mean: Summary
) -> None:
    for style, (name, summary) in zip(source_styles(), sources.items(), strict=False):
        values = summary.means[readout]
        low, high = summary.interval(values)
        x = summary.axis
        y = values[0]
        ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
        ax.plot(x, y, **style, markersize=3, linewidth=1.2, label=legend_name(name))

    if len(sources) > 1:
        y = mean.means[readout][0]
        ax.plot(mean.axis, y, color=INK, linewidth=2.2, label="mean")

    plain(ax)
    ax.set(xlabel="layer", xticks=thinned(mean.axis, 8))
    if mean.core:
        labels = [str(label) for label in thinned(mean.layers, 8)]
        ax.set_xticklabels(labels, rotation=90)


CORE_TITLES = {
    "core_weights": "weight in the core's output",
    "core_sizes": "size of the update",
    "core_cosines": "cosine with the update before",
}


def core_figure(sources: Mapping[str, Summary], mean: Summary) -> Figure | None:
    """Weight, size and cosine of each repetition of the core: a line a source."""
    if not mean.core:
        return None

    figure, axes = panels(8.2, 3.0, 1, len(CORE_TITLES))
    for ax, (readout, title) in zip(axes[0], CORE_TITLES.items(), strict=True):
        styled = zip(source_styles(), sources.items(), strict=False)
        for style, (name, summary) in styled:
            values = summary.core[readout]
            low, high = summary.interval(values)
            x = range(1, len(low) + 1)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
            ax.plot(x, values[0], **style, markersize=3, label=legend_name(name))

        plain(ax)
        ax.set(xlabel="repetition", xticks=thinned(x, 8))
        ax.set_title(title, fontsize=9)

    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
    return figure


def density_figure(sums: Mapping[str, Sums], average: Summary) -> Figure:
    """Joint densities of gates and of gated updates, in bands of layers, averaged over
    sources.

    The paper's figure `gate_density`: (g_w, g_d) above, log(1 + g ‖Δ‖) below.
    """
    bands = average.bands
    width = 2.3 * len(bands) + 0.8
    figure, axes = panels(width, 4.6, 2, len(bands), square=True)
    gate_axes, contribution_axes = axes

    gates = _densities("gate_density", sums, bands)
    _draw_densities(figure, gate_axes, gates, extent=1.0, end=1.0)
    contributions = _densities("contribution_density", sums, bands)
    end = _end_of_contributions(contributions)
    _draw_densities(figure, contribution_axes, contributions, CONTRIBUTION_END, end)

    for ax, (name, places) in zip(gate_axes, bands.items(), strict=True):
        ax.set(title=f"{name}: {average.layers_text(places)}", xlabel="$g_w$")
    for ax in contribution_axes:
        ax.set(xlabel=r"$\log(1 + g_w \|\Delta_w\|)$")
    gate_axes[0].set_ylabel("$g_d$")
    contribution_axes[0].set_ylabel(r"$\log(1 + g_d \|\Delta_d\|)$")
    for ax in axes.flat:
        ax.title.set_fontsize(9)
    return figure


def density_by_layer_figure(sums: Mapping[str, Sums], average: Summary) -> Figure:
    """Joint densities of the gates in each layer: a row a source, a column a layer.

    The paper's figure `gate_density_layers`: (g_w, g_d). All panels have the same
    colours, of the share of a source's tokens in a bin.
    """
    places_by_name = {str(label): [n] for n, label in enumerate(average.layers)}
    densities: list[Floats] = []
    for name, source_sums in sums.items():
        densities += _densities("gate_density", {name: source_sums}, places_by_name)

    across = len(places_by_name)
    down = len(sums)
    side = min(MOST_SIDE, max(LEAST_SIDE, ROW_WIDTH / across))
    width = side * across + 1.6
    height = side * down + 0.8
    figure, axes = panels(
        width, height, down, across, square=True, sharex=True, sharey=True
    )
    _draw_densities(figure, list(axes.flat), densities, extent=1.0, end=1.0)

    for ax, layer in zip(axes[0], places_by_name, strict=True):
        ax.set_title(f"layer {layer}", fontsize=8)
    for ax, name in zip(axes[:, 0], sums, strict=True):
        ax.set_ylabel(f"{name}\n$g_d$", fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("$g_w$", fontsize=8)
    for ax in axes.flat:
        ax.set(xticks=(0, 1), yticks=(0, 1))
        ax.tick_params(labelsize=7)
    return figure


def _densities(
    name: str, sums: Mapping[str, Sums], bands: Mapping[str, Sequence[int]]
) -> list[Floats]:
    """The density in each band, (deep, wide), averaged over sources."""
    # Each source counts alike, however many tokens it has.
    densities = []
    for places in bands.values():
        of_sources = []
        for source_sums in sums.values():
            counts = source_sums[name][places].sum(0)
            total = max(1.0, counts.sum())
            of_sources.append(counts / total)
        densities.append(np.asarray(np.mean(of_sources, 0)))

    return densities


def _end_of_contributions(densities: Sequence[Floats]) -> float:
    """The end of the axes of contributions, just past the last bin with a token."""
    has_tokens = np.any(densities, axis=0)  # (deep, wide)
    on_either_axis = has_tokens.any(0) | has_tokens.any(1)
    last = int(np.flatnonzero(on_either_axis).max(initial=0))
    bins = min(CONTRIBUTION_BINS, int(1.05 * last) + 2)
    return CONTRIBUTION_END * bins / CONTRIBUTION_BINS


def _draw_densities(
    figure: Figure,
    axes: Sequence[Axes],
    densities: Sequence[Floats],
    extent: float,
    end: float,
) -> None:
    """Draws densities in the same colours, with a bar beside all axes.

    `extent` is the end of the bins, `end` that of the axes.
    """
    most = max(float(density.max()) for density in densities) or 1.0
    for ax, density in zip(axes, densities, strict=True):
        image = _draw_density(ax, density, extent, end, most)

    bar = figure.colorbar(image, ax=list(axes), fraction=0.03)
    bar.set_label("share of tokens in a bin", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _draw_density(
    ax: Axes, density: Floats, extent: float, end: float, most: float
) -> AxesImage:
    """A density (deep, wide) with equal axes and the diagonal of equal weights."""
    # Densities span decades: what is below a thousandth of the largest is not told
    # apart.
    norm = LogNorm(most / 1000, most, clip=True)
    image = ax.imshow(
        density,
        origin="lower",
        extent=(0, extent, 0, extent),
        cmap="cividis",
        norm=norm,
        interpolation="nearest",
    )
    ax.plot([0, end], [0, end], color="white", linewidth=0.7, linestyle="--")
    ax.set(xlim=(0, end), ylim=(0, end), aspect="equal")
    return image


def part_of_speech_figure(
    sources: Mapping[str, Summary], average: Summary
) -> Figure | None:
    """Mean deep share by part of speech and layer: a map a source, and one of their
    mean; beside them a box a part of speech.

    The paper's figure `pos_main`. Tags of maps are sorted by the mean over sources and
    layers, the deepest at the bottom; one with fewer than ten tokens in a source is
    grey there.
    """
    tags = average.known_tags
    if not tags:
        return None

    summaries = dict(sources)
    if len(sources) > 1:
        summaries["mean of the sources"] = average
    maps = {
        name: summary.tag_means["deep_share"][0, tags]
        for name, summary in summaries.items()
    }
    # All maps have the colours of the share that is furthest from one half. A short
    # source may know no tag.
    reach = float(np.nanmax(np.abs(np.stack(list(maps.values())) - 0.5)))

    # Two or four maps stand in pairs, other numbers in rows of three.
    across = 2 if len(maps) in (2, 4) else min(3, len(maps))
    down = -(-len(maps) // across)
    map_width = min(2.4, max(1.5, 0.3 * len(average.layers)))
    maps_width = map_width * across + 1.8
    height = (0.17 * len(tags) + 0.7) * down
    figure = Figure(figsize=(maps_width + BOXES_WIDTH, height), layout="constrained")
    widths = (maps_width, BOXES_WIDTH)
    parts = figure.subfigures(1, 2, squeeze=False, width_ratios=widths)
    map_part, box_part = parts[0]
    axes = map_part.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat[len(maps) :]:
        ax.axis("off")

    labels = [UPOS[tag] for tag in tags]
    for place, (name, values) in enumerate(maps.items()):
        ax = axes.flat[place]
        image = heat_map(ax, values, 0.5, reach)
        ax.set_facecolor(NO_DATA)
        ax.set_title(name, fontsize=8)
        ax.set_yticks(range(len(tags)), labels, fontsize=7)
        turned = {"rotation": 90} if average.core else {}
        layer_ticks(ax.xaxis, average.layers, fontsize=7, **turned)

        is_lowest = place + across >= len(maps)
        if is_lowest:
            ax.set_xlabel("layer", fontsize=8)
            ax.tick_params(labelbottom=True)

    map_part.colorbar(image, ax=list(axes.flat), label="deep share", fraction=0.04)
    _draw_boxes(box_part.subplots(), list(sources.values()), tags)
    return figure


def _draw_boxes(ax: Axes, summaries: Sequence[Summary], tags: Sequence[int]) -> None:
    """A box for each tag, of its mean deep share in every layer of every source.

    Sorted by the median, the deepest at the bottom. A source counts with the tags of
    which it has enough tokens.
    """
    shares = {}
    for tag in tags:
        means = [summary.tag_means["deep_share"][0, tag] for summary in summaries]
        means_of_all = np.concatenate(means)
        shares[UPOS[tag]] = means_of_all[np.isfinite(means_of_all)]

    names = sorted(shares, key=lambda name: float(np.median(shares[name])))
    ax.boxplot(
        [shares[name] for name in names],
        positions=range(len(names)),
        orientation="horizontal",
        widths=0.6,
        manage_ticks=False,
        medianprops={"color": INK, "linewidth": 1.6},
        flierprops={"markersize": 2},
    )
    ax.axvline(0.5, color=MUTED, linewidth=0.8, linestyle=":")
    plain(ax)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="x", labelsize=7)
    ax.set_xlabel("deep share", fontsize=8)
    ax.set_title("all layers and sources", fontsize=8)
