"""Tables of a model's scores, and of several models on the same documents."""

from collections.abc import Mapping, Sequence, Set
from itertools import chain
from statistics import mean
from typing import Any

import numpy as np

from dualpath_cli.evaluation.benchmarks import PAPER_LIMIT, ROLLING, Benchmark
from dualpath_cli.flops import paper
from dualpath_cli.report.bootstrap import Floats, interval, resampled_sums
from dualpath_cli.report.significance import detectable, holm, mcnemar_p, p_value
from dualpath_cli.report.table import Column, Table, with_error
from dualpath_cli.report.table import interval as interval_text

Report = Mapping[str, Any]  # the harness's report: `results`, `samples`, `n-samples`
Samples = Sequence[Mapping[str, Any]]  # a benchmark's documents, in their order
Score = tuple[float, float | None]  # with its standard error over documents


Difference = dict[str, Any]
"""A score of a model minus the first model's score, over the same documents: a row of
comparison.csv.

- `low`, `high`: ends of the 95 % interval, resampling documents; nan for too few
- `better`, `worse`, `ties`: documents on which the model scores better, worse or the same
- `detectable`: smallest true difference found at 5 % with 80 % power
- `p_holm`: p corrected for the tests of all rows
"""


def compare(names: Sequence[str], reports: Sequence[Report]) -> list[Difference]:
    """Compares every model with the first, on the primary metric and bits per byte."""
    rows: list[Difference] = []
    for task, first in reports[0]["samples"].items():
        metrics = dict.fromkeys((Benchmark(task).primary, "bpb"))
        for name, other in zip(names[1:], reports[1:], strict=True):
            rows += [
                {"task": task, "metric": metric, "model": name, "first": names[0],
                 "value": other["results"][task][f"{metric},none"],
                 **_difference(task, metric, first, other["samples"][task])}
                for metric in metrics if metric in first[0]
            ]  # fmt: skip
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = corrected
    return rows


def _score(report: Report, task: str, metric: str) -> Score | None:
    scores = report["results"][task]
    if f"{metric},none" not in scores:
        return None
    error = scores[f"{metric}_stderr,none"]
    return scores[f"{metric},none"], None if error == "N/A" else error


def _difference(task: str, metric: str, one: Samples, other: Samples) -> dict[str, Any]:
    n, exact = len(one), metric.startswith("acc")
    old_N2, new_N2 = _values(metric, one), _values(metric, other)
    gains_N = (new_N2 - old_N2)[:, 0] * (1 if exact else -1)  # fewer bits are better
    better, worse = int((gains_N > 0).sum()), int((gains_N < 0).sum())
    values_N2 = np.column_stack([(new_N2 - old_N2)[:, 0], old_N2[:, 1]])
    sums_R2 = resampled_sums(task, [sample["doc_id"] for sample in one], values_N2)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample without documents
        differences_R = sums_R2[:, 0] / sums_R2[:, 1]
    low, high = (float(end[()]) for end in interval(differences_R, n))
    return {
        "difference": float(differences_R[0]), "low": low, "high": high,
        "better": better, "worse": worse, "ties": n - better - worse,
        "detectable": detectable(differences_R, n), "test": "McNemar" if exact else "t",
        "p": mcnemar_p(better, worse) if exact else p_value(differences_R, 0.0, n),
    }  # fmt: skip


def _values(metric: str, samples: Samples) -> Floats:
    """Values of documents and their weights, (N, 2): bits and bytes of texts, otherwise scores."""
    if metric == ROLLING:
        return np.array([sample[metric] for sample in samples]) * [-1 / np.log(2), 1]
    return np.array([(sample[metric], 1) for sample in samples], dtype=float)


AGGREGATE, ALL = "aggregate BPB", "mean BPB of 17"


def scores_of(report: Report) -> dict[str, float]:
    """The scores of the paper's benchmarks by the columns of its tables: `PIQA Acc.`, `C4`."""
    return {
        column: score[0]
        for task in report["results"]
        for column, score in zip(
            Benchmark(task).paper, _accuracy_and_bits(report, task), strict=True
        )
        if column is not None and score is not None
    }


