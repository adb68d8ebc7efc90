"""The tables of an ablation: screen, CSV, JSON, Markdown, LaTeX."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dualpath_cli.flops.paper import inference_ablation, token_class_excess
from dualpath_cli.intervention import LEARNED, Intervention
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.csv_text import format_csv
from dualpath_cli.study.ablation.comparison import Excess, Result
from dualpath_cli.study.ablation.suites import BASELINE, GATES, SHORTER
from dualpath_cli.study.tables import LAST_LAYER, interval_text, table_of, without_nan

EXCESS_COLUMNS = (
    "tokens", "share", "class", "random", "excess", "95 % interval", "per forced", "95 % interval",
)  # fmt: skip


def source_table(title: str, results: Sequence[Result], loops: int, paper: bool) -> Table:
    """A table of one source's rows; `loops` is the trained K, whose row says so."""
    shorter = results[-1].suite in SHORTER
    columns = ["loss", "difference", "95 % interval"]
    columns += ["loops", "run", "passes"] if shorter else []
    columns += ["paper's loss", "difference"] if paper else []
    table = table_of(title, "intervention", columns)
    for row in results:
        cells = [f"{row.loss:.4f}", f"{row.difference:+.4f}"]
        cells.append(interval_text(row.low, row.high, "+.4f"))
        if shorter:
            cells += [f"{row.expected_loops:.2f}", f"{row.loops_run:.2f}", f"{row.passes:.2f}"]
        if paper:
            cells += _paper_cells(row)
        table.add_row(label(row.intervention, loops), *cells)
    return table


def excess_table(title: str, rows: Sequence[Excess], paper: bool) -> Table:
    """A table of one source's classes of tokens beside random ones."""
    table = table_of(
        title, "forced", [*EXCESS_COLUMNS, *(["paper's excess"] if paper else [])], _matched(rows)
    )
    for row in rows:
        cells = _excess_cells(row)
        if paper:
            theirs = token_class_excess(row.name, row.source) if row.as_paper else None
            cells.append("" if theirs is None else f"{theirs:+.2f}")
        table.add_row(row.name, *cells)
    return table


def layer_table(title: str, results: Sequence[Result], last_is_dual: bool) -> Table:
    """A table of one source's differences, an override a row and a layer a column.

    `last_is_dual` tells whether the model's last layer has gates, of which only the ratio counts.
    """
    overrides, layers, differences = by_layer(results)
    note = LAST_LAYER if last_is_dual else None
    table = table_of(title, "in one layer", [str(layer) for layer in layers], note)
    for override in overrides:
        cells = (differences.get((override, layer)) for layer in layers)
        table.add_row(override.name, *("" if cell is None else f"{cell:+.4f}" for cell in cells))
    return table


def by_layer(
    results: Iterable[Result],
) -> tuple[list[Intervention], list[int], Mapping[tuple[Intervention, int], float]]:
    """Returns the overrides and the layers of the suite `layers`, and the differences by both."""
    differences = {}
    for row in results:
        override = dataclasses.replace(row.intervention, layers=None)
        for layer in row.intervention.layers or ():
            differences[override, layer] = row.difference
    overrides = list(dict.fromkeys(override for override, _ in differences))
    return overrides, sorted({layer for _, layer in differences}), differences


def label(intervention: Intervention, loops: int) -> str:
    """Returns an intervention's name with what it means behind it; `loops` is the trained K."""
    meaning = meaning_of(intervention)
    if intervention == Intervention(loops=loops):
        meaning = "as trained"
    return f"{intervention.name} ({meaning})" if meaning else intervention.name


def meaning_of(intervention: Intervention) -> str | None:
    """Returns what the paper calls constant gates in all layers; None for all else."""
    gates = intervention.gates
    if not isinstance(gates, tuple) or intervention != Intervention(gates=gates):
        return None
    return GATES.get(gates)


def _paper_cells(row: Result) -> list[str]:
    loss = inference_ablation(row.intervention.name, row.source)
    learned = inference_ablation(LEARNED, row.source)
    if loss is None or learned is None:
        return ["", ""]
    return [f"{loss:.3f}", f"{loss - learned:+.3f}"]


