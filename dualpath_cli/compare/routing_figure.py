"""The figure of the routing of several models, the paper's `path_alignment`."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dualpath_cli.compare.configurations import Group, partition
from dualpath_cli.compare.figures import styles
from dualpath_cli.compare.studies import Record
from dualpath_cli.report.figures import MUTED, legend_name, panels, plain

CAPTION = (
    "Deep share, and cosine of both paths' updates, in each layer: means over runs, "
    "sources and repetitions of a core."
)


def draw(groups: Sequence[Group], rows: Sequence[Record]) -> Figure | None:
    """Deep share and cosine of the paths' updates against layers: two panels a group, a
    line a configuration.

    The paper's figure `path_alignment`. `rows` are those of routing.csv.
    """
    shared = [_of_shared_sources(group, rows) for group in groups]
    count = sum(map(bool, shared))
    if not count:
        return None

    figure, axes = panels(8.2, 3.0 * count, count, 2)
    in_order = iter(axes)
    for group, its_rows in zip(groups, shared, strict=True):
        if not its_rows:
            continue
        share_ax, cosine_ax = next(in_order)
        _draw_lines(share_ax, group, its_rows, "deep_share", even=0.5)
        share_ax.set_title(group.name, fontsize=9)
        share_ax.set_ylabel("deep share")

        _draw_lines(cosine_ax, group, its_rows, "cosine", even=0.0)
        cosine_ax.set_ylabel("cosine of the paths' updates")
        corner = (1.0, 1.0)
        cosine_ax.legend(
            frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=corner
        )
    return figure


def _of_shared_sources(group: Group, rows: Sequence[Record]) -> dict[str, list[Record]]:
    """A group's rows by configuration, of the sources that all of these have."""
    own = [row for row in rows if row["group"] == group.name]
    by_source = partition(own, itemgetter("source"))
    names = {row["configuration"] for row in own}
    shared = [
        row
        for its_rows in by_source.values()
        if {row["configuration"] for row in its_rows} == names
        for row in its_rows
    ]
    return partition(shared, itemgetter("configuration"))


def _draw_lines(
    ax: Axes,
    group: Group,
    rows: Mapping[str, Sequence[Record]],
    name: str,
    even: float,
) -> None:
    """A line a configuration: the mean over its rows of a layer. `even` is marked."""
    for c, color, dashes in styles(group):
        by_layer = partition(rows.get(c.name, ()), itemgetter("layer"))
        layers = sorted(by_layer)
        if layers:
            ax.plot(
                layers,
                [fmean(row[name] for row in by_layer[layer]) for layer in layers],
                color=color,
                linestyle=dashes,
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=legend_name(c.name),
            )

    ax.axhline(even, color=MUTED, linewidth=0.8, linestyle=":")
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(ax)
