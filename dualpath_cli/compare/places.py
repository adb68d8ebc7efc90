"""The gain of a deep path by the layer that has it, all others being wide (sweep --positions)."""

import re
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.compare.quality import marker
from dualpath_cli.output.colors import FAMILY_COLORS, MUTED
from dualpath_cli.output.figures import panels, plain

Kind = tuple[str, int | None, int, str]
"""What configurations share that differ in the place alone: family, K, parameters, and the name
without the place; that is empty where the name does not say the place as a sweep's do."""


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
                color=FAMILY_COLORS[family], marker=marker(its[0]), capsize=3, linewidth=1.1,
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
