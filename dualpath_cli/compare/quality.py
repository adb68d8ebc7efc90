"""Quality against parameters, as in the paper's figure; families by colour, K by marker."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter

from dualpath_cli.compare.configurations import FAMILIES, Configuration, Family, Group
from dualpath_cli.output.colors import FAMILY_COLORS, MUTED
from dualpath_cli.output.figures import panels, plain
from dualpath_cli.sizes import format_size

FAMILY_NAMES: dict[Family, str] = {
    "wide": "PureWide", "expanded": "expanded", "loop": "PureLoop", "dual": "dual path",
}  # fmt: skip
MARKERS = {1: "o", 2: "^", 3: "s", 4: "D", 5: "p", 6: "h", 8: "*"}
OTHER_MARKER = "X"
COUNTS = FuncFormatter(lambda value, _: format_size(round(value)))
"""Formats parameters and tokens: 719M, 1.4B."""


def quality(groups: Sequence[Group]) -> Figure:
    """Bits per byte against parameters: a panel a group."""
    figure, axes = panels(1.0 + 4.6 * len(groups), 4.6, 1, len(groups))
    curves = [_control_curve(ax, group) for ax, group in zip(axes[0], groups, strict=True)]
    for ax, group in zip(axes[0], groups, strict=True):
        for line in _lines(group):
            x = [c.parameters for c in line]
            ax.plot(
                x, [c.mean(group.quality) for c in line], color=FAMILY_COLORS["dual"], linewidth=1.2
            )
        for c in group.configurations:
            ax.errorbar(
                c.parameters, c.mean(group.quality), yerr=c.standard_error(group.quality),
                color=FAMILY_COLORS[c.family], marker=marker(c), markersize=7, capsize=3,
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


def marker(configuration: Configuration) -> str:
    """By K, which is 1 for one path without loops."""
    return MARKERS.get(configuration.loops or 1, OTHER_MARKER)


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
    families = [family for family in FAMILIES if any(c.family == family for c in configurations)]
    markers = {c.loops or 1: marker(c) for c in configurations}
    handles = [
        Line2D([], [], color=FAMILY_COLORS[family], linewidth=5, label=FAMILY_NAMES[family])
        for family in families
    ]
    handles += [
        Line2D([], [], color=MUTED, marker=shape, linestyle="none", label=f"K = {loops}")
        for loops, shape in sorted(markers.items())
    ]
    if curve:
        label = "quadratic fit of the controls"
        handles.append(Line2D([], [], color=MUTED, linestyle="--", linewidth=1, label=label))
    return handles
