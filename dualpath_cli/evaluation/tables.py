"""A model's scores beside the paper's, and several models on the same documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.results import ACCURACIES, Metric, Result
from dualpath_cli.flops import paper
from dualpath_cli.output.table import Column, Columns, Table, with_error
from dualpath_cli.output.table import interval as interval_text
from dualpath_cli.statistics.bootstrap import Floats, interval, resampled_sums
from dualpath_cli.statistics.significance import detectable, holm, mcnemar_p, p_value


@dataclass(frozen=True)
class Difference:
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


def compare(names: Sequence[str], results: Sequence[Sequence[Result]]) -> list[Difference]:
    """Compares every other model with the first one, on the primary metric and bits per byte."""
    rows: list[dict[str, Any]] = []
    for place, first in enumerate(results[0]):
        for name, others in zip(names[1:], results[1:], strict=True):
            other = others[place]
            if first.facts["sha256"] != other.facts["sha256"]:
                task = other.benchmark.name
                raise UserError(f"{names[0]} and {name} were asked different {task}")
            metrics = dict.fromkeys((other.benchmark.primary, "bpb"))
            rows += [
                _difference(metric, names[0], first, name, other)
                for metric in metrics
                if metric in other.metrics
            ]
    corrected = holm([row["p"] for row in rows])
    return [Difference(**row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _difference(metric: str, first: str, one: Result, model: str, other: Result) -> dict[str, Any]:
    task, n = one.benchmark.name, len(one.samples)
    pairs = list(zip(one.samples, other.samples, strict=True))
    differences_R = _resampled(task, metric, one, other)
    low, high = (float(end[()]) for end in interval(differences_R, n))
    gains = [new[metric] - old[metric] for old, new in pairs if old[metric] is not None]
    exact = metric in ACCURACIES
    sign = 1 if exact else -1  # fewer bits are better; an empty text has none
    better, worse = (sum(way * sign * gain > 0 for gain in gains) for way in (1, -1))
    return {
        "task": task, "metric": metric, "model": model, "first": first,
        "value": other.metrics[metric].value, "difference": float(differences_R[0]),
        "low": low, "high": high, "better": better, "worse": worse, "ties": n - better - worse,
        "detectable": detectable(differences_R, n), "test": "McNemar" if exact else "t",
        "p": mcnemar_p(better, worse) if exact else p_value(differences_R, 0.0, n),
    }  # fmt: skip


def _resampled(task: str, metric: str, one: Result, other: Result) -> Floats:
    """The difference of two scores: first as it is, then of resampled documents, (1 + resamples,).

    For texts, of their bits per byte over all bytes; otherwise, of means over documents.
    """
    if one.benchmark.kind == "text":
        scores = [
            [-s["loglikelihood"] / np.log(2) for s in result.samples] for result in (one, other)
        ]
        weights = [sample["bytes"] for sample in one.samples]
    else:
        scores = [[sample[metric] for sample in result.samples] for result in (one, other)]
        weights = [1] * len(one.samples)
    values = np.array([np.subtract(scores[1], scores[0]), weights], dtype=float).T
    sums_R2 = resampled_sums(task, [sample["doc"] for sample in one.samples], values)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of no document
        return sums_R2[:, 0] / sums_R2[:, 1]


AGGREGATE, ALL = "aggregate BPB", "mean BPB of 17"


def scores_of(results: Sequence[Result]) -> dict[str, float]:
    """The scores of the paper's benchmarks by the columns of its tables: `PIQA Acc.`, `C4`."""
    scores = {}
    for result in results:
        columns = _columns(result.benchmark)
        for column, metric in zip(columns, _accuracy_and_bits(result), strict=True):
            if column is not None and metric is not None:
                scores[column] = metric.value
    return scores


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
    aggregate, of_all = paper.aggregate_bpb(budget)[label], paper.mean_bpb(budget)[label]
    return printed | {AGGREGATE: aggregate, ALL: of_all}


def score_table(
    model: Mapping[str, Any],
    results: Sequence[Result],
    means: Mapping[str, float],
    paper_row: str | None,
) -> Table:
    """A row a benchmark, then the means, beside those of the paper's configuration, if any."""
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
    for result in results:
        values = [metric and (metric.value, metric.stderr) for metric in _accuracy_and_bits(result)]
        row = [result.benchmark.name, result.benchmark.primary, result.facts["documents"], *values]
        if theirs:
            names = _columns(result.benchmark)
            row += [theirs.get(name) if name and result.whole else None for name in names]
        rows.append(row)
    for name, value in means.items():
        beside = theirs[name] if theirs and all(result.whole for result in results) else None
        empty = [] if name.endswith("Acc.") else [None]
        rows.append([name, "mean", None, *empty, (value, None), None, beside])
    caption = "± is one standard error over documents"
    if any(ROLLING in result.metrics for result in results):
        caption += f"; {ROLLING}: each window of a text is read after the token before it"
    if paper_row is not None:
        caption += f"; the paper's row is {paper_row}, of at most 1,024 documents a benchmark"
    return Table(columns, rows, f"{model['name']}: {', '.join(how)}", caption)


def _columns(benchmark: Benchmark) -> tuple[str | None, str | None]:
    """The paper's columns of a benchmark: of its accuracy, of its bits per byte."""
    name = benchmark.paper
    if name is None:
        return None, None
    return (None, name) if benchmark.kind == "text" else (f"{name} Acc.", f"{name} BPB")


def _accuracy_and_bits(result: Result) -> tuple[Metric | None, Metric | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    metrics, primary = result.metrics, result.benchmark.primary
    accuracy = metrics[primary] if primary in ACCURACIES else None
    return accuracy, metrics.get(ROLLING, metrics.get("bpb"))


def comparison_table(rows: Sequence[Difference]) -> Table:
    columns: Columns[Difference] = [
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
