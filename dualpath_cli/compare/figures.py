"""The figures of a comparison, with families by colour and K by marker.

Quality against parameters, as in the paper's figure; the gain of a deep path by its layer; loss
against tokens and hours.
"""

import re
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dualpath_cli.compare.groups import FAMILIES, Configuration, Group
from dualpath_cli.compare.tables import Difference
from dualpath_cli.output.figures import FAMILY_COLORS, MUTED, panels, plain, shades
from dualpath_cli.ranges import format_size

CAPTIONS = {
    "quality": "Bits per byte against parameters; lower and further left is better.",
    "places": "Bits per byte less those of the baseline, by the only layer with a deep path, and "
    "their 95 % intervals; lower is better.",
    "tokens": "Training loss against tokens: mean over seeds, band from the lowest to the highest.",
    "hours": "Training loss against measured hours, which are those of the machine that trained.",
}
MARKERS = {1: "o", 2: "^", 3: "s", 4: "D", 5: "p", 6: "h", 8: "*"}
COUNTS = FuncFormatter(lambda value, _: format_size(round(value)))  # 719M, 1.4B
START = 0.1  # share of a run whose losses, far above all that follows, do not set the scale
TOKENS, LOSS, HOURS = 0, 1, 2  # places in a point of a curve

# Configurations that differ in the place alone share family, K, parameters, and the name without
# the place, which is empty where the name does not say it as a sweep's do.
Kind = tuple[str, int | None, int, str]
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


def quality(groups: Sequence[Group]) -> Figure:
    """Bits per byte against parameters: a panel a group."""
    figure, axes = panels(1.0 + 4.6 * len(groups), 4.6, 1, len(groups))
    curves = [_control_curve(ax, group) for ax, group in zip(axes[0], groups, strict=True)]
    for ax, group in zip(axes[0], groups, strict=True):
        for line in _lines(group):
            x, y = zip(*((c.parameters, c.mean(group.quality)) for c in line), strict=True)
            ax.plot(x, y, color=FAMILY_COLORS["dual"], linewidth=1.2)
        for c in group.configurations:
            ax.errorbar(
                c.parameters, c.mean(group.quality), yerr=c.standard_error(group.quality),
                color=FAMILY_COLORS[c.family], marker=_marker(c), markersize=7, capsize=3,
                markeredgecolor="white", markeredgewidth=0.6, linestyle="none",
            )  # fmt: skip
        _name_lines(ax, group)
        single = all(len(c.seeds) == 1 for c in group.configurations)
        ax.set(title=group.name + (", single runs" if single else ""), xlabel="parameters")
        ax.set_ylabel(f"bits per byte, {group.quality}")
        ax.title.set_fontsize(9)
        ax.xaxis.set_major_formatter(COUNTS)
        ax.margins(x=0.1, y=0.12)
        plain(ax)
    shown = [c for group in groups for c in group.configurations]
    errors = any(len(c.seeds) > 1 for c in shown)
    figure.legend(
        handles=_legend(shown, any(curves)),
        ncols=4 if len(groups) == 1 else 9, loc="outside lower center", frameon=False, fontsize=8,
        handlelength=1.4, title_fontsize=8,
        title="bars: one standard error over seeds" if errors else None,
    )  # fmt: skip
    return figure


def _marker(configuration: Configuration) -> str:
    """By K, which is 1 for one path without loops."""
    return MARKERS.get(configuration.loops or 1, "X")


def _control_curve(ax: Axes, group: Group) -> bool:
    """The quadratic of least squares through the single-axis controls, if there are three."""
    controls = [c for c in group.configurations if c.family in ("wide", "loop")]
    x = np.array([c.parameters for c in controls], np.float64)
    if len(set(x)) < 3:
        return False
    fit = np.polynomial.Polynomial.fit(x, [c.mean(group.quality) for c in controls], 2)
    places, values = fit.linspace(100)
    ax.plot(places, values, color=MUTED, linestyle="--", linewidth=1, zorder=0)
    return True


def _lines(group: Group) -> list[list[Configuration]]:
    """Dual configurations that differ in K alone, in its order."""
    by_line: dict[str, list[Configuration]] = {}
    for c in group.configurations:
        if c.family == "dual":
            by_line.setdefault(c.line, []).append(c)
    return [sorted(line, key=lambda c: c.loops or 0) for line in by_line.values()]


