"""`dualpath flops --audit`: the paper's tables beside ours, as text, records or one object."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from dualpath_cli.flops import paper
from dualpath_cli.flops.audit import ablations, allocation, claims, passages, results, tables
from dualpath_cli.flops.audit.finding import RULE, Finding
from dualpath_cli.flops.audit.tables import Row
from dualpath_cli.flops.report import align
from dualpath_cli.flops.request import DEFAULT_TFLOPS

WIDTH = 100
"""Columns that findings are wrapped to."""


def numbers() -> list[dict[str, Any]]:
    """Every number of the two configuration tables beside ours, one record each."""
    return list(tables.numbers(tables.compare()))


TITLES = {
    "configuration_tables": "What the configuration tables carry",
    "result_tables": "What the result tables carry, and what they do not",
    "allocation": "What alpha and the number of loops do",
    "ablation_table": "What the table of ablations carries",
    "text": "Where another place of the text decides",
}
"""Parts of the audit, in the order of printing."""


def findings(rows: Sequence[Row]) -> dict[str, list[Finding]]:
    """All findings, by part of the audit."""
    return {
        "configuration_tables": claims.findings(rows),
        "result_tables": results.findings(),
        "allocation": allocation.findings(),
        "ablation_table": ablations.findings(),
        "text": passages.findings(),
    }


def as_record() -> dict[str, Any]:
    """The whole audit as one object: the compared numbers and the findings."""
    rows = tables.compare()
    return {
        "numbers": list(tables.numbers(rows)),
        **{part: [asdict(finding) for finding in found] for part, found in findings(rows).items()},
    }


def as_text() -> str:
    """The whole audit for reading."""
    rows = tables.compare()
    lines = [f"Source: arXiv 2605.30202. Parameters in millions, hours on {paper.GPUS} GPUs."]
    for budget, members in tables.by_budget(rows).items():
        lines += ["", f"{budget}: widths and parameters", "", *align(_parameter_table(members))]
        lines += ["", f"{budget}: FLOPs and hours", "", *align(_flops_table(members))]
    lines += ["", *_disagreements(rows)]
    lines += ["", *wrap(RULE, WIDTH)]
    for part, found in findings(rows).items():
        lines += ["", TITLES[part], "", *_paragraphs(found)]
    return "\n".join(lines)


def _parameter_table(rows: Sequence[Row]) -> list[list[str]]:
    table = [
        ["", "d_ffn", "", "d_ffn_wide", "", "Params", "", "", "as written lacks", ""],
        ["", "paper", "ours", "paper", "ours", "paper", "trained", "written", "head", "width"],
    ]
    for row in rows:
        cells: list[object] = [row.printed.label]
        for name in ("d_ffn", "d_ffn_wide"):
            cells += [getattr(row.printed, name) or "-", getattr(row.solved, name) or "-"]
        cells.append(row.printed.params_millions)
        millions = (row.params["as_trained"], row.params["as_written"], row.tied_head, row.narrower)
        cells += [f"{value / 1e6:.1f}" for value in millions]
        table.append([str(cell) for cell in cells])
    return table


def _flops_table(rows: Sequence[Row]) -> list[list[str]]:
    table = [
        ["", "linear/F_M", "", "attention", "total/F_M", "hours", "ours at", "TFLOP/s"],
        [
            "",
            "written",
            "trained",
            "passes",
            "trained",
            "paper",
            f"{DEFAULT_TFLOPS:g} T",
            "implied",
        ],
    ]
    table += [
        [
            row.printed.label,
            *(f"{row.linear_ratio[reading]:.4f}" for reading in paper.READINGS),
            str(row.passes),
            f"{row.total / row.printed.budget:.3f}",
            f"{row.printed.hours_on_64_gpus:.1f}",
            f"{row.hours('as_trained'):.1f}",
            f"{row.implied_tflops:.0f}",
        ]
        for row in rows
    ]
    return table


def _disagreements(rows: Sequence[Row]) -> list[str]:
    """How many numbers disagree, by column and reading, each with its cause."""
    compared = list(tables.numbers(rows))
    causes = {
        "d_ffn": "",
        "d_ffn_wide": "",
        "params_millions": "as written: tied head, widths in 64, not 256",
        "hours_on_64_gpus": "measured times, which follow no fixed rate",
    }
    lines = [["Disagreements", "numbers", "as written", "as trained", "  cause"]]
    for quantity, cause in causes.items():
        column = [number for number in compared if number["quantity"] == quantity]
        wrong = [sum(not number[f"agrees_{r}"] for number in column) for r in paper.READINGS]
        cells = [quantity, len(column), *wrong, f"  {cause}" if any(wrong) else ""]
        lines.append([str(cell) for cell in cells])
    causes_column = [line.pop() for line in lines]
    return [
        (line + cause).rstrip() for line, cause in zip(align(lines), causes_column, strict=True)
    ]


def _paragraphs(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        for text, indent in ((finding.claim, f"{finding.verdict:12}"), (finding.found, " " * 12)):
            lines += wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * 12)
    return lines
