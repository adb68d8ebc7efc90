"""The tables of an ablation: screen, CSV, JSON, Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dualpath_cli.base.system import format_csv, without_nan, write_texts
from dualpath_cli.report.table import Column, Columns, Table, interval, markdown
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.options import GATES, REPORT, SHORTER
from dualpath_cli.study.ablation.scores import Excess, Result

LAST_LAYER = (
    "The final RMSNorm removes the scale of the last layer's output: only g_d : g_w counts there. "
    "Differences that depend on the size of its gates cannot be compared with other layers."
)
"""The caption of the table of layers, if the last layer has gates."""


def source_table(title: str, results: Sequence[Result], loops: int | None) -> Table:
    """A table of one source's rows; `loops` is the trained K, if all layers have one."""
    columns: Columns[Result] = [
        (Column("intervention"), lambda row: label(row.intervention, loops)),
        (Column("loss", ".4f"), lambda row: row.loss),
        (Column("difference", "+.4f"), lambda row: row.difference),
        (Column("95 % interval", interval("+.4f")), lambda row: (row.low, row.high)),
    ]
    if results[-1].suite in SHORTER:
        columns += [
            (Column("loops", ".2f"), lambda row: row.expected_loops),
            (Column("run", ".2f"), lambda row: row.loops_run),
            (Column("passes", ".2f"), lambda row: row.passes),
        ]
    return Table.of(results, columns, title)


def excess_table(title: str, rows: Sequence[Excess]) -> Table:
    columns: Columns[Excess] = [
        (Column("forced"), lambda row: f"{row['token_class']} {row['path']}"),
        (Column("tokens", ","), lambda row: row["tokens"]),
        (Column("share", "{:.1f} %".format), lambda row: 100 * row["share"]),
        (Column("class", "+.4f"), lambda row: row["difference"]),
        (Column("random", "+.4f"), lambda row: row["random_difference"]),
        (Column("excess", "+.4f"), lambda row: row["excess"]),
        (Column("95 % interval", interval("+.4f")), lambda row: (row["low"], row["high"])),
        (Column("per forced", "+.3f"), lambda row: row["per_forced"]),
        (Column("95 % interval", interval("+.3f")),
         lambda row: (row["per_forced_low"], row["per_forced_high"])),
    ]  # fmt: skip
    return Table.of(rows, columns, title, _matched(rows))


def layer_table(title: str, results: Sequence[Result], last_is_dual: bool) -> Table:
    """A table of one source's differences, an override a row and a layer a column.

    `last_is_dual`: whether the model's last layer has gates; only their ratio counts.
    """
    overrides, layers, differences = by_layer(results)
    rows = [
        [override.name, *(differences.get((override, layer)) for layer in layers)]
        for override in overrides
    ]
    columns = [Column("in one layer"), *(Column(str(layer), "+.4f") for layer in layers)]
    return Table(columns, rows, title, LAST_LAYER if last_is_dual else "")


def by_layer(
    results: Iterable[Result],
) -> tuple[list[Intervention], list[int], Mapping[tuple[Intervention, int], float]]:
    """The overrides and the layers of the suite `layers`, and the differences by both."""
    differences = {}
    for row in results:
        override = replace(row.intervention, layers=None)
        for layer in row.intervention.layers or ():
            differences[override, layer] = row.difference
    overrides = list(dict.fromkeys(override for override, _ in differences))
    return overrides, sorted({layer for _, layer in differences}), differences


def label(intervention: Intervention, loops: int | None) -> str:
    """An intervention's name and, in brackets, its meaning; `loops` is the trained K."""
    meaning = meaning_of(intervention)
    if loops is not None and intervention == Intervention(loops=loops):
        meaning = "as trained"
    return f"{intervention.name} ({meaning})" if meaning else intervention.name


def meaning_of(intervention: Intervention) -> str | None:
    """The paper's name of constant gates in all layers; None for other interventions."""
    gates = intervention.gates
    if not isinstance(gates, tuple) or intervention != Intervention(gates=gates):
        return None
    return GATES.get(gates)


def _matched(rows: Sequence[Excess]) -> str:
    """How closely the random tokens match the classes, for a caption."""
    texts = {
        row["token_class"]: f"{row['token_class']}: {100 * row['match_same_position']:.0f} % at "
        f"the same position, runs of {row['match_random_run']:.2f} tokens for "
        f"{row['match_run']:.2f}"
        for row in rows
        if row["tokens"]
    }
    return f"random tokens: {'; '.join(texts.values())}" if texts else ""


def write(
    folder: Path,
    report: dict[str, Any],
    results: Sequence[Result],
    excesses: Sequence[Excess],
    tables: Sequence[Table],
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv and .md; returns their paths.

    A missing number is null in JSON and empty in CSV; `tables` are those on the screen.
    """
    rows = [without_nan({**asdict(row), "intervention": row.intervention.name}) for row in results]
    excess_rows = list(map(without_nan, excesses))
    texts = {
        REPORT: json.dumps({**report, "rows": rows, "excess": excess_rows}, indent=2) + "\n",
        "ablations.csv": format_csv(rows),
        "ablations.md": "\n".join(map(markdown, tables)),
    }
    if excesses:
        texts["token_classes.csv"] = format_csv(excess_rows)
    else:  # left from an earlier study with other suites
        (folder / "token_classes.csv").unlink(missing_ok=True)
    return write_texts(folder, texts)
