"""The scores of lm-evaluation-harness's own tasks in a report, and their table.

They stand apart from the paper's benchmarks, of which several have the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualpath_cli.evaluation.benchmarks import (
    HARNESS,
    Report,
    benchmarks_in,
    score_table,
)
from dualpath_cli.report.table import Column, Columns, Table, with_error


@dataclass(frozen=True)
class HarnessScore:
    """A metric of a task, or of a group of tasks, by the harness's own rules."""

    task: str
    metric: str
    filter: str  # what an answer went through, `none` mostly
    value: float
    error: float | None  # the harness's standard error
    shots: int | None  # None of a group whose tasks differ
    documents: int | None  # None of a group

    @property
    def name(self) -> str:
        """The metric with its filter, where there is one."""
        return self.metric if self.filter == "none" else f"{self.metric},{self.filter}"


def harness_scores(report: Report) -> list[HarnessScore]:
    """The scores of the harness's tasks, in the order of the report."""
    found = []
    harness = report.get(HARNESS, {"results": {}})
    for task, scores in harness["results"].items():
        documents = harness["n-samples"].get(task, {}).get("effective")
        for name, value in scores.items():
            metric, has_filter, filter_ = name.partition(",")
            is_number = isinstance(value, int | float)
            if not has_filter or metric.endswith("_stderr") or not is_number:
                continue

            error = scores.get(f"{metric}_stderr,{filter_}")
            found.append(
                HarnessScore(
                    task,
                    metric,
                    filter_,
                    value,
                    error if isinstance(error, float) else None,
                    harness["n-shot"].get(task),
                    documents,
                )
            )
    return found


def harness_table(model: Mapping[str, Any], report: Report) -> Table:
    """A row for each score of the harness's tasks."""
    columns: Columns[HarnessScore] = [
        (Column("task"), lambda score: f"{HARNESS}:{score.task}"),
        (Column("metric"), lambda score: score.name),
        (Column("examples", ""), lambda score: score.shots),
        (Column("documents", ","), lambda score: score.documents),
        (Column("score", with_error(".4f")), lambda score: (score.value, score.error)),
    ]
    version = model["versions"]["lm_eval"]
    return Table.of(
        harness_scores(report),
        columns,
        f"{model['name']}: by the rules of lm-evaluation-harness {version}, not the "
        "paper's",
    )


def report_tables(model: Mapping[str, Any], report: Report) -> list[Table]:
    """The tables of a report: of the benchmarks, and of the harness's own tasks."""
    tables = []
    if benchmarks_in(report):
        tables.append(score_table(model, report))
    if HARNESS in report:
        tables.append(harness_table(model, report))
    return tables
