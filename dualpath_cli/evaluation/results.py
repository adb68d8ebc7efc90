"""Scores from log-likelihoods, and their files, reused when the same is asked again.

OUT/<model>/
    tasks/TASK.json        what was asked, what decides the numbers, the scores, the samples' hash
    samples/TASK.jsonl     a line a document
    results.json, .csv     all of it together

Logarithms are natural, bytes those of UTF-8. The space that a continuation begins with counts among
its bytes and characters, as in OLMES.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.formats import Question, last_number
from dualpath_cli.system import format_csv, write_text

Sample = dict[str, Any]
"""The record of one document, a line of JSON: `doc`, its scores, and the numbers behind them."""

ACCURACIES = ("acc_uncond", "acc_per_char", "acc_raw", "acc")  # 0 or 1 for a document


@dataclass(frozen=True)
class Metric:
    value: float
    stderr: float  # with the documents as a sample of many more; nan for a single one


def score_choices(
    question: Question, loglikelihoods: Sequence[float], unconditional: Sequence[float] | None
) -> Sample:
    """Whether a model chooses right, by three normalisations, and the right choice's bits per byte.

    The choice with the largest score is taken, of equal ones the first. `acc_raw` scores by
    log-likelihood; `acc_per_char` divides it by the choice's characters; `acc_uncond` subtracts the
    log-likelihood without the question, if `unconditional` is given. `tie` tells whether several
    choices were best by any of these.
    """
    raw = np.array(loglikelihoods)
    characters = [len(text) for text in question.continuations]
    scores = {"acc_raw": raw, "acc_per_char": raw / characters}
    if unconditional is not None:
        scores["acc_uncond"] = raw - np.array(unconditional)
    sample = score_gold(question, loglikelihoods)
    for name, values in scores.items():
        sample[name] = int(values.argmax() == question.gold)
    sample["tie"] = any(int((values == values.max()).sum()) > 1 for values in scores.values())
    if unconditional is not None:
        sample["unconditional"] = list(unconditional)
    return sample


def score_gold(question: Question, loglikelihoods: Sequence[float]) -> Sample:
    sizes = [len(text.encode()) for text in question.continuations]
    bits = _bits_per_byte(loglikelihoods[question.gold], sizes[question.gold])
    return {"loglikelihoods": [*loglikelihoods], "bytes": sizes, "gold": question.gold, "bpb": bits}


def score_written(question: Question, text: str) -> Sample:
    """Whether the last number in a model's output is the answer."""
    answer = last_number(text)
    right = int(answer == question.answer)
    return {"written": text, "answer": answer, "gold": question.answer, "acc": right}


def score_text(text: str, loglikelihood: float) -> Sample:
    """A whole text's log-likelihood and bytes, which `metrics_of` sums over texts."""
    size = len(text.encode())
    bits = _bits_per_byte(loglikelihood, size)
    return {"loglikelihood": loglikelihood, "bytes": size, ROLLING: bits}


def _bits_per_byte(loglikelihood: float, size: int) -> float:
    return -loglikelihood / (math.log(2) * size) if size else math.nan


def metrics_of(benchmark: Benchmark, samples: Sequence[Sample]) -> dict[str, Metric]:
    """The scores of a benchmark, the primary one first: means over documents.

    Texts have the bits per byte of all their bytes together, ``-sum LL / (ln 2 * sum bytes)``, with
    the standard error of a ratio.
    """
    if benchmark.kind == "text":
        return {ROLLING: _corpus(samples)}
    names = [name for name in (*ACCURACIES, "bpb") if name in samples[0]]
    names.sort(key=lambda name: name != benchmark.primary)
    return {name: _mean([sample[name] for sample in samples]) for name in names}


def _mean(values: Sequence[float]) -> Metric:
    n = len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Metric(float(np.mean(values)), error)


def _corpus(samples: Sequence[Sample]) -> Metric:
    bits = np.array([-sample["loglikelihood"] / math.log(2) for sample in samples])
    sizes = np.array([sample["bytes"] for sample in samples], dtype=float)
    n, value = len(samples), float(bits.sum() / sizes.sum())
    residuals = bits - value * sizes
    squares = float(residuals @ residuals)
    error = math.sqrt(squares * n / (n - 1)) / sizes.sum() if n > 1 else math.nan
    return Metric(value, float(error))


@dataclass(frozen=True)
class Result:
    benchmark: Benchmark
    facts: Mapping[str, Any]  # the request
    whole: bool  # whether they are the benchmark's own documents
    metrics: Mapping[str, Metric]  # by name, the primary one first
    samples: Sequence[Sample]  # in the order of the documents


def key_of(model: Mapping[str, Any], asked: Asked) -> str:
    """Hash of what decides the numbers of a benchmark."""
    names = ("name", "path", "run", "step", "checkpoint")  # the hash of the weights does decide
    facts = {name: value for name, value in model.items() if name not in names}
    asked_of = [asked.benchmark.name, asked.benchmark.kind, asked.benchmark.primary, asked.digest]
    layout = 2  # of these files, and of how their numbers are computed
    text = json.dumps([layout, facts, asked_of], sort_keys=True)
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
    content = {"task": name, "key": key, "samples_sha256": digest, **_record(result)}
    write_text(folder / "tasks" / f"{name}.json", json.dumps(content, indent=2) + "\n")
    return result


def _result(asked: Asked, samples: Sequence[Sample]) -> Result:
    metrics = metrics_of(asked.benchmark, samples)
    return Result(asked.benchmark, asked.facts, asked.whole, metrics, samples)


def _record(result: Result) -> dict[str, Any]:
    """A benchmark's scores and what was asked, as JSON has them."""
    metrics = {name: _finite(vars(metric)) for name, metric in result.metrics.items()}
    return {"primary": result.benchmark.primary, "metrics": metrics, **result.facts}


def write(
    folder: Path,
    model: Mapping[str, Any],
    results: Sequence[Result],
    means: Mapping[str, float],
    skipped: Mapping[str, str],
) -> None:
    content = {
        "model": dict(model),
        "tasks": {result.benchmark.name: _record(result) for result in results},
        "means": dict(means),
        "skipped": dict(skipped),
    }  # fmt: skip
    rows = [
        _finite({
            "model": model["name"], "task": result.benchmark.name, "metric": name,
            "primary": int(name == result.benchmark.primary), **vars(metric),
            "documents": result.facts["documents"], "shots": result.facts["shots"],
        })
        for result in results for name, metric in result.metrics.items()
    ]  # fmt: skip
    write_text(folder / "results.json", json.dumps(content, indent=2) + "\n")
    write_text(folder / "results.csv", format_csv(rows))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with None for what is no number, or an infinite one: JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
