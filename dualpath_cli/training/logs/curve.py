"""curve.png: a run at a glance, drawn from its tables when it ends.

``python -P -m dualpath_cli.training.logs.curve RUN`` draws it again, also during the run.
"""

import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath_cli.base.system import read_csv, replacing
from dualpath_cli.report.figures import DEEP, MUTED, SOURCES, WIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, str]


def draw(run: Path) -> Path:
    """Draws bits per byte, gates and expected loops over training tokens; returns the file."""
    from matplotlib.ticker import EngFormatter

    from dualpath_cli.report.figures import panels, plain

    metrics, validation, routing = (
        read_csv(run / f"{name}.csv") for name in ("metrics", "validation", "routing")
    )
    counted = [row for row in metrics + validation if int(row["step"])]  # none yet: all at step 0
    per_step = float(counted[-1]["tokens"]) / float(counted[-1]["step"]) if counted else 1.0
    gates = [("gate_deep", DEEP, "deep"), ("gate_wide", WIDE, "wide")]
    shown = ["bits per byte"]
    shown += ["gate"] if any(row["gate_deep"] for row in routing) else []
    shown += ["expected loops"] if any(row["expected_loops"] for row in routing) else []
    figure, axes = panels(4.2 * len(shown), 3.4, columns=len(shown))
    for ax, title in zip(axes[0], shown, strict=True):
        ax.set(title=title, xlabel="training tokens")
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(ax)
        if title == "bits per byte":
            _line(
                ax, metrics, "bits_per_byte", per_step, "training", color=MUTED, lw=0.9, alpha=0.7
            )
            names = dict.fromkeys(row["set"] for row in validation)
            for name, color in zip(names, cycle(SOURCES), strict=False):
                rows = [row for row in validation if row["set"] == name]
                _line(ax, rows, "bits_per_byte", per_step, name, color=color, marker=".", ls="")
            ax.legend(frameon=False, fontsize=8)
        elif title == "gate":
            for column, color, label in gates:
                _layers(ax, routing, column, color, per_step, label)
            ax.set_ylim(0, 1)
            ax.legend(frameon=False, fontsize=8, title="dark: late layers", title_fontsize=8)
        else:
            _layers(ax, routing, "expected_loops", DEEP, per_step, "")
    figure.suptitle("/".join(run.resolve().parts[-2:]), fontsize=10)
    target = run / "curve.png"
    with replacing(target) as partial:
        figure.savefig(partial, format="png", dpi=150)
    return target


def _layers(
    ax: "Axes", rows: list[Row], column: str, color: str, per_step: float, label: str
) -> None:
    layers = sorted({int(row["layer"]) for row in rows})
    for layer in layers:
        of_layer = [row for row in rows if int(row["layer"]) == layer]
        alpha = 0.35 + 0.65 * (layer + 1) / len(layers)
        last = label if layer == layers[-1] else None
        _line(ax, of_layer, column, per_step, last, color=color, alpha=alpha)


def _line(
    ax: "Axes", rows: list[Row], column: str, per_step: float, label: str | None, **style: Any
) -> None:
    """A column over training tokens, `per_step` each step; rows without a value are left out."""
    rows = [row for row in rows if row[column]]
    tokens = [float(row["step"]) * per_step for row in rows]
    ax.plot(tokens, [float(row[column]) for row in rows], label=label, **style)


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
