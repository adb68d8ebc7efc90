"""The scores of a model on the screen, the paper's beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import ACCURACIES, Metric
from dualpath_cli.study.tables import table_of


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
    numbers = ["documents", "accuracy", "bits/byte"]
    numbers += ["paper's accuracy", "bits/byte"] if paper else []
    how = [f"window {model['window']:,}", f"batches of {model['batch_size']}", model["precision"]]
    if model.get("intervention", "learned") != "learned":
        how.insert(0, model["intervention"])
    title = f"{model['name']}: {', '.join(how)}"
    table = table_of(title, ("benchmark", "by"), numbers, _caption(results, paper_row))
    for result in results:
        cells = [f"{result.facts['documents']:,}", *map(_text, _accuracy_and_bits(result))]
        if paper:
            same = paper if result.whole else {}
            columns = [name or "" for name in _columns(result.benchmark)]
            cells += [f"{same[name]:.4f}" if name in same else "" for name in columns]
        table.add_row(result.benchmark.name, result.benchmark.primary, *cells)
    for name, value in means.items():
        cells = ["", f"{value:.4f}", ""] if name.endswith("Acc.") else ["", "", f"{value:.4f}"]
        if paper:
            theirs = f"{paper[name]:.4f}" if all(result.whole for result in results) else ""
            cells += [theirs, ""] if name.endswith("Acc.") else ["", theirs]
        table.add_row(name, "mean", *cells)
    return table


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


def _text(metric: Metric | None) -> str:
    if metric is None:
        return ""
    error = "" if metric.stderr != metric.stderr else f" ± {metric.stderr:.4f}"
    return f"{metric.value:.4f}{error}"


def _caption(results: Sequence[Result], paper_row: str | None) -> str:
    text = "± is one standard error over documents"
    if any(ROLLING in result.metrics for result in results):
        text += f"; {ROLLING}: each window of a text is read after the token before it"
    if paper_row is None:
        return text
    return f"{text}; the paper's row is {paper_row}, of at most 1,024 documents a benchmark"
