"""Several runs together: what a row costs on average, and whether a class does in all of them."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console

from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.output.csv_text import format_csv
from dualpath_cli.study.levels import holm
from dualpath_cli.study.significance import signed_rank_p
from dualpath_cli.study.tables import table_of, without_nan


def combine(folders: Sequence[Path], out: Path, console: Console) -> list[Path]:
    """Reads the tables of each run's folder, writes what they say together; returns the paths.

    runs.csv has the mean difference and its standard deviation over the runs for each row that all
    have; runs_token_classes.csv the mean excess of each class over random tokens, in how many runs
    it is above zero, and the p-value of Wilcoxon's signed-rank test on the runs' excesses, as it is
    and corrected for their number (Holm). Raises UserError where a run's loss is no number.
    """
    reports = [json.loads((folder / "ablations.json").read_text()) for folder in folders]
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
    content = {
        "runs": [report["checkpoint"] for report in reports],
        "rows": rows,
        "token_classes": classes,
    }
    texts = {"runs.json": json.dumps(content, indent=2) + "\n", "runs.csv": format_csv(rows)}
    if classes:
        texts["runs_token_classes.csv"] = format_csv(classes)
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


def differences_over_runs(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each row that all runs have: mean and standard deviation over them."""
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


def _show(rows: Sequence[dict[str, Any]], runs: int, console: Console) -> None:
    numbers = ("mean", "least", "most", "per forced", "above 0", "Wilcoxon p", "Holm")
    title = f"excess over random tokens, {runs} runs, {len(rows)} tests"
    table = table_of(title, ("forced", "source"), numbers)
    for row in rows:
        table.add_row(
            row["forced"], row["source"],
            *(f"{row[key]:+.4f}" for key in ("mean", "least", "most")),
            f"{row['per_forced']:+.3f}",
            f"{row['above']} of {row['runs']}",
            *("" if row[key] is None else f"{row[key]:.3g}" for key in ("p", "p_holm")),
        )  # fmt: skip
    console.print(table)
    if runs < 6:
        console.print("with fewer than six runs the test cannot give p < 0.05", highlight=False)


def excess_over_runs(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each class and source that all runs have, from their `excess` rows."""
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
    corrected = holm([record["p"] for record in records])
    return [
        without_nan(record | {"p_holm": p}) for record, p in zip(records, corrected, strict=True)
    ]


def _in_all(
    runs: Sequence[Sequence[dict[str, Any]]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Groups the rows of runs by the values of some keys; leaves out what a run lacks."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in chain.from_iterable(runs):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {values: rows for values, rows in groups.items() if len(rows) == len(runs)}
