"""The figures of a comparison: quality against parameters, loss against tokens and hours."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualpath_cli.compare.configurations import FAMILIES, Configuration, Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.places import places
from dualpath_cli.compare.quality import COUNTS, quality
from dualpath_cli.output.colors import FAMILY_COLORS, MUTED, shades
from dualpath_cli.output.figures import panels, plain

DASHES = ("-", "--", "-.", ":")
START = 0.1
"""Share of a run whose losses, far above all that follows, do not set the scale."""
TOKENS, LOSS, HOURS = 0, 1, 2
"""Places in a point of a curve."""

Floats = npt.NDArray[np.float64]


def draw(groups: Sequence[Group], differences: Sequence[Difference]) -> dict[str, Figure | None]:
    """Returns the figures by name, None where there are no numbers for one."""
    trained = [group for group in groups if any(c.runs for c in group.configurations)]
    return {
        "quality": quality(groups),
        "places": places(groups, differences),
        "tokens": _against_tokens(trained) if trained else None,
        "hours": _against_hours(trained) if trained else None,
    }


def _against_tokens(groups: Sequence[Group]) -> Figure:
    """Training loss, a column a group; below it what it is less that of the baseline."""
    compared = any(group.baselines for group in groups)
    figure, axes = panels(7.4 * len(groups), 7.2 if compared else 4.2, 1 + compared, len(groups))
    for group, column in zip(groups, axes.T, strict=True):
        _losses(column[0], group, TOKENS)
        column[-1].set_xlabel("training tokens")
        for ax in column:
            ax.xaxis.set_major_formatter(COUNTS)
        if group.baselines:
            _differences(column[1], group, group.baselines[0])
        elif compared:
            column[1].set_axis_off()
    return figure


def _against_hours(groups: Sequence[Group]) -> Figure:
    figure, axes = panels(7.4 * len(groups), 4.2, 1, len(groups))
    for group, ax in zip(groups, axes[0], strict=True):
        _losses(ax, group, HOURS)
        ax.set_xlabel("measured hours of training")
    return figure


def _losses(ax: Axes, group: Group, along: int) -> None:
    """A line a configuration, with its legend."""
    shown = []
    for c, color, dashes in _styles(group):
        points = shared_points([c])[0]
        if not points.shape[1]:
            continue  # its seeds were logged at different steps
        x = points[..., along].mean(0)
        _line(ax, x, points[..., LOSS], color, dashes, c.name)
        shown.append(points[:, x >= START * x[-1], LOSS])
    _scale(ax, shown)
    ax.set(title=group.name, ylabel="training loss (nats per token)")
    ax.title.set_fontsize(9)
    if shown:
        ax.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain(ax)


def _differences(ax: Axes, group: Group, baseline: Configuration) -> None:
    """A line a configuration that has a seed of the baseline, which saw the same text."""
    shown = [np.zeros((1, 1))]
    for c, color, dashes in _styles(group):
        if c is baseline or not set(c.seeds) & set(baseline.seeds):
            continue
        ours, theirs = shared_points([c, baseline])
        if not ours.shape[1]:
            continue
        x, gaps = ours[..., TOKENS].mean(0), ours[..., LOSS] - theirs[..., LOSS]
        _line(ax, x, gaps, color, dashes, c.name)
        shown.append(gaps[:, x >= START * x[-1]])
    _scale(ax, shown)
    ax.axhline(0, color=MUTED, linewidth=0.8)
    # A name may be longer than the axis is high or wide; there is room to its right.
    ax.set_title(f"less that of {baseline.name}, same seed", loc="left", fontsize=9)
    ax.set_ylabel("difference (nats per token)")
    plain(ax)


def _styles(group: Group) -> list[tuple[Configuration, str, str]]:
    """Each configuration with a shade of its family's colour, and dashes unlike its neighbours'."""
    return [
        style
        for family in FAMILIES
        if (its := [c for c in group.configurations if c.family == family])
        for style in zip(its, shades(FAMILY_COLORS[family], len(its)), cycle(DASHES), strict=False)
    ]


def _line(ax: Axes, x: Floats, values_SP: Floats, color: str, dashes: str, name: str) -> None:
    """The mean over seeds, and a band from the lowest to the highest."""
    ax.fill_between(x, values_SP.min(0), values_SP.max(0), color=color, alpha=0.12, linewidth=0)
    label = name.removeprefix("_")  # matplotlib hides what begins with one
    ax.plot(x, values_SP.mean(0), color=color, linestyle=dashes, linewidth=1.1, label=label)


def _scale(ax: Axes, shown: Sequence[Floats]) -> None:
    if not shown:
        return
    lowest, highest = min(v.min() for v in shown), max(v.max() for v in shown)
    room = 0.04 * (highest - lowest) or 0.1
    ax.set_ylim(lowest - room, highest + room)


def shared_points(configurations: Sequence[Configuration]) -> list[Floats]:
    """Each configuration's points at the seeds and tokens that all of them have: (S, P, 3).

    Runs have theirs at the same tokens, unless they logged at other steps.
    """
    seeds = set(configurations[0].seeds).intersection(*(c.seeds for c in configurations))
    curves = [
        [{point[TOKENS]: point for point in run.curve} for run in c.runs if run.seed in seeds]
        for c in configurations
    ]
    first = curves[0][0]
    tokens = sorted(set(first).intersection(*(curve for part in curves for curve in part)))
    return [
        np.reshape([[curve[place] for place in tokens] for curve in part], (len(part), -1, 3))
        if tokens
        else np.zeros((len(part), 0, 3))
        for part in curves
    ]
