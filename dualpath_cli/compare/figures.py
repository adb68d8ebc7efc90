"""The figures of a comparison, with families by colour and K by marker.

Quality against parameters, on the validation sets and, as in the paper's figure, on its
benchmarks; differences with their intervals; loss against tokens and measured time.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import isfinite
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.configurations import (
    FAMILIES,
    Configuration,
    Group,
    mean_and_error,
    partition,
)
from dualpath_cli.compare.differences import Difference, pair_of, shown_together
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.compare.studies import SCORE_OF, Record
from dualpath_cli.evaluation.benchmarks import MEANS
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.report.figures import (
    FAMILY_COLORS,
    MUTED,
    legend_name,
    panels,
    plain,
    shades,
)

MARKERS = {
    1: "o",
    2: "^",
    3: "s",
    4: "D",
    5: "p",
    6: "h",
    7: "v",
    8: "*",
    9: "<",
    10: ">",
    12: "P",
    16: "d",
    32: "8",
}
COUNTS = FuncFormatter(lambda value, _: format_size(round(value)))  # 719M, 1.4B
# share of a run whose losses, far above all that follows, do not set the scale
START = 0.1
TOKENS = 0  # places in a point of a curve
LOSS = 1
HOURS = 2
*_, PAPER_MEAN = MEANS  # the mean over all of the paper's benchmarks

Score = tuple[float, float | None]  # the mean over seeds, and its standard error


def captions(
    groups: Sequence[Group], evaluations: Sequence[Record] = ()
) -> dict[str, str]:
    """The captions of the figures by name, in the order of a page."""
    shown = [c for group in groups for c in group.configurations]
    several = any(len(c.seeds) > 1 for c in shown)
    seeds = ": mean over seeds, band from the lowest to the highest" if several else ""
    if any(c.best_rate for c in shown):
        seeds += "; of the tried learning rates, that nearest to the best"
    quality = "Bits per byte against parameters; lower and further left is better."
    means = [paper_means(group, evaluations) for group in groups]
    if any(means):
        quality += " Below, the mean of the paper's 17 benchmarks"
        if any(map(_controls, means)):
            quality += ", with a parabola through PureWide and PureLoop"
        quality += "."
    return {
        "quality": quality,
        "differences": (
            "Differences in bits per byte, left of 0 is better: thin bars are 95 % "
            "intervals, thick ones 90 %; open marks have no test. A margin is grey."
        ),
        "curves": f"Training loss against tokens and against measured time{seeds}.",
    }


def draw(
    groups: Sequence[Group],
    tests: Sequence[Difference],
    evaluations: Sequence[Record],
) -> dict[str, Figure | None]:
    return {
        "quality": quality(groups, evaluations),
        "differences": differences(groups, tests),
        "curves": curves(groups),
    }


def quality(groups: Sequence[Group], evaluations: Sequence[Record] = ()) -> Figure:
    """Bits per byte against parameters: a panel a group.

    A second row has the mean of the paper's benchmarks, where every configuration of a
    group has one among the `evaluations`.
    """
    means = [paper_means(group, evaluations) for group in groups]
    rows = 2 if any(means) else 1
    figure, axes = panels(1.0 + 4.6 * len(groups), 4.6 * rows, rows, len(groups))
    parabolas: list[Line2D] = []
    for group, its_means, column in zip(groups, means, axes.T, strict=True):
        scores = {
            c: (c.mean(AGGREGATE), c.standard_error(AGGREGATE))
            for c in group.configurations
        }
        _draw_quality(column[0], group, scores)
        column[0].set_ylabel(f"bits per byte, {AGGREGATE}")
        single = all(len(c.seeds) == 1 for c in group.configurations)
        title = f"{group.name}, single runs" if single else group.name
        column[0].set_title(title, fontsize=9)

        if its_means:
            _draw_quality(column[1], group, its_means)
            parabolas += _draw_parabola(column[1], its_means)
            column[1].set_ylabel("bits per byte, mean of the paper's 17 benchmarks")
        elif rows == 2:
            column[1].set_axis_off()

    shown = [c for group in groups for c in group.configurations]
    errors = any(len(c.seeds) > 1 for c in shown)
    figure.legend(
        handles=[*_legend(shown), *parabolas[:1]],
        ncols=4 if len(groups) == 1 else 9,
        loc="outside lower center",
        frameon=False,
        fontsize=8,
        handlelength=1.4,
        title_fontsize=8,
        title="bars: one standard error over seeds" if errors else None,
    )
    return figure


def paper_means(
    group: Group, evaluations: Sequence[Record]
) -> dict[Configuration, Score]:
    """The mean of the paper's benchmarks of each configuration.

    Empty unless every configuration has one, all of the same documents, window and
    precision.
    """
    rows = [
        row
        for row in evaluations
        if row["group"] == group.name and row["benchmark"] == PAPER_MEAN
    ]
    for alike in partition(rows, SCORE_OF).values():
        by_name = partition(alike, itemgetter("configuration"))
        if all(c.name in by_name for c in group.configurations):
            return {
                c: mean_and_error([row["score"] for row in by_name[c.name]])
                for c in group.configurations
            }
    return {}


def _draw_quality(
    ax: Axes, group: Group, scores: Mapping[Configuration, Score]
) -> None:
    """A mark a configuration, and a line through those of one alpha."""
    for label, line in _lines(group).items():
        x = [c.parameters for c in line]
        y = [scores[c][0] for c in line]
        ax.plot(x, y, color=FAMILY_COLORS["dual"], linewidth=1.2)
        ax.annotate(
            label,
            (x[0], y[0]),
            xytext=(7, -3),
            zorder=1,
            fontsize=8,
            textcoords="offset points",
            color=FAMILY_COLORS["dual"],
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )

    for c, (mean, error) in scores.items():
        ax.errorbar(
            c.parameters,
            mean,
            yerr=error,
            color=FAMILY_COLORS[c.family],
            marker=_marker(c),
            markersize=7,
            capsize=3,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linestyle="none",
        )

    ax.set(xlabel="parameters")
    ax.xaxis.set_major_formatter(COUNTS)
    ax.locator_params(axis="x", nbins=4)
    ax.margins(x=0.1, y=0.12)
    plain(ax)


def _controls(scores: Mapping[Configuration, Score]) -> list[Configuration]:
    """PureWide and PureLoop, if they have three numbers of parameters, as a parabola
    needs."""
    controls = [c for c in scores if c.family in ("wide", "loop")]
    return controls if len({c.parameters for c in controls}) > 2 else []


def _draw_parabola(ax: Axes, scores: Mapping[Configuration, Score]) -> list[Line2D]:
    """The least-squares parabola of the controls over parameters, as in the paper's
    figure."""
    controls = _controls(scores)
    if not controls:
        return []

    sizes = np.array([c.parameters / 1e6 for c in controls])
    parabola = np.polyfit(sizes, [scores[c][0] for c in controls], 2)
    x = np.linspace(sizes.min(), sizes.max(), 101)
    return ax.plot(
        1e6 * x,
        np.polyval(parabola, x),
        color=MUTED,
        linestyle="--",
        linewidth=1.0,
        zorder=1,
        label="parabola of PureWide, PureLoop",
    )


def _marker(configuration: Configuration) -> str:
    """By K, or R of a repeated core; 1 for one path without loops."""
    return MARKERS.get(_repeats(configuration), "X")


def _repeats(configuration: Configuration) -> int:
    if configuration.family == "core":
        return configuration.core_loops or 1
    return configuration.loops or 1


def _lines(group: Group) -> dict[str, list[Configuration]]:
    """Dual configurations of an alpha, by K; each by itself where several have one
    K."""
    duals = [c for c in group.configurations if c.family == "dual"]
    duals.sort(key=lambda c: c.loops or 0)
    by_alpha = partition(duals, lambda c: f"α {c.share:g}")

    lines = {}
    singles: dict[str, list[Configuration]] = {}
    for alpha, line in by_alpha.items():
        if len({c.loops for c in line}) == len(line):
            lines[alpha] = line
        else:
            singles |= {c.name: [c] for c in line}
    return lines | singles


def _legend(configurations: Sequence[Configuration]) -> list[Line2D]:
    names = {
        "wide": "PureWide",
        "expanded": "expanded",
        "core": "repeated core",
        "loop": "PureLoop",
        "dual": "dual path",
    }
    handles = [
        Line2D([], [], color=FAMILY_COLORS[family], linewidth=5, label=names[family])
        for family in FAMILIES
        if any(c.family == family for c in configurations)
    ]
    markers = {_repeats(c): _marker(c) for c in configurations}
    letters = "K or R" if any(c.family == "core" for c in configurations) else "K"
    for loops, shape in sorted(markers.items()):
        label = f"{letters} = {loops}"
        handles.append(
            Line2D([], [], color=MUTED, marker=shape, linestyle="none", label=label)
        )
    return handles


def differences(groups: Sequence[Group], tests: Sequence[Difference]) -> Figure | None:
    """The differences of aggregates with their intervals: a panel a table of tests."""
    found = [
        row for row in tests if row.measure == AGGREGATE and isfinite(row.difference)
    ]
    panels_of_rows = shown_together(found)
    if not panels_of_rows:
        return None

    heights = [len(rows) + 2.5 for rows in panels_of_rows]
    figure, axes = panels(6.6, 0.32 * sum(heights), len(heights), height_ratios=heights)
    colors = {
        (group.name, c.name): FAMILY_COLORS[c.family]
        for group in groups
        for c in group.configurations
    }
    for ax, rows in zip(axes[:, 0], panels_of_rows, strict=True):
        _draw_differences(
            ax, rows, [colors[row.group, row.configuration] for row in rows]
        )
    return figure


def _draw_differences(
    ax: Axes, rows: Sequence[Difference], colors: Sequence[str]
) -> None:
    """A line a row, the first above."""
    for place, (row, color) in enumerate(zip(rows, colors, strict=True)):
        # The ends are nan where there is no interval, and nothing is drawn.
        intervals = ((row.low, row.high, 1.2), (row.low_90, row.high_90, 3.0))
        for low, high, width in intervals:
            ax.plot(
                [low, high],
                [place, place],
                color=color,
                linewidth=width,
                solid_capstyle="butt",  # others reach beyond the ends
            )

        face = color if row.tested else "white"
        ax.plot(row.difference, place, "o", color=color, markerfacecolor=face)

    ax.axvline(0, color=MUTED, linewidth=0.8)
    if margin := rows[0].margin:
        ax.axvspan(-margin, margin, color=MUTED, alpha=0.1, linewidth=0)

    in_order = rows[0].order is not None
    names = [row.configuration for row in rows]
    if in_order:  # on two lines: long names would leave little room
        names = [pair_of(row).replace(" minus ", "\nminus ") for row in rows]
    ax.set_yticks(range(len(rows)), names, fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_title(rows[0].group, fontsize=9)
    less = "" if in_order else f" minus those of {rows[0].baseline}"
    ax.set_xlabel(f"bits per byte{less}, {AGGREGATE}")
    plain(ax)


def curves(groups: Sequence[Group]) -> Figure:
    """Training loss against tokens, the same minus the baseline's, and against measured
    time."""
    compared = any(group.baselines for group in groups)
    rows = 3 if compared else 2
    figure, axes = panels(7.4 * len(groups), 3.6 * rows, rows, len(groups))
    for group, column in zip(groups, axes.T, strict=True):
        _draw_losses(column[0], group, TOKENS)
        _draw_losses(column[-1], group, HOURS)
        if group.baselines:
            _draw_losses(column[1], group, TOKENS, group.baselines[0])
        elif compared:
            column[1].set_axis_off()
    return figure


def _draw_losses(
    ax: Axes, group: Group, along: int, baseline: Configuration | None = None
) -> None:
    """A line a configuration, the mean over seeds, in a band from the lowest to the
    highest.

    With a baseline, minus its loss at the same seed, which saw the same text.
    """
    in_minutes = along == HOURS and max(c.hours for c in group.configurations) < 2
    # Losses that set the scale; of differences also 0.
    scaling = [np.zeros((1, 1))] if baseline else []
    for c, color, dashes in styles(group):
        points_SP3 = _points_to_draw(c, baseline)
        if not points_SP3.size:
            continue

        x = points_SP3[..., along].mean(0) * (60 if in_minutes else 1)
        losses_SP = points_SP3[..., LOSS]
        scaling.append(losses_SP[:, x >= START * x[-1]])

        lowest = losses_SP.min(0)
        highest = losses_SP.max(0)
        ax.fill_between(x, lowest, highest, color=color, alpha=0.12, linewidth=0)
        ax.plot(
            x,
            losses_SP.mean(0),
            color=color,
            linestyle=dashes,
            linewidth=1.1,
            label=legend_name(c.name),
        )

    if scaling:
        _set_limits(ax, scaling)
    if along == HOURS:
        ax.set_xlabel(f"measured {'minutes' if in_minutes else 'hours'} of training")
    else:
        ax.set_xlabel("training tokens")
        ax.xaxis.set_major_formatter(COUNTS)

    if baseline:
        _name_baseline(ax, baseline)
    else:
        ax.set_title(group.name, fontsize=9)
        ax.set_ylabel("training loss (nats per token)")
        if scaling and along == TOKENS:
            beside = (1.0, 1.0)
            ax.legend(
                frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=beside
            )
    plain(ax)


def _points_to_draw(c: Configuration, baseline: Configuration | None) -> Floats:
    """A configuration's points (S, P, 3); with a baseline minus its losses, at the
    seeds and tokens of both.

    Empty for the baseline itself, without a common seed, and where seeds were logged at
    different steps.
    """
    if baseline is None:
        (points,) = shared_points([c])
        return points
    if c is baseline or not set(c.seeds) & set(baseline.seeds):
        return np.empty((0, 0, 3))

    points, theirs = shared_points([c, baseline])
    points[..., LOSS] -= theirs[..., LOSS]
    return points


def _set_limits(ax: Axes, values: Sequence[Floats]) -> None:
    lowest = min(v.min() for v in values)
    highest = max(v.max() for v in values)
    room = 0.04 * (highest - lowest) or 0.1
    ax.set_ylim(lowest - room, highest + room)


def _name_baseline(ax: Axes, baseline: Configuration) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.8)
    # A name may be longer than the axis is high or wide; there is room to its right.
    ax.set_title(f"minus that of {baseline.name}, same seed", loc="left", fontsize=9)
    ax.set_ylabel("difference (nats per token)")


def styles(group: Group) -> list[tuple[Configuration, str, str]]:
    """Each configuration with a shade of its family's colour, and dashes unlike its
    neighbours'."""
    found: list[tuple[Configuration, str, str]] = []
    for family in FAMILIES:
        members = [c for c in group.configurations if c.family == family]
        if not members:
            continue
        colors = shades(FAMILY_COLORS[family], len(members))
        dashes = cycle(("-", "--", "-.", ":"))
        found += zip(members, colors, dashes, strict=False)
    return found


def shared_points(configurations: Sequence[Configuration]) -> list[Floats]:
    """Each configuration's points at the seeds and tokens that all of them have: (S, P,
    3)."""
    seeds_of_each = [set(c.seeds) for c in configurations]
    seeds = set.intersection(*seeds_of_each)

    # By configuration and seed: the points of a curve by their tokens.
    curves = [
        [
            {point[TOKENS]: point for point in run.curve}
            for run in c.runs
            if run.seed in seeds
        ]
        for c in configurations
    ]
    tokens_of_each = [set(curve) for part in curves for curve in part]
    tokens = sorted(set.intersection(*tokens_of_each))

    found = []
    for part in curves:
        points = [[curve[place] for place in tokens] for curve in part]
        found.append(np.reshape(points, (len(part), len(tokens), 3)))
    return found
