"""Several runs together: the costs of a row or a class of tokens in all of them."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console

from dualpath_cli.errors import UserError
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.statistics.significance import holm, signed_rank_p
from dualpath_cli.study.ablation.tables import REPORT
from dualpath_cli.study.parts_of_speech import PAPER
from dualpath_cli.system import format_csv, without_nan, write_texts

Record = dict[str, Any]


def ablations(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads the tables of each run's folder, writes those of all together; returns the paths.

    runs.csv has the mean difference and its standard deviation over the runs for each row that all
    have; runs_token_classes.csv the mean excess of each class over random tokens, in how many runs
    it is above zero, and the p-value of Wilcoxon's signed-rank test on the runs' excesses, as it is
    and corrected for their number (Holm).
    """
    reports = [json.loads((folder / REPORT).read_text()) for folder in folders]
    for folder, report in zip(folders, reports, strict=True):
        if any(row["loss"] is None for row in report["rows"]):
            raise UserError(f"the losses in '{folder}' are no numbers: leave that run out")
    rows = differences_over_runs([report["rows"] for report in reports])
    if not rows:
        raise UserError(
            "the runs have no row in common: give --sources and --suite for all of them"
        )
    classes = excess_over_runs([report["excess"] for report in reports])
    if classes:
        _show(classes, len(folders), console)
    checkpoints = [report["checkpoint"] for report in reports]
    content = {"runs": checkpoints, "rows": rows, "token_classes": classes}
    texts = {"runs.json": json.dumps(content, indent=2) + "\n", "runs.csv": format_csv(rows)}
    if classes:
        texts["runs_token_classes.csv"] = format_csv(classes)
    return write_texts(out, texts)


def differences_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """A row for each row that all runs have: mean and standard deviation over them."""
    keys = ("suite", "intervention", "source")
    return [
        {
            **dict(zip(keys, names, strict=True)),
            "runs": len(rows),
            "loss": mean(row["loss"] for row in rows),
            "difference": mean(row["difference"] for row in rows),
            "difference_sd": stdev(row["difference"] for row in rows),
        }
        for names, rows in _in_all(runs, keys).items()
    ]


def excess_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """A row for each class and source that all runs have, from their `excess` rows.

    The tests of the paper's classes are corrected together, those of all other classes apart.
    """
    groups = _in_all(runs, ("token_class", "path", "source"))
    records = [
        {
            "forced": f"{token_class} {path}",
            "source": source,
            "runs": len(values),
            "mean": mean(values),
            "least": min(values),
            "most": max(values),
            "per_forced": mean(row["per_forced"] for row in rows),
            "above": sum(value > 0 for value in values),
            "p": signed_rank_p(values),
        }
        for (token_class, path, source), rows in groups.items()
        if None not in (values := [row["excess"] for row in rows])  # a class without tokens
    ]
    paper = {token_class.name for token_class in PAPER}
    for of_paper in (True, False):
        family = [r for r in records if (r["forced"].rpartition(" ")[0] in paper) is of_paper]
        for record, p in zip(family, holm([r["p"] for r in family]), strict=True):
            record["p_holm"] = p
    return [without_nan(record) for record in records]


def _show(rows: Sequence[Record], runs: int, console: Console) -> None:
    columns = [
        Column("forced"), Column("source"), Column("mean", "+.4f"),
        Column("least", "+.4f"), Column("most", "+.4f"), Column("per forced", "+.3f"),
        Column("above 0", ""), Column("Wilcoxon p", ".3g"), Column("Holm", ".3g"),
    ]  # fmt: skip
    cells = [
        (row["forced"], row["source"], row["mean"], row["least"], row["most"], row["per_forced"],
         f"{row['above']} of {row['runs']}", row["p"], row["p_holm"])
        for row in rows
    ]  # fmt: skip
    title = f"excess over random tokens, {runs} runs, {len(rows)} tests"
    show(console, Table(columns, cells, title, names=2))
    if runs < 6:
        console.print("with fewer than six runs the test cannot give p < 0.05", highlight=False)


def _in_all(
    runs: Sequence[Sequence[Record]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[Record]]:
    """Groups the rows of runs by the values of some keys; leaves out what a run lacks."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in chain.from_iterable(runs):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {values: rows for values, rows in groups.items() if len(rows) == len(runs)}