def _name_lines(ax: Axes, group: Group) -> None:
    """Writes alpha beside the longest line of each, and their names beside the other ones."""
    named = set()
    for line in sorted(_lines(group), key=len, reverse=True):
        alpha = round(line[0].alpha or 0)
        text, place, side, size = f"α {alpha}", 7, "left", 8
        if alpha in named:
            text, place, side, size = line[0].name, -7, "right", 7
        named.add(alpha)
        ax.annotate(
            text, (line[0].parameters, line[0].mean(group.quality)), xytext=(place, -3), ha=side,
            textcoords="offset points", fontsize=size, color=FAMILY_COLORS["dual"], zorder=1,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip


def _legend(configurations: Sequence[Configuration], curve: bool) -> list[Line2D]:
    names = {"wide": "PureWide", "expanded": "expanded", "loop": "PureLoop", "dual": "dual path"}
    markers = {c.loops or 1: _marker(c) for c in configurations}
    handles = [
        Line2D([], [], color=FAMILY_COLORS[family], linewidth=5, label=names[family])
        for family in FAMILIES
        if any(c.family == family for c in configurations)
    ]
    handles += [
        Line2D([], [], color=MUTED, marker=shape, linestyle="none", label=f"K = {loops}")
        for loops, shape in sorted(markers.items())
    ]
    if curve:
        label = "quadratic fit of the controls"
        handles.append(Line2D([], [], color=MUTED, linestyle="--", linewidth=1, label=label))
    return handles


def places(groups: Sequence[Group], differences: Sequence[Difference]) -> Figure | None:
    """Difference to the first baseline against the layer, a panel a group; None without places."""
    shown = [(group, kinds) for group in groups if (kinds := _kinds(group)) and group.baselines]
    if not shown:
        return None
    figure, axes = panels(1.0 + 4.6 * len(shown), 4.0, 1, len(shown))
    for ax, (group, kinds) in zip(axes[0], shown, strict=True):
        baseline, measure = group.baselines[0].name, group.measures[0]
        rows = {
            row.configuration: row
            for row in differences
            if (row.group, row.measure, row.baseline) == (group.name, measure, baseline)
        }
        for n, ((family, *_, name), its) in enumerate(kinds.items()):
            aside = 0.06 * (n - (len(kinds) - 1) / 2)  # or bars would hide each other
            tested = [(c, rows[c.name]) for c in its if c.name in rows]
            gaps = [row.difference for _, row in tested]
            reach = [row.high - row.difference if row.tested else 0 for _, row in tested]
            ax.errorbar(
                [(c.place or 0) + aside for c, _ in tested], gaps, yerr=reach,
                color=FAMILY_COLORS[family], marker=_marker(its[0]), capsize=3, linewidth=1.1,
                label=name or its[0].name,
            )  # fmt: skip
        ax.axhline(0, color=MUTED, linewidth=0.8)
        ax.set(title=group.name, xlabel="layer with the deep path")
        ax.set_ylabel(f"{measure}, bits per byte less {baseline}")
        ax.title.set_fontsize(9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(frameon=False, fontsize=8)
        plain(ax)
    return figure


def _kinds(group: Group) -> dict[Kind, list[Configuration]]:
    """Configurations with one deep layer, of each kind with several places, in their order."""
    kinds: dict[Kind, list[Configuration]] = {}
    for c in sorted(group.configurations, key=lambda c: -1 if c.place is None else c.place):
        if c.place is not None:
            name, found = re.subn(rf"_layer{c.place}(?!\d)", "", c.name)
            kind = c.family, c.loops, c.parameters, name if found else ""
            kinds.setdefault(kind, []).append(c)
    return {kind: its for kind, its in kinds.items() if len(its) > 1}


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
        for style in zip(
            its,
            shades(FAMILY_COLORS[family], len(its)),
            cycle(("-", "--", "-.", ":")),
            strict=False,
        )
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
    """Each configuration's points at the seeds and tokens that all of them have: (S, P, 3)."""
    seeds = set(configurations[0].seeds).intersection(*(c.seeds for c in configurations))
    curves = [
        [{point[TOKENS]: point for point in run.curve} for run in c.runs if run.seed in seeds]
        for c in configurations
    ]
    first = curves[0][0]
    tokens = sorted(set(first).intersection(*(curve for part in curves for curve in part)))
    points = ([[curve[place] for place in tokens] for curve in part] for part in curves)
    return [np.reshape(of_one, (len(of_one), len(tokens), 3)) for of_one in points]
