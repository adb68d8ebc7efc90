"""Figures of tokens: a text, layer by token, two sources aligned, and of parts of speech."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dualpath_cli.output.colors import DEEP, INK, MUTED, WIDE, share_colormap
from dualpath_cli.output.figures import heat_map, layer_ticks, panels, plain
from dualpath_cli.study.classes import UPOS
from dualpath_cli.study.routing.page.examples import Example, share_reach
from dualpath_cli.study.routing.summary import LEAST_TOKENS, Summary, tag_box
from dualpath_cli.study.routing.sums import SHARE_BINS, Sums

MOST_TOKENS, MOST_COLUMNS = 160, 44
"""Tokens of an example that are drawn, as text and layer by layer."""
WIDTH = 108
"""Characters in a line of text."""


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
    labelled = [{**box, "label": tag} for box, tag in quantiles]
    figure, axes = panels(4.2, 0.2 * len(tags) + 0.8)
    ax = axes[0, 0]
    drawn = ax.bxp(labelled, orientation="horizontal", showfliers=False, patch_artist=True,
                   widths=0.6)  # fmt: skip
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
