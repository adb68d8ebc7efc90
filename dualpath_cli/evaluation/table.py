"""The scores of a model on the screen, the paper's beside them, and those of several models."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.comparison import Difference
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import ACCURACIES, Metric
from dualpath_cli.output.table import Column, Columns, Table, interval, with_error


def scores_of(results: Sequence[Result]) -> dict[str, float]:
    """The scores of the paper's benchmarks by the columns of its tables: `PIQA Acc.`, `C4`."""
    scores = {}
    for result in results:
        columns = _columns(result.benchmark)
        for column, metric in zip(columns, _accuracy_and_bits(result), strict=True):
            if column is not None and metric is not None:
                scores[column] = metric.value
    return scores


def score_table(
    model: Mapping[str, Any],
    results: Sequence[Result],
    means: Mapping[str, float],
    paper: Mapping[str, float] | None,
    paper_row: str | None,
) -> Table:
    """A row a benchmark, then the means; `paper` are the scores of its row, by its columns."""
    how = [f"window {model['window']:,}", f"batches of {model['batch_size']}", model["precision"]]
    if model.get("intervention", "learned") != "learned":
        how.insert(0, model["intervention"])
    columns = [
        Column("benchmark"), Column("by"), Column("documents", ","),
        Column("accuracy", with_error(".4f")),
        Column("bits/byte", with_error(".4f")),
    ]  # fmt: skip
    if paper:
        columns += [Column("paper's accuracy", ".4f"), Column("bits/byte", ".4f")]
    rows: list[list[Any]] = []
    for result in results:
        values = [metric and (metric.value, metric.stderr) for metric in _accuracy_and_bits(result)]
        row = [result.benchmark.name, result.benchmark.primary, result.facts["documents"], *values]
        if paper:
            names = _columns(result.benchmark)
            row += [paper.get(name) if name and result.whole else None for name in names]
        rows.append(row)
    for name, value in means.items():
        theirs = paper[name] if paper and all(result.whole for result in results) else None
        if name.endswith("Acc."):
            rows.append([name, "mean", None, (value, None), None, theirs])
        else:
            rows.append([name, "mean", None, None, (value, None), None, theirs])
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
