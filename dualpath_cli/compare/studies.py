"""The ablations and routings of a configuration's runs, together: means over its runs."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from statistics import mean, stdev
from typing import Any, TypeVar

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.base.system import read_json, without_nan
from dualpath_cli.compare.groups import Group
from dualpath_cli.report.significance import holm, signed_rank_p
from dualpath_cli.report.table import Column, Columns, Table
from dualpath_cli.study.ablation.options import REPORT
from dualpath_cli.study.parts_of_speech import CLASSES
from dualpath_cli.study.routing.options import SUMMARY

Record = dict[str, Any]
T = TypeVar("T")


def ablations_of(groups: Sequence[Group]) -> tuple[list[Record], list[Record], list[str]]:
    """Rows of ablations.csv and of ablation_classes.csv, and a line for each report left out.

    A configuration has rows if two of its runs have a report by `dualpath ablate`; the newest one
    of each run counts. They hold means over the runs, of what all of these reports have.
    """
    rows: list[Record] = []
    classes: list[Record] = []
    left_out: list[str] = []
    for name, reports in _reports(groups, f"ablations/step-*/{REPORT}", _ablation, left_out):
        rows += [name | row for row in differences_over_runs([rows for rows, _ in reports])]
        classes += [name | row for row in excess_over_runs([excess for _, excess in reports])]
    return rows, classes, left_out


def routings_of(groups: Sequence[Group]) -> tuple[list[Record], list[str]]:
    """Rows of routings.csv, and a line for each summary left out; runs as in `ablations_of`.

    A row has the mean and standard deviation over runs of a layer's number for a source, or of the
    deep share of a part of speech, the mean over layers.
    """
    left_out: list[str] = []
    rows = [
        name
        | {"source": source, "measure": measure, "layer": layer, "runs": len(runs)}
        | {"mean": mean(values), "sd": stdev(values)}
        for name, runs in _reports(groups, f"routing/step-*/{SUMMARY}", _routing, left_out)
        for source, measure, layer in runs[0]
        if len(values := [run[key] for run in runs if (key := (source, measure, layer)) in run])
        == len(runs)
    ]
    return rows, left_out


def _reports(
    groups: Sequence[Group], place: str, read: Callable[[Record], T], left_out: list[str]
) -> Iterator[tuple[Record, list[T]]]:
    """Names of configurations that have two reports or more, and these, one a run."""
    for group in groups:
        for configuration in group.configurations:
            reports = []
            newest = (sorted(run.folder.glob(place))[-1:] for run in configuration.runs)
            for path in chain.from_iterable(newest):
                try:
                    reports.append(read(read_json(path)))
                except UserError as error:
                    left_out.append(f"left out: {error}")
                except (LookupError, AttributeError, TypeError, ValueError) as error:
                    left_out.append(f"left out: {path}, {of_content(error)}")
            if len(reports) > 1:
                yield {"group": group.name, "configuration": configuration.name}, reports


def _ablation(report: Record) -> tuple[list[Record], list[Record]]:
    rows, excess = report["rows"], report["excess"]
    if any(row["loss"] is None for row in rows):
        raise ValueError("losses that are no numbers")
    differences_over_runs([rows] * 2)  # a damaged report fails here, where it is named
    excess_over_runs([excess] * 2)
    return rows, excess


def _routing(report: Record) -> dict[tuple[str, str, Any], float]:
    """Means by source, measure and layer, which is None for the mean over layers."""
    found: dict[tuple[str, str, Any], float | None] = {}
    for source, numbers in report["sources"].items():
        for measure, estimate in numbers["layers"].items():
            of_layers = zip(report["layers"], estimate["mean"], strict=True)
            found |= {(source, measure, layer): value for layer, value in of_layers}
        for tag, of_tag in numbers["upos"].items():
            found[source, f"deep_share of {tag}", None] = of_tag["deep_share"]["mean"]
    return {key: float(value) for key, value in found.items() if value is not None}


def table_of_classes(rows: Sequence[Record]) -> Table:
    columns: Columns[Record] = [
        (Column("configuration"), itemgetter("configuration")),
        (Column("forced"), itemgetter("forced")),
        (Column("source"), itemgetter("source")),
        (Column("mean", "+.4f"), itemgetter("mean")),
        (Column("least", "+.4f"), itemgetter("least")),
        (Column("most", "+.4f"), itemgetter("most")),
        (Column("per forced", "+.3f"), itemgetter("per_forced")),
        (Column("above 0", ""), lambda row: f"{row['above']} of {row['runs']}"),
        (Column("Wilcoxon p", ".3g"), itemgetter("p")),
        (Column("Holm", ".3g"), itemgetter("p_holm")),
    ]
    few = "with fewer than six runs the test cannot give p < 0.05"
    caption = few if any(row["runs"] < 6 for row in rows) else ""
    return Table.of(rows, columns, "excess over random tokens, over runs", caption)


def differences_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """The cost of each ablation that all runs have: mean and standard deviation over them."""
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
    """The excess of each class of tokens that all runs have over random tokens, by source.

    With Wilcoxon's signed-rank test on the runs' excesses. Holm's correction is over the paper's
    classes together, and over all other classes apart.
    """
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
        for (token_class, path, source), rows in _in_all(
            runs, ("token_class", "path", "source")
        ).items()
        if None not in (values := [row["excess"] for row in rows])  # a class without tokens
    ]
    for of_paper in (True, False):
        family = [r for r in records if (r["forced"].rpartition(" ")[0] in CLASSES) is of_paper]
        for record, p in zip(family, holm([r["p"] for r in family]), strict=True):
            record["p_holm"] = p
    return [without_nan(record) for record in records]


def _in_all(
    runs: Sequence[Sequence[Record]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[Record]]:
    """The rows of runs by their values of some keys, where every run has such a row."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in chain.from_iterable(runs):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {values: rows for values, rows in groups.items() if len(rows) == len(runs)}
