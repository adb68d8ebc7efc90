"""curve.png: a run at a glance, drawn from its tables when it ends.

``python -P -m dualpath_cli.training.curve RUN`` draws it again, also during the run.
"""

import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath_cli.base.files import replacing
from dualpath_cli.report.figures import DEEP, MUTED, SOURCES, WIDE
from dualpath_cli.run.run_folder import VALIDATION
from dualpath_cli.run.tables import METRICS, ROUTING, TableRow, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(run: Path) -> Path:
    """Draws bits per byte, gates and expected loops over training tokens; returns the
    file."""
    from matplotlib.ticker import EngFormatter

    from dualpath_cli.report.figures import panels, plain

    metrics, validation, routing = (
        read_table(run / name) for name in (METRICS, VALIDATION, ROUTING)
    )
    # none yet: all at step 0
    counted = [row for row in metrics + validation if row.step]
    per_step = counted[-1].number("tokens") / counted[-1].step if counted else 1.0

    def line(
        ax: "Axes", rows: list[TableRow], column: str, label: str | None, **style: Any
    ) -> None:
        """A column over training tokens; rows without a value are left out."""
        points = [
            (row.step * per_step, row.measured(column))
            for row in rows
            if row.text(column)
        ]
        ax.plot([x for x, _ in points], [y for _, y in points], label=label, **style)

    def layers(ax: "Axes", column: str, color: str, label: str | None) -> None:
        """A line for each layer; early layers are paler, and the last one has the
        label."""
        numbers = sorted({int(row["layer"]) for row in routing})
        for n in numbers:
            own = [row for row in routing if int(row["layer"]) == n]
            alpha = 0.35 + 0.65 * (n + 1) / len(numbers)
            line(
                ax,
                own,
                column,
                label if n == numbers[-1] else None,
                color=color,
                alpha=alpha,
            )

    columns = {"gate": "gate_deep", "expected loops": "expected_loops"}
    shown = [
        title
        for title, column in columns.items()
        if any(row.text(column) for row in routing)
    ]
    figure, axes = panels(4.2 * (1 + len(shown)), 3.4, columns=1 + len(shown))
    for ax, title in zip(axes[0], ["bits per byte", *shown], strict=True):
        ax.set(title=title, xlabel="training tokens")
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(ax)
        if title == "bits per byte":
            line(
                ax, metrics, "bits_per_byte", "training", color=MUTED, lw=0.9, alpha=0.7
            )
            names = dict.fromkeys(row["set"] for row in validation)
            for name, color in zip(names, cycle(SOURCES), strict=False):
                rows = [row for row in validation if row["set"] == name]
                line(ax, rows, "bits_per_byte", name, color=color, marker=".", ls="")
            ax.legend(frameon=False, fontsize=8)
        elif title == "gate":
            layers(ax, "gate_deep", DEEP, "deep")
            layers(ax, "gate_wide", WIDE, "wide")
            ax.set_ylim(0, 1)
            ax.legend(
                frameon=False, fontsize=8, title="dark: late layers", title_fontsize=8
            )
        else:
            layers(ax, "expected_loops", DEEP, None)
    figure.suptitle("/".join(run.resolve().parts[-2:]), fontsize=10)
    target = run / "curve.png"
    with replacing(target) as partial:
        figure.savefig(partial, format="png", dpi=150)
    return target


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
