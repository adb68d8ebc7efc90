"""A model's scores and their means on the screen, the paper's beside them; several models."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.comparison import Difference
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import ACCURACIES, Metric
from dualpath_cli.flops import paper
from dualpath_cli.output.table import Column, Columns, Table, interval, with_error

AGGREGATE = "aggregate BPB"
ALL = "mean BPB of 17"


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
    for name, parts in (
        *paper.AVERAGES.items(),
        (AGGREGATE, paper.AGGREGATE),
        (ALL, paper.ALL_BENCHMARKS),
    ):
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
    theirs: Mapping[str, float] | None,
    paper_row: str | None,
) -> Table:
    """A row a benchmark, then the means; `theirs` are the paper's scores of its row by columns."""
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
        if name.endswith("Acc."):
            rows.append([name, "mean", None, (value, None), None, beside])
        else:
            rows.append([name, "mean", None, None, (value, None), None, beside])
    title = f"{model['name']}: {', '.join(how)}"
    return Table(columns, rows, title, _caption(results, paper_row))


def _columns(benchmark: Benchmark) -> tuple[str | None, str | None]:
    """The paper's columns of a benchmark: of its accuracy, of its bits per byte."""
    name = benchmark.paper
    if name is None:
        return None, None
    if benchmark.kind == "text":
        return None, name
    return f"{name} Acc.", f"{name} BPB"


def _accuracy_and_bits(result: Result) -> tuple[Metric | None, Metric | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    metrics, primary = result.metrics, result.benchmark.primary
    accuracy = metrics[primary] if primary in ACCURACIES else None
    return accuracy, metrics.get(ROLLING, metrics.get("bpb"))


def _caption(results: Sequence[Result], paper_row: str | None) -> str:
    text = "± is one standard error over documents"
    if any(ROLLING in result.metrics for result in results):
        text += f"; {ROLLING}: each window of a text is read after the token before it"
    if paper_row is None:
        return text
    return f"{text}; the paper's row is {paper_row}, of at most 1,024 documents a benchmark"


def comparison_table(rows: Sequence[Difference]) -> Table:
    """A row a model and score, beside the first model."""
    columns: Columns[Difference] = [
        (Column("model"), lambda row: row.model),
        (Column("benchmark"), lambda row: row.task),
        (Column("by"), lambda row: row.metric),
        (Column("score", ".4f"), lambda row: row.value),
        (Column("difference", "+.4f"), lambda row: row.difference),
        (Column("95 % interval", interval("+.4f")), lambda row: (row.low, row.high)),
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
