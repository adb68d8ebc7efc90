"""Figures of a comparison: quality against parameters, loss against tokens and measured hours.

Families differ in colour, K in the marker, runs of a line in the dashes too.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from dualpath_cli.compare.configurations import FAMILIES, Configuration, Family, Group
from dualpath_cli.output.colors import DEEP, MUTED, SOURCES, WIDE
from dualpath_cli.study.figures import panels, plain, save

FAMILY_NAMES: dict[Family, str] = {
    "wide": "PureWide", "expanded": "expanded", "loop": "PureLoop", "dual": "dual path",
}  # fmt: skip
COLORS: dict[Family, str] = {
    "wide": WIDE, "expanded": "#2F7F86", "loop": DEEP, "dual": "#8E6F96",
}  # fmt: skip
MARKERS = {1: "o", 2: "^", 3: "s", 4: "D", 5: "p", 6: "h", 8: "*"}
OTHER_MARKER = "X"
DASHES = ("-", "--", "-.", ":")
START = 0.1
"""Share of a run whose losses, far above all that follows, do not set the scale."""

Floats = npt.NDArray[np.float64]


def draw(folder: Path, groups: Sequence[Group]) -> list[Path]:
    """Writes the figures that there are numbers for, as PNG and PDF; returns their paths."""
    trained = [group for group in groups if any(c.runs for c in group.configurations)]
    return save(folder, {
        "quality": _quality(groups),
        "tokens": _curves(trained, 0, "training tokens"),
        "hours": _curves(trained, 2, "measured hours of training"),
    })  # fmt: skip


def _quality(groups: Sequence[Group]) -> Figure:
    """Bits per byte against parameters, as the paper's figure: a panel a group."""
    figure, axes = panels(1.0 + 4.6 * len(groups), 4.6, 1, len(groups))
    for ax, group in zip(axes[0], groups, strict=True):
        _control_curve(ax, group)
        for line in _lines(group):
            x = [c.parameters for c in line]
            ax.plot(x, [c.mean(group.quality) for c in line], color=COLORS["dual"], linewidth=1.2)
        for c in group.configurations:
            ax.errorbar(
                c.parameters, c.mean(group.quality), yerr=c.standard_error(group.quality),
                color=COLORS[c.family], marker=marker(c), markersize=7, capsize=3,
                markeredgecolor="white", markeredgewidth=0.6, linestyle="none",
            )  # fmt: skip
        _name_lines(ax, group)
        ax.set(title=group.name, xlabel="parameters")
        ax.set_ylabel(f"bits per byte, {group.quality}")
        ax.title.set_fontsize(9)
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.margins(x=0.1, y=0.12)
        plain(ax)
    several = any(len(c.seeds) > 1 for group in groups for c in group.configurations)
    figure.legend(
        handles=_legend(c for group in groups for c in group.configurations), ncols=9,
        loc="outside lower center", frameon=False, fontsize=8, handletextpad=0.4,
        title="bars: one standard error over seeds" if several else "single runs: no error known",
        title_fontsize=8,
    )  # fmt: skip
    return figure


def marker(configuration: Configuration) -> str:
    """By K, which is 1 for one path without loops."""
    return MARKERS.get(configuration.loops or 1, OTHER_MARKER)


def _control_curve(ax: Axes, group: Group) -> None:
    """The quadratic of least squares through the single-axis controls, if there are three."""
    controls = [c for c in group.configurations if c.family in ("wide", "loop")]
    x = np.array([c.parameters for c in controls], np.float64)
    if len(set(x)) < 3:
        return
    fit = np.polynomial.Polynomial.fit(x, [c.mean(group.quality) for c in controls], 2)
    places, values = fit.linspace(100)
    ax.plot(places, values, color=MUTED, linestyle="--", linewidth=1, zorder=0)


def _lines(group: Group) -> list[list[Configuration]]:
    """Dual configurations that differ in K alone, in its order."""
    by_line: dict[str, list[Configuration]] = {}
    for c in group.configurations:
        if c.family == "dual":
            by_line.setdefault(c.line, []).append(c)
    return [sorted(line, key=lambda c: c.loops or 0) for line in by_line.values()]


def _name_lines(ax: Axes, group: Group) -> None:
    """Writes alpha beside each line, or the name where several have the same."""
    lines = _lines(group)
    alphas = [round(line[0].alpha or 0) for line in lines]
    for line, alpha in zip(lines, alphas, strict=True):
        text = f"α = {alpha} %" if alphas.count(alpha) == 1 else line[0].name
        ax.annotate(
            text, (line[0].parameters, line[0].mean(group.quality)), xytext=(5, 7),
            textcoords="offset points", fontsize=8, color=COLORS["dual"],
        )  # fmt: skip


def _legend(configurations: Iterable[Configuration]) -> list[Line2D]:
    chosen = list(configurations)
    families = [family for family in FAMILIES if any(c.family == family for c in chosen)]
    markers = {c.loops or 1: marker(c) for c in chosen}
    handles = [
        Line2D([], [], color=COLORS[family], linewidth=5, label=FAMILY_NAMES[family])
        for family in families
    ]
    handles += [
        Line2D([], [], color=MUTED, marker=shape, linestyle="none", label=f"K = {loops}")
        for loops, shape in sorted(markers.items())
    ]
    if {"wide", "loop"} <= set(families):
        label = "quadratic fit of the controls"
        handles.append(Line2D([], [], color=MUTED, linestyle="--", linewidth=1, label=label))
    return handles


def _curves(groups: Sequence[Group], axis: int, label: str) -> Figure | None:
    """Training loss, a panel a group: the mean over seeds, and a band from lowest to highest."""
    if not groups:
        return None
    rows = max(len(group.configurations) for group in groups)
    height = max(3.8, 1.2 + 0.19 * rows)
    figure, axes = panels(7.4 * len(groups), height, 1, len(groups))
    for ax, group in zip(axes[0], groups, strict=True):
        lowest, highest = [], []
        styles = zip(cycle(SOURCES), cycle(DASHES), strict=False)
        for c, (color, dashes) in zip(group.configurations, styles, strict=False):
            x, losses_SP = _on_one_grid(c, axis)
            late = x >= START * x[-1]
            lowest.append(losses_SP[:, late].min())
            highest.append(losses_SP[:, late].max())
            ax.fill_between(x, losses_SP.min(0), losses_SP.max(0), color=color, alpha=0.15,
                            linewidth=0)  # fmt: skip
            ax.plot(x, losses_SP.mean(0), color=color, linestyle=dashes, linewidth=1.1,
                    label=c.name.removeprefix("_"))  # fmt: skip
        room = 0.04 * (max(highest) - min(lowest)) or 0.1
        ax.set_ylim(min(lowest) - room, max(highest) + room)
        ax.set(title=group.name, xlabel=label, ylabel="training loss (nats per token)")
        ax.title.set_fontsize(9)
        if axis == 0:
            ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(ax)
        ax.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _on_one_grid(configuration: Configuration, axis: int) -> tuple[Floats, Floats]:
    """Losses of all seeds where all have them: places (P,), losses (S, P).

    Along tokens that is at the same steps; along hours at the mean time of each of these steps.
    """
    curves = [{tokens: (tokens, loss, hours) for tokens, loss, hours in run.curve}
              for run in configuration.runs]  # fmt: skip
    shared = sorted(set(curves[0]).intersection(*curves[1:]))
    points_SP3 = np.array([[curve[tokens] for tokens in shared] for curve in curves])
    return points_SP3[:, :, axis].mean(0), points_SP3[:, :, 1]