def _excess_cells(row: Excess) -> list[str]:
    differences = (row.difference, row.random_difference, row.excess)
    return [
        f"{row.tokens:,}",
        f"{100 * row.share:.1f} %",
        *(f"{value:+.4f}" for value in differences),
        interval_text(row.low, row.high, "+.4f"),
        "" if row.per_forced != row.per_forced else f"{row.per_forced:+.3f}",
        interval_text(row.per_forced_low, row.per_forced_high, "+.3f"),
    ]


def _matched(rows: Sequence[Excess]) -> str:
    """How like the classes the random tokens are, for a caption."""
    texts = {
        row.token_class.name: f"{row.token_class.name}: {100 * row.match.same_position:.0f} % at "
        f"the same position, runs of {row.match.random_run:.2f} tokens for {row.match.run:.2f}"
        for row in rows
        if row.tokens
    }
    return f"random tokens: {'; '.join(texts.values())}" if texts else ""


def write(
    folder: Path, report: dict[str, Any], results: Sequence[Result], excesses: Sequence[Excess]
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv, .md and .tex; returns their paths.

    A number that there is none of is null in JSON and empty in CSV.
    """
    rows, excess_rows = [_record(row) for row in results], [_excess_record(e) for e in excesses]
    loops = int(report["model"]["loops"])
    texts = {
        "ablations.json": json.dumps({**report, "rows": rows, "excess": excess_rows}, indent=2)
        + "\n",
        "ablations.csv": format_csv(rows),
        "ablations.md": _tables(results, excesses, loops, _markdown),
        "ablations.tex": _tables(results, excesses, loops, _latex),
    }
    if excesses:
        texts["token_classes.csv"] = format_csv(excess_rows)
    else:  # of an earlier study, with other suites
        (folder / "token_classes.csv").unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _record(row: Result) -> dict[str, Any]:
    return without_nan({**dataclasses.asdict(row), "intervention": row.intervention.name})


def _excess_record(row: Excess) -> dict[str, Any]:
    numbers = dataclasses.asdict(row)
    chosen, match = numbers.pop("token_class"), numbers.pop("match")
    names = {"token_class": chosen["name"], "upos": ",".join(chosen["upos"])}
    matched = {f"match_{key}": value for key, value in match.items()}
    return without_nan({**names, "path": chosen["path"], **numbers, **matched})


Cells = list[list[str]]


def _tables(
    results: Sequence[Result],
    excesses: Sequence[Excess],
    loops: int,
    draw: Callable[[str, Cells], str],
) -> str:
    """Every suite as a table: a row an intervention, a column a source, as in the paper."""
    sources = list(dict.fromkeys(row.source for row in results))
    tables = []
    for suite in dict.fromkeys(row.suite for row in results if row.suite != BASELINE):
        cells: Cells = [["intervention", *sources]]
        rows = {(r.intervention, r.source): r for r in results if r.suite in (suite, BASELINE)}
        for intervention in dict.fromkeys(intervention for intervention, _ in rows):
            by_source = [rows.get((intervention, source)) for source in sources]
            texts = (_cell(row) if row else "" for row in by_source)
            cells.append([label(intervention, loops), *texts])
        title = f"{suite}: nats per token (difference to the learned router)"
        tables.append(draw(title, cells))
    if excesses:
        cells = [["forced", "source", *EXCESS_COLUMNS]]
        cells += [[row.name, row.source, *_excess_cells(row)] for row in excesses]
        title = "excess of a class over as many random tokens, nats over all tokens and per forced"
        tables.append(draw(title, cells))
    return "\n".join(tables)


def _cell(row: Result) -> str:
    shorter = f", {row.passes:.2f} passes" if row.suite in SHORTER else ""
    return f"{row.loss:.4f} ({row.difference:+.4f}{shorter})"


def _markdown(title: str, cells: Cells) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in cells)
    rule = f"| --- |{' ---: |' * (len(cells[0]) - 1)}"
    return "\n".join([f"**{title}**", "", head, rule, *rest, ""])


def _latex(title: str, cells: Cells) -> str:
    """A booktabs table; what LaTeX would read as a command is escaped."""
    head, *rest = (" & ".join(map(_escaped, row)) + r" \\" for row in cells)
    return "\n".join(
        [
            f"% {title}",
            rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}",
            r"\toprule", head, r"\midrule", *rest, r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "&%$#_{}" else c for c in text)
