"""Figures of parts of speech: deep share by tag and layer, and its spread by tag."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from dualpath_cli.output.colors import DEEP, MUTED, WIDE
from dualpath_cli.output.figures import heat_map, layer_ticks, panels, plain
from dualpath_cli.study.classes import UPOS
from dualpath_cli.study.routing.summary import LEAST_TOKENS, Summary, tag_box
from dualpath_cli.study.routing.sums import SHARE_BINS, Sums


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
