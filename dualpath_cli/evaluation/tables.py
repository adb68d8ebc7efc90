"""The table of a model's scores, and the paper's means of them."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.report.table import Column, Table, with_error

Report = Mapping[str, Any]  # the harness's report: `results`, `samples`, `n-samples`
Score = tuple[float, float | None]  # with its standard error over documents

# Columns of the paper's tables.
COMMONSENSE_COLUMNS = ("ARC-c", "ARC-e", "HellaSwag", "PIQA", "SIQA", "WinoGrande")
MATH_COLUMNS = ("Algebra", "Counting", "Geometry", "Int. Algebra", "Number Theory", "Pre-algebra",
                "Pre-calculus")  # fmt: skip
MEANS: Mapping[str, tuple[str, ...]] = {
    "Commonsense Acc.": tuple(f"{task} Acc." for task in COMMONSENSE_COLUMNS),
    "Commonsense BPB": tuple(f"{task} BPB" for task in COMMONSENSE_COLUMNS),
    "Easy math avg BPB": tuple(f"{task} BPB" for task in MATH_COLUMNS),
    "aggregate BPB": ("C4", "WikiText-103", "Commonsense BPB", "Easy math avg BPB"),
    "mean BPB of 17": (
        *("C4", "WikiText-103"),
        *(f"{task} BPB" for task in (*COMMONSENSE_COLUMNS, *MATH_COLUMNS, "LAMBADA", "QASPER")),
    ),
}
"""Of which scores or earlier means each of the paper's means is; the last is that of its
parameter-quality figure."""


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
    """The paper's means of `scores_of`; a mean that lacks one of its scores is left out."""
    known = dict(scores)
    for name, parts in MEANS.items():
        if all(part in known for part in parts):
            known[name] = mean(known[part] for part in parts)
    return {name: value for name, value in known.items() if name not in scores}


def score_table(model: Mapping[str, Any], report: Report) -> Table:
    """A row for each benchmark, then the paper's means; `model` are the facts of results.json."""
    how = [f"window {model['window']:,}", f"batches of {model['batch_size']}", model["precision"]]
    if model["intervention"] != "learned":
        how.insert(0, model["intervention"])
    columns = [
        Column("benchmark"), Column("by"), Column("documents", ","),
        Column("accuracy", with_error(".4f")), Column("bits/byte", with_error(".4f")),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for task in report["results"]:
        documents = report["n-samples"][task]["effective"]
        scores = _accuracy_and_bits(report, task)
        rows.append([task, Benchmark(task).primary, documents, *scores])
    for name, value in means_of(scores_of(report)).items():
        score = (value, None)
        cells = [score, None] if name.endswith("Acc.") else [None, score]
        rows.append([name, "mean", None, *cells])
    caption = "± is one standard error over documents"
    if any(Benchmark(task).is_text for task in report["results"]):
        caption += f"; {ROLLING}: each window of a text is read after the preceding token"
    return Table(columns, rows, f"{model['name']}: {', '.join(how)}", caption)


def _accuracy_and_bits(report: Report, task: str) -> tuple[Score | None, Score | None]:
    """The primary accuracy, and the bits per byte of continuations or of texts."""
    primary = Benchmark(task).primary
    accuracy = _score(report, task, primary) if primary.startswith("acc") else None
    return accuracy, _score(report, task, ROLLING) or _score(report, task, "bpb")


def _score(report: Report, task: str, metric: str) -> Score | None:
    scores = report["results"][task]
    if f"{metric},none" not in scores:
        return None
    error = scores[f"{metric}_stderr,none"]
    return scores[f"{metric},none"], None if error == "N/A" else error
