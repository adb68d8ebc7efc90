"""A model's scores beside the paper's, and several models on the same documents."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.flops import paper
from dualpath_cli.report.bootstrap import Floats, interval, resampled_sums
from dualpath_cli.report.significance import detectable, holm, mcnemar_p, p_value
from dualpath_cli.report.table import Column, Columns, Table, with_error
from dualpath_cli.report.table import interval as interval_text

Report = Mapping[str, Any]  # what the harness returns: `results`, `samples`, `n-samples`
Samples = Sequence[Mapping[str, Any]]  # a benchmark's documents, in their order
Score = tuple[float, float | None]  # with its standard error over documents


@dataclass(frozen=True)
class ScoreDifference:
    """One score of a model minus that of the first, over the same documents."""

    task: str
    metric: str
    model: str
    first: str
    value: float  # the model's score
    difference: float
    low: float
    high: float  # ends of the 95 % interval, resampling documents; nan for too few
    better: int  # documents on which the model scores better than the first
    worse: int
    ties: int  # documents on which both score the same
    detectable: float  # smallest true difference found at 5 % with a probability of 80 %
    test: str  # McNemar's exact one for accuracies, else Student's t, resampled
    p: float
    p_holm: float  # corrected for the tests of all rows


def compare(names: Sequence[str], reports: Sequence[Report]) -> list[ScoreDifference]:
    """Compares every other model with the first one, on the primary metric and bits per byte."""
    rows: list[dict[str, Any]] = []
    for task, first in reports[0]["samples"].items():
        metrics = dict.fromkeys((Benchmark(task).primary, "bpb"))
        for name, other in zip(names[1:], reports[1:], strict=True):
            rows += [
                {"task": task, "metric": metric, "model": name, "first": names[0],
                 "value": other["results"][task][f"{metric},none"],
                 **_difference(task, metric, first, other["samples"][task])}
                for metric in metrics if metric in first[0]
            ]  # fmt: skip
    corrected = holm([row["p"] for row in rows])
    return [ScoreDifference(**row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


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
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of no document
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
    """The paper's means of those scores that are there: each needs all that it is made of.

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


def paper_scores(recipe: str) -> dict[str, float]:
    """The paper's scores of one of its configurations, named as its recipe: f80m_a50_k4."""
    (row,) = (c for c in paper.configurations() if c.recipe == recipe)
    budget, label = row.budget_name, row.label
    printed = {name: values[label] for name, values in paper.results(budget).items()}
    means = {AGGREGATE: paper.AGGREGATE, ALL: paper.ALL_BENCHMARKS}
    return printed | {name: paper.mean_bpb(budget, of)[label] for name, of in means.items()}


def score_table(
    model: Mapping[str, Any], report: Report, paper_row: str | None, own: Set[str]
) -> Table:
    """A row a benchmark, then the means, beside those of the paper's configuration, if any.

    `own` are the benchmarks of their own documents, not of a selection that others made.
    """
    theirs = None if paper_row is None else paper_scores(paper_row)
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
        benchmark, n = Benchmark(task), report["n-samples"][task]["effective"]
        row = [task, benchmark.primary, n, *_accuracy_and_bits(report, task)]
        if theirs:
            row += [theirs.get(name) if name and task in own else None for name in benchmark.paper]
        rows.append(row)
    for name, value in means_of(scores_of(report)).items():
        beside = theirs[name] if theirs and own >= report["results"].keys() else None
        empty = [] if name.endswith("Acc.") else [None]
        rows.append([name, "mean", None, *empty, (value, None), None, beside])
    caption = "± is one standard error over documents"
    if any(Benchmark(task).is_text for task in report["results"]):
        caption += f"; {ROLLING}: each window of a text is read after the token before it"
    if paper_row is not None:
        caption += f"; the paper's row is {paper_row}, of at most 1,024 documents a benchmark"
    return Table(columns, rows, f"{model['name']}: {', '.join(how)}", caption)


def _accuracy_and_bits(report: Report, task: str) -> tuple[Score | None, Score | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    primary = Benchmark(task).primary
    accuracy = _score(report, task, primary) if primary.startswith("acc") else None
    return accuracy, _score(report, task, ROLLING) or _score(report, task, "bpb")


def comparison_table(rows: Sequence[ScoreDifference]) -> Table:
    columns: Columns[ScoreDifference] = [
        (Column("model"), lambda row: row.model),
        (Column("benchmark"), lambda row: row.task),
        (Column("by"), lambda row: row.metric),
        (Column("score", ".4f"), lambda row: row.value),
        (Column("difference", "+.4f"), lambda row: row.difference),
        (Column("95 % interval", interval_text("+.4f")), lambda row: (row.low, row.high)),
        (Column("better", ","), lambda row: row.better),
        (Column("worse", ","), lambda row: row.worse),
        (Column("ties", ","), lambda row: row.ties),
        (Column("detectable", ".4f"), lambda row: row.detectable),
        (Column("p", ".3g"), lambda row: row.p),
        (Column("Holm", ".3g"), lambda row: row.p_holm),
    ]
    return Table.of(
        rows, columns, f"differences to {rows[0].first}, {len(rows)} tests",
        "detectable: found at 5 % with a probability of 80 %; accuracies by McNemar's exact test",
        names=3,
    )  # fmt: skip
