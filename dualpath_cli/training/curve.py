"""curve.png: a run at a glance, drawn from its tables when it ends.

``python -P -m dualpath_cli.training.curve RUN`` draws it again, also during the run.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath_cli.base.files import replacing
from dualpath_cli.base.output import printable
from dualpath_cli.report.figures import (
    DEEP,
    MUTED,
    WIDE,
    any_glyph,
    legend_name,
    panels,
    plain,
    source_styles,
)
from dualpath_cli.run.tables import METRICS, ROUTING, VALIDATION, TableRow, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(run: Path) -> Path:
    """Draws bits per byte, gates and expected loops over training tokens.

    Returns the file.
    """
    from matplotlib.ticker import EngFormatter

    tables = RunTables.of_run(run)
    draw_by_title = {"bits per byte": _draw_bits}
    if tables.has_routing("gate_deep"):
        draw_by_title["gate"] = _draw_gates
    if tables.has_routing("expected_loops"):
        draw_by_title["expected loops"] = _draw_loops

    columns = len(draw_by_title)
    figure, axes = panels(4.2 * columns, 3.4, columns=columns)
    for ax, title in zip(axes[0], draw_by_title, strict=True):
        ax.set(title=title, xlabel="training tokens")
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(ax)
        draw_by_title[title](ax, tables)
    recipe_and_name = printable("/".join(run.resolve().parts[-2:]))
    figure.suptitle(recipe_and_name, fontsize=10)

    target = run / "curve.png"
    with replacing(target) as partial, any_glyph():
        figure.savefig(partial, format="png", dpi=150)
    return target


@dataclass(frozen=True)
class RunTables:
    """The tables of a run that are drawn."""

    metrics: list[TableRow]
    validation: list[TableRow]
    routing: list[TableRow]
    tokens_per_step: float

    @classmethod
    def of_run(cls, run: Path) -> "RunTables":
        metrics = read_table(run / METRICS)
        validation = read_table(run / VALIDATION)
        routing = read_table(run / ROUTING)

        # Without a step, all rows are at step 0.
        tokens_per_step = 1.0
        later = [row for row in metrics + validation if row.step]
        if later:
            tokens_per_step = later[-1].number("tokens") / later[-1].step
        return cls(metrics, validation, routing, tokens_per_step)

    def has_routing(self, column: str) -> bool:
        """Whether a layer has values of a column of routing.csv."""
        return any(row.text(column) for row in self.routing)


def _draw_bits(ax: "Axes", tables: RunTables) -> None:
    """Bits per byte of training, and of each validation set."""
    _draw_line(
        ax,
        tables,
        tables.metrics,
        "bits_per_byte",
        "training",
        color=MUTED,
        lw=0.9,
        alpha=0.7,
    )

    names = dict.fromkeys(row["set"] for row in tables.validation)
    for name, style in zip(names, source_styles(), strict=False):
        rows = [row for row in tables.validation if row["set"] == name]
        style |= {"linestyle": "", "markersize": 3}
        _draw_line(ax, tables, rows, "bits_per_byte", legend_name(name), **style)
    ax.legend(frameon=False, fontsize=8)


def _draw_gates(ax: "Axes", tables: RunTables) -> None:
    """The gates of each layer's two paths."""
    _draw_layers(ax, tables, "gate_deep", DEEP, "deep")
    _draw_layers(ax, tables, "gate_wide", WIDE, "wide")
    ax.set_ylim(0, 1)
    ax.legend(frameon=False, fontsize=8, title="dark: late layers", title_fontsize=8)


def _draw_loops(ax: "Axes", tables: RunTables) -> None:
    """The expected loops of each layer."""
    _draw_layers(ax, tables, "expected_loops", DEEP, None)


def _draw_layers(
    ax: "Axes", tables: RunTables, column: str, color: str, label: str | None
) -> None:
    """A line for each layer; early layers are paler, and the last one has the label."""
    layers = sorted({int(row["layer"]) for row in tables.routing})
    for layer in layers:
        rows = [row for row in tables.routing if int(row["layer"]) == layer]
        depth = (layer + 1) / len(layers)
        last = layer == layers[-1]
        _draw_line(
            ax,
            tables,
            rows,
            column,
            label if last else None,
            color=color,
            alpha=0.35 + 0.65 * depth,
        )


def _draw_line(
    ax: "Axes",
    tables: RunTables,
    rows: list[TableRow],
    column: str,
    label: str | None,
    **style: Any,
) -> None:
    """A column over training tokens; rows without a value are left out."""
    measured = [row for row in rows if row.text(column)]
    tokens = [row.step * tables.tokens_per_step for row in measured]
    values = [row.measured(column) for row in measured]
    ax.plot(tokens, values, label=label, **style)


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
