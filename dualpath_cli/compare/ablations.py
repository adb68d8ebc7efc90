"""The ablations of a configuration's runs, together: costs of rows, and of classes of tokens."""

from collections.abc import Sequence
from itertools import chain
from statistics import mean, stdev
from typing import Any

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.base.system import read_json, without_nan
from dualpath_cli.compare.groups import Group
from dualpath_cli.report.significance import holm, signed_rank_p
from dualpath_cli.report.table import Column, Table
from dualpath_cli.study.ablation.options import REPORT
from dualpath_cli.study.parts_of_speech import PAPER

Record = dict[str, Any]


def ablations_of(groups: Sequence[Group]) -> tuple[list[Record], list[Record], list[str]]:
    """Rows of ablations.csv and of ablation_classes.csv, and a line for each report left out.

    A configuration has rows where two of its runs have a report by `dualpath ablate`, of which the
    newest counts: of each ablation that all of these have, the mean difference and its standard
    deviation over runs; of each class of tokens the mean excess over random tokens, and Wilcoxon's
    signed-rank test on the runs' excesses, also corrected for the number of tests (Holm).
    """
    rows: list[Record] = []
    classes: list[Record] = []
    left_out = []
    for group in groups:
        for configuration in group.configurations:
            reports = []
            for run in configuration.runs:
                found = sorted(run.folder.glob(f"ablations/step-*/{REPORT}"))[-1:]
                for path in found:
                    try:
                        report = read_json(path)
                        if any(row["loss"] is None for row in report["rows"]):
                            raise ValueError("losses that are no numbers")
                        differences_over_runs([report["rows"]] * 2)
                        excess_over_runs([report["excess"]] * 2)
                    except (UserError, LookupError, TypeError, ValueError) as error:
                        left_out.append(f"{path}: left out, {of_content(error)}")
                    else:
                        reports.append(report)
            if len(reports) < 2:
                continue
            name = {"group": group.name, "configuration": configuration.name}
            found_rows = differences_over_runs([report["rows"] for report in reports])
            rows += [name | row for row in found_rows]
            excess = excess_over_runs([report["excess"] for report in reports])
            classes += [name | row for row in excess]
    return rows, classes, left_out


def table_of_classes(rows: Sequence[Record]) -> Table:
    columns = [
        Column("configuration"), Column("forced"), Column("source"), Column("mean", "+.4f"),
        Column("least", "+.4f"), Column("most", "+.4f"), Column("per forced", "+.3f"),
        Column("above 0", ""), Column("Wilcoxon p", ".3g"), Column("Holm", ".3g"),
    ]  # fmt: skip
    cells = [
        (row["configuration"], row["forced"], row["source"], row["mean"], row["least"], row["most"],
         row["per_forced"], f"{row['above']} of {row['runs']}", row["p"], row["p_holm"])
        for row in rows
    ]  # fmt: skip
    few = "with fewer than six runs the test cannot give p < 0.05"
    caption = few if any(row["runs"] < 6 for row in rows) else ""
    return Table(columns, cells, "excess over random tokens, over runs", caption, names=3)


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


def _in_all(
    runs: Sequence[Sequence[Record]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[Record]]:
    """Groups the rows of runs by the values of some keys; leaves out what a run lacks."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in chain.from_iterable(runs):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {values: rows for values, rows in groups.items() if len(rows) == len(runs)}
