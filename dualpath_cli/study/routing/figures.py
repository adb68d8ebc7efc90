"""Figures of a model's routing, over layers and of tokens.

Shapes: L layers with gates, S sources.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from dualpath_cli.output.figures import (
    DEEP,
    INK,
    MUTED,
    SOURCES,
    WIDE,
    heat_map,
    layer_ticks,
    panels,
    plain,
    shades,
    share_colormap,
)
from dualpath_cli.statistics.bootstrap import Floats
from dualpath_cli.study.parts_of_speech import UPOS, TokenClass
from dualpath_cli.study.routing.readouts import (
    CONTRIBUTION_BINS,
    CONTRIBUTION_END,
    CORNER,
    SHARE_BINS,
    Sums,
)
from dualpath_cli.study.routing.summary import LEAST_TOKENS, Summary, expert_loads, tag_box
from dualpath_cli.study.routing.tokens import Example, share_reach

MOST_TOKENS, MOST_COLUMNS = 160, 44
"""Tokens of an example that are drawn, as text and layer by layer."""
WIDTH = 108  # characters in a line of text


def depth(lines: Mapping[str, Summary], untrained: Summary) -> Figure:
    """Deep share and cosine per layer: a line each, and their mean where it has a meaning.

    `untrained` is the mean over sources, or over runs as well, of the model before training. The
    paper's figure `path_alignment`, there with a line a checkpoint.
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
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center",
                  frameon=False, fontsize=8)  # fmt: skip
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
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center",
                  frameon=False, fontsize=8)  # fmt: skip
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
        ax.set_title(_title(example, MOST_TOKENS), fontsize=8, loc="left")
        for (row, column, text), share in zip(places, shares, strict=False):
            color = colors(0.5 + (float(share) - 0.5) / (2 * reach))
            box = Rectangle((column, row - 0.46), len(text), 0.92, facecolor=color, linewidth=0)
            ax.add_patch(box)
            ax.text(column, row, text, family="monospace", fontsize=7.6, va="center",
                    color=INK, parse_math=False)  # fmt: skip
    _bar(figure, axes, "deep share, mean over layers", reach)
    return figure


def layer_grid(examples: Sequence[Example], layers: Sequence[int]) -> Figure:
    """Deep share of each layer (up) and token (across), as in the paper's `sequence_grid`."""
    cut = [example.first(MOST_COLUMNS) for example in examples]
    width = max(7.2, 0.16 * max(len(example.tokens) for example in cut) + 1.5)
    height = len(cut) * (0.2 * len(layers) + 1.3)
    figure, axes = panels(width, height, len(cut))
    reach = share_reach([example.deep_share for example in cut])
    for ax, example in zip(axes[:, 0], cut, strict=True):
        heat_map(ax, example.deep_share.T, 0.5, reach, origin="lower")
        ax.set_title(_title(example, MOST_COLUMNS), fontsize=8, loc="left")
        ax.set_xticks(range(len(example.tokens)))
        ax.set_xticklabels([_shown(token) for token in example.tokens], rotation=90, fontsize=6.5,
                           family="monospace", parse_math=False)  # fmt: skip
        layer_ticks(ax.yaxis, layers)
        ax.set_ylabel("layer")
    _bar(figure, axes, "deep share", reach)
    return figure


def aligned(sources: Mapping[str, Summary], anchor: str) -> Figure | None:
    """Deep share of one source less that of another, by layer and offset from the anchor.

    The paper's figure `sequence_grid`, panel c. A dot says that the 95 % interval holds zero; what
    too few sequences reach is left out.
    """
    gaps = {
        (one, other): sources[one].aligned - sources[other].aligned
        for one, other in combinations(sources, 2)
    }
    gaps = {pair: gap for pair, gap in gaps.items() if np.isfinite(gap[0]).any()}
    if not gaps:
        return None
    height = 0.22 * len(next(iter(sources.values())).layers) + 1.2
    figure, axes = panels(7.2, height * len(gaps) + 0.2, len(gaps))
    most = max(float(np.nanmax(np.abs(gap[0]))) for gap in gaps.values()) or 1.0
    for ax, ((one, other), gap) in zip(axes[:, 0], gaps.items(), strict=True):
        first = sources[one]
        (known,) = np.isfinite(gap[0, :, 0]).nonzero()
        known = np.arange(known[0], known[-1] + 1)
        low, high = first.interval(gap[:, known])
        offsets = first.offsets[known]
        ends = (offsets[0] - 0.5, offsets[-1] + 0.5, -0.5, len(first.layers) - 0.5)
        image = heat_map(ax, gap[0, known].T, 0.0, most, origin="lower", extent=ends)
        unsure, layer = ((low <= 0) & (high >= 0)).nonzero()
        ax.plot(offsets[unsure], layer, ".", color=MUTED, markersize=1.5)
        ax.axvline(0, color=MUTED, linewidth=0.8, linestyle=":")
        ax.set_title(f"{one} − {other} (dot: the 95 % interval holds 0)", fontsize=8, loc="left")
        ax.set(ylabel="layer", xlabel=f"tokens after the end of '{anchor}'")
        layer_ticks(ax.yaxis, first.layers)
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), fraction=0.03)
    bar.set_label("difference of deep share", fontsize=8)
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


