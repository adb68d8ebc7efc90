"""The table of a model's scores, beside the paper's."""

from collections.abc import Mapping, Set
from itertools import chain
from statistics import mean
from typing import Any

from dualpath_cli.evaluation.benchmarks import PAPER_LIMIT, ROLLING, Benchmark
from dualpath_cli.flops import paper
from dualpath_cli.report.table import Column, Table, with_error

Report = Mapping[str, Any]  # the harness's report: `results`, `samples`, `n-samples`
Score = tuple[float, float | None]  # with its standard error over documents


def _score(report: Report, task: str, metric: str) -> Score | None:
    scores = report["results"][task]
    if f"{metric},none" not in scores:
        return None
    error = scores[f"{metric}_stderr,none"]
    return scores[f"{metric},none"], None if error == "N/A" else error


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
