"""Several runs together: whether a class of tokens costs more than random ones in all of them."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from dualpath_cli.atomic import write_text
from dualpath_cli.study.intervals import signed_rank_p


def combine(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads the tables of each run's folder; prints and writes excesses over the runs, if any.

    Each row is a class on one source: the mean excess over random tokens, in how many runs it is
    above zero, and the p-value of Wilcoxon's signed-rank test on the runs' excesses.
    """
    reports = [json.loads((folder / "ablations.json").read_text()) for folder in folders]
    rows = excess_over_runs([report["excess"] for report in reports])
    if not rows:
        return []
    table = Table(title=f"excess over random tokens, {len(folders)} runs", title_justify="left")
    table.add_column("forced", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for column in ("mean excess", "least", "most", "runs above 0", "Wilcoxon p"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["forced"], row["source"],
            *(f"{row[key]:+.4f}" for key in ("mean", "least", "most")),
            f"{row['above']} of {row['runs']}",
            "" if row["p"] is None else f"{row['p']:.3g}",
        )  # fmt: skip
    console.print(table)
    if len(folders) < 6:
        console.print("with fewer than six runs the test cannot give p < 0.05", highlight=False)
    content = {"runs": [report["checkpoint"] for report in reports], "rows": rows}
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    texts = {"runs.json": json.dumps(content, indent=2) + "\n", "runs.csv": lines.getvalue()}
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


def excess_over_runs(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each class and source that all runs have, from their `excess` rows."""
    found: dict[tuple[str, str], list[float]] = {}
    for excesses in runs:
        for row in excesses:
            key = (f"{row['token_class']} {row['path']}", row["source"])
            found.setdefault(key, []).append(row["excess"])
    rows = []
    for (forced, source), values in found.items():
        if len(values) < len(runs):
            continue
        p = signed_rank_p(values)
        rows.append(
            {
                "forced": forced,
                "source": source,
                "runs": len(values),
                "mean": mean(values),
                "least": min(values),
                "most": max(values),
                "above": sum(value > 0 for value in values),
                "p": None if p != p else p,
            }
        )
    return rows