def means_of(scores: Mapping[str, float]) -> dict[str, float]:
    """The paper's means of `scores`; a mean that lacks one of its scores is left out.

    `scores` go by the paper's columns: `PIQA Acc.`, `PIQA BPB`, `C4`. `aggregate BPB` is the mean
    of four, C4, WikiText-103, the mean of commonsense and the mean of math; the parameter-quality
    figure takes the mean of all 17 (appendix on evaluation).
    """
    known = dict(scores)
    means = {**paper.AVERAGES, AGGREGATE: paper.AGGREGATE, ALL: paper.ALL_BENCHMARKS}
    for name, parts in means.items():
        if all(part in known for part in parts):
            known[name] = mean(known[part] for part in parts)
    return {name: value for name, value in known.items() if name not in scores}


def paper_scores(recipe: str | None) -> dict[str, float]:
    """The paper's scores and means of one of its configurations, by column; empty for others."""
    rows = [row for row in paper.configurations() if row.recipe == recipe]
    scores = {
        metric: values[row.label]
        for row in rows
        for metric, values in paper.results(row.budget_name).items()
    }
    return scores | means_of(scores)


def score_table(
    model: Mapping[str, Any],
    report: Report,
    recipe: str | None = None,
    whole: Set[str] = frozenset(),
) -> Table:
    """A row for each benchmark, then the paper's means; beside them, what the paper has.

    `recipe` names the recipe that the model was trained by: one of the paper's, or any other.
    `whole` are the benchmarks with their own documents: others have nothing of the paper beside.
    """
    theirs = paper_scores(recipe) if model.get("intervention", "learned") == "learned" else {}
    how = [f"window {model['window']:,}", f"batches of {model['batch_size']}", model["precision"]]
    if model.get("intervention", "learned") != "learned":
        how.insert(0, model["intervention"])
    columns = [
        Column("benchmark"), Column("by"), Column("documents", ","),
        Column("accuracy", with_error(".4f")),
        Column("bits/byte", with_error(".4f")),
    ]  # fmt: skip
    if theirs:
        columns += [Column("paper's accuracy", ".4f"), Column("bits/byte", ".4f")]
    rows: list[list[Any]] = []
    for task in report["results"]:
        documents = report["n-samples"][task]["effective"]
        accuracy, bits = _accuracy_and_bits(report, task)
        paper_columns = Benchmark(task).paper if task in whole else (None, None)
        beside = [theirs.get(column or "") for column in paper_columns] if theirs else []
        rows.append([task, Benchmark(task).primary, documents, accuracy, bits, *beside])
    for name, value in means_of(scores_of(report)).items():
        mean_of_theirs = theirs.get(name) if whole >= report["results"].keys() else None
        values = [(value, None), mean_of_theirs] if theirs else [(value, None)]
        cells = [[it, None] if name.endswith("Acc.") else [None, it] for it in values]
        rows.append([name, "mean", None, *chain.from_iterable(cells)])
    caption = "± is one standard error over documents"
    if any(Benchmark(task).is_text for task in report["results"]):
        caption += f"; {ROLLING}: each window of a text is read after the preceding token"
    if theirs:
        caption += f"; the paper's are of {recipe}, on at most {PAPER_LIMIT:,} documents of its own"
    return Table(columns, rows, f"{model['name']}: {', '.join(how)}", caption)


def _accuracy_and_bits(report: Report, task: str) -> tuple[Score | None, Score | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    primary = Benchmark(task).primary
    accuracy = _score(report, task, primary) if primary.startswith("acc") else None
    return accuracy, _score(report, task, ROLLING) or _score(report, task, "bpb")


def comparison_table(rows: Sequence[Difference]) -> Table:
    columns = {
        "model": Column("model"), "task": Column("benchmark"), "metric": Column("by"),
        "value": Column("score", ".4f"), "difference": Column("difference", "+.4f"),
        "interval": Column("95 % interval", interval_text("+.4f")), "better": Column("better", ","),
        "worse": Column("worse", ","), "ties": Column("ties", ","),
        "detectable": Column("detectable", ".4f"), "p": Column("p", ".3g"),
        "p_holm": Column("Holm", ".3g"),
    }  # fmt: skip
    shown = [row | {"interval": (row["low"], row["high"])} for row in rows]
    return Table(
        list(columns.values()), [[row[name] for name in columns] for row in shown],
        f"differences to {rows[0]['first']}, {len(rows)} tests",
        "detectable: found at 5 % with 80 % power; accuracies by McNemar's exact test",
    )  # fmt: skip