def boxes(sums: Mapping[str, Sums], average: Summary) -> Figure | None:
    """Spread of the deep share by part of speech, over all tokens, layers and sources.

    The paper's figure `pos_main`, panel e: boxes from quartile to quartile, whiskers from 5 to
    95 %, sorted by the median, the deepest at the bottom.
    """
    tags = average.known_tags
    if not tags:
        return None
    # A source weighs as much as another; what it has too few tokens of, it says nothing of.
    shares = np.zeros((len(UPOS), SHARE_BINS))
    for source in sums.values():
        tokens = source["tag_tokens"][0]
        enough = tokens >= LEAST_TOKENS
        shares[enough] += (source["tag_shares"] / tokens.clip(1)[:, None])[enough]
    quantiles = [(tag_box(shares[tag]), UPOS[tag]) for tag in tags]
    quantiles.sort(key=lambda pair: pair[0]["med"])
    figure, axes = panels(4.2, 0.2 * len(tags) + 0.8)
    ax = axes[0, 0]
    drawn = ax.bxp([{**box, "label": tag} for box, tag in quantiles], orientation="horizontal",
                   showfliers=False, patch_artist=True, widths=0.6)  # fmt: skip
    for patch, (box, _) in zip(drawn["boxes"], quantiles, strict=True):
        patch.set(facecolor=DEEP if box["med"] > 0.5 else WIDE, alpha=0.55, linewidth=0.6)
    for kind in ("medians", "whiskers", "caps"):
        for line in drawn[kind]:
            line.set(color=MUTED, linewidth=0.9)
    ax.axvline(0.5, color=MUTED, linewidth=0.8, linestyle=":")
    ax.invert_yaxis()
    ax.set(xlabel="deep share", xlim=(0, 1))
    ax.tick_params(labelsize=7)
    plain(ax)
    return figure


def _title(example: Example, most: int) -> str:
    cut = f", first {most} of {example.length:,} tokens" if example.length > most else ""
    return f"{example.source}, sequence {example.number}{cut}"


def _lines(example: Example) -> list[tuple[int, int, str]]:
    """Row, column and text of each token, broken into lines at newlines and at the width."""
    row = column = 0
    placed = []
    for token in example.tokens:
        text = _shown(token, blank=" ")[:WIDTH]
        if column + len(text) > WIDTH:
            row, column = row + 1, 0
        placed.append((row, column, text))
        column += len(text)
        if "\n" in token:
            row, column = row + 1, 0
    return placed


def _shown(token: str, blank: str = "·") -> str:
    visible = token.replace(" ", blank).replace("\n", "↵")
    return "".join(c if c.isprintable() else " " for c in visible)


def _bar(figure: Figure, axes: Any, label: str, reach: float) -> None:
    low, high = 0.5 - reach, 0.5 + reach
    scale = ScalarMappable(Normalize(low, high), share_colormap())
    bar = figure.colorbar(scale, ax=axes.ravel().tolist(), location="bottom", aspect=45,
                          shrink=0.5, pad=0.02, extend="both" if reach < 0.5 else "neither",
                          label=label)  # fmt: skip
    bar.set_ticks([low, 0.5, high], labels=[f"{low:.2f} wide", "0.5", f"{high:.2f} deep"])
    bar.ax.tick_params(labelsize=7)
    bar.ax.xaxis.label.set_fontsize(8)
