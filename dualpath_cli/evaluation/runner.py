"""Runs benchmarks on a model by lm-evaluation-harness, and writes its report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.evaluator import evaluate
from lm_eval.utils import handle_non_serializable
from rich.console import Console

from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.output.console import Progress, counted
from dualpath_cli.system import write_text

Report = dict[str, Any]
"""What the harness's `evaluate` returns, of all benchmarks."""


def run(model: HarnessModel, asked: Sequence[Asked], console: Console) -> Report:
    """The harness's report, a benchmark after the other: batches share their few-shot examples."""
    report: Report = {}
    for one in asked:
        name = one.benchmark.name
        with Progress(console, name, counted("requests")) as progress:
            model.progress = progress
            found: Any = evaluate(model, {"tasks": {name: one.task}}, samples=one.samples)
        for part, facts in found.items():
            report[part] = report.get(part, {}) | facts
    return report


def write(folder: Path, report: Report, more: Mapping[str, Any]) -> Path:
    """Writes results.json, the report with `more`, and samples/TASK.jsonl; returns the former."""
    for name, samples in report["samples"].items():
        # Contexts are left out: each repeats the few-shot examples.
        lines = [_json({k: v for k, v in row.items() if k != "arguments"}) for row in samples]
        write_text(folder / "samples" / f"{name}.jsonl", "".join(line + "\n" for line in lines))
    scores = {part: facts for part, facts in report.items() if part != "samples"}
    path = folder / "results.json"
    write_text(path, _json({**more, **scores}, indent=2) + "\n")
    return path


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, default=handle_non_serializable, ensure_ascii=False, indent=indent)
