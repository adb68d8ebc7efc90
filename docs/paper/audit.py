"""Sets every number of the paper's two configuration tables beside ours, and grades its claims.

`python docs/paper/audit.py` writes audit.txt, the report, and audit.csv, the numbers, beside it.
The paper's tables are those that the package carries; claims/stated.json has what its text states.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from claims import ablations, allocation, configurations, passages, results
from claims.finding import RULE, Finding
from claims.rows import Row, by_budget, compare, numbers

from dualpath_cli.files.csv_text import format_csv
from dualpath_cli.flops import paper
from dualpath_cli.flops.request import DEFAULT_TFLOPS
from dualpath_cli.output.table import Column, Table
from dualpath_cli.output.terminal import aligned

WIDTH = 100
"""Columns that findings are wrapped to."""


def findings(rows: Sequence[Row]) -> dict[str, list[Finding]]:
    """All findings, by part of the audit, in the order of printing."""
    return {
        "What the configuration tables carry": configurations.findings(rows),
        "What the result tables carry, and what they do not": results.findings(),
        "What alpha and the number of loops do": allocation.findings(),
        "What the table of ablations carries": ablations.findings(),
        "Where another place of the text decides": passages.findings(),
    }


def report(rows: Sequence[Row]) -> str:
    """The whole audit for reading."""
    lines = [f"Source: arXiv 2605.30202. Parameters in millions, hours on {paper.GPUS} GPUs."]
    for budget, members in by_budget(rows).items():
        lines += ["", f"{budget}: widths and parameters", "", *aligned(_parameters(members))]
        lines += ["", f"{budget}: FLOPs and hours", "", *aligned(_flops_and_hours(members))]
    lines += ["", *aligned(_disagreements(rows))]
    lines += ["", *wrap(RULE, WIDTH)]
    for title, found in findings(rows).items():
        lines += ["", title, "", *_paragraphs(found)]
    return "\n".join(lines) + "\n"


def _parameters(rows: Sequence[Row]) -> Table:
    columns = [
        Column(""),
        Column("d_ffn\npaper", "d"),
        Column("\nours", "d"),
        Column("d_ffn_wide\npaper", "d"),
        Column("\nours", "d"),
        Column("Params\npaper", "d"),
        Column("\ntrained", _millions),
        Column("\nwritten", _millions),
        Column("as written lacks\nhead", _millions),
        Column("\nwidth", _millions),
    ]
    cells = []
    for row in rows:
        printed, solved = row.printed, row.solved
        widths = (printed.d_ffn, solved.d_ffn, printed.d_ffn_wide, solved.d_ffn_wide)
        counts = (row.params["as_trained"], row.params["as_written"], row.tied_head, row.narrower)
        shown = (width or "-" for width in widths)
        cells.append([printed.label, *shown, printed.params_millions, *counts])
    return Table(columns, cells)


def _millions(value: int) -> str:
    return f"{value / 1e6:.1f}"


def _flops_and_hours(rows: Sequence[Row]) -> Table:
    columns = [
        Column(""),
        Column("linear/F_M\nwritten", ".4f"),
        Column("\ntrained", ".4f"),
        Column("attention\npasses", "d"),
        Column("total/F_M\ntrained", ".3f"),
        Column("hours\npaper", ".1f"),
        Column(f"ours at\n{DEFAULT_TFLOPS:g} T", ".1f"),
        Column("TFLOP/s\nimplied", ".0f"),
    ]
    cells = [
        [
            row.printed.label,
            *(row.linear_ratio[reading] for reading in paper.READINGS),
            row.passes,
            row.total / row.printed.budget,
            row.printed.hours_on_64_gpus,
            row.hours("as_trained"),
            row.implied_tflops,
        ]
        for row in rows
    ]
    return Table(columns, cells)


def _disagreements(rows: Sequence[Row]) -> Table:
    """How many numbers disagree, by column and reading, each with its cause."""
    causes = {
        "d_ffn": "",
        "d_ffn_wide": "",
        "params_millions": "as written: tied head, widths in 64, not 256",
        "hours_on_64_gpus": "measured times, which follow no fixed rate",
    }
    cells = []
    for quantity, cause in causes.items():
        column = [number for number in numbers(rows) if number["quantity"] == quantity]
        wrong = [sum(not number[f"agrees_{r}"] for number in column) for r in paper.READINGS]
        cells.append([quantity, len(column), *wrong, cause])
    counts = [Column(heading, "d") for heading in ("numbers", "as written", "as trained")]
    return Table([Column("Disagreements"), *counts, Column("cause")], cells)


def _paragraphs(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        for text, indent in ((finding.claim, f"{finding.verdict:12}"), (finding.found, " " * 12)):
            lines += wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * 12)
    return lines


def written() -> dict[str, str]:
    """What stands in each of the files beside this one."""
    rows = compare()
    return {"audit.txt": report(rows), "audit.csv": format_csv(list(numbers(rows)))}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for name, text in written().items():
        path = Path(__file__).parent / name
        path.write_text(text, encoding="utf-8")
        print(path)
