"""The files of an evaluation, one a benchmark, reused when the same is asked again.

OUT/<model>/
    tasks/TASK.json        what was asked, what decides the numbers, the scores, the samples' hash
    samples/TASK.jsonl     a line a document
    results.json, .csv     all of it together
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.evaluation.benchmarks import Benchmark
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.scoring import Metric, Sample, metrics_of
from dualpath_cli.files import format_csv, write_text

LAYOUT = 2
"""Of these files, and of how their numbers are computed."""
_NOT_DECISIVE = ("name", "path", "run", "step", "checkpoint")
"""Facts of a model that do not change its scores: settings and the hash of the weights do."""


@dataclass(frozen=True)
class Result:
    """A benchmark's scores for one model."""

    benchmark: Benchmark
    facts: Mapping[str, Any]
    """The request."""
    whole: bool
    """Whether they are the benchmark's own documents."""
    metrics: Mapping[str, Metric]
    """By name, the primary one first."""
    samples: Sequence[Sample]
    """In the order of the documents."""


def key_of(model: Mapping[str, Any], asked: Asked) -> str:
    """Hash of what decides the numbers of a benchmark."""
    facts = {name: value for name, value in model.items() if name not in _NOT_DECISIVE}
    asked_of = [asked.benchmark.name, asked.benchmark.kind, asked.benchmark.primary, asked.digest]
    text = json.dumps([LAYOUT, facts, asked_of], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find(folder: Path, asked: Asked, key: str) -> Result | str | None:
    """The scores of an earlier call with the same key; None where there are none.

    They are made of the samples again; where these are no longer what was written, what is the
    matter instead.
    """
    path = folder / "samples" / f"{asked.benchmark.name}.jsonl"
    try:
        head = json.loads((folder / "tasks" / f"{asked.benchmark.name}.json").read_bytes())
        if head["key"] != key:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        lines = path.read_bytes()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if hashlib.sha256(lines).hexdigest() != head.get("samples_sha256"):
        return f"{path} is not as it was written"
    return _result(asked, [json.loads(line) for line in lines.splitlines()])


def keep(folder: Path, asked: Asked, key: str, samples: Sequence[Sample]) -> Result:
    """Writes a benchmark's samples, then its scores, which say that it is finished."""
    name, result = asked.benchmark.name, _result(asked, samples)
    lines = "".join(json.dumps(_finite(sample), ensure_ascii=False) + "\n" for sample in samples)
    write_text(folder / "samples" / f"{name}.jsonl", lines)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    content = {"task": name, "key": key, "samples_sha256": digest, **record(result)}
    write_text(folder / "tasks" / f"{name}.json", json.dumps(content, indent=2) + "\n")
    return result


def _result(asked: Asked, samples: Sequence[Sample]) -> Result:
    metrics = metrics_of(asked.benchmark, samples)
    return Result(asked.benchmark, asked.facts, asked.whole, metrics, samples)


def record(result: Result) -> dict[str, Any]:
    """A benchmark's scores and what was asked, as JSON has them."""
    return {
        "primary": result.benchmark.primary,
        "metrics": {
            name: _finite({"value": metric.value, "stderr": metric.stderr})
            for name, metric in result.metrics.items()
        },
        **result.facts,
    }


def write(
    folder: Path,
    model: Mapping[str, Any],
    results: Sequence[Result],
    means: Mapping[str, float],
    skipped: Mapping[str, str],
) -> None:
    """Writes results.json and results.csv of one model."""
    content = {
        "model": dict(model),
        "tasks": {result.benchmark.name: record(result) for result in results},
        "means": dict(means),
        "skipped": dict(skipped),
    }  # fmt: skip
    rows = [
        _finite({
            "model": model["name"], "task": result.benchmark.name, "metric": name,
            "primary": int(name == result.benchmark.primary), "value": metric.value,
            "stderr": metric.stderr, "documents": result.facts["documents"],
            "shots": result.facts["shots"],
        })
        for result in results
        for name, metric in result.metrics.items()
    ]  # fmt: skip
    write_text(folder / "results.json", json.dumps(content, indent=2) + "\n")
    write_text(folder / "results.csv", format_csv(rows))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with None for what is no number, or an infinite one: JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
