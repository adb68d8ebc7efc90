"""Scores from log-likelihoods: of a document, and of a benchmark with its standard errors.

Logarithms are natural, bytes those of UTF-8. The space that a continuation begins with counts among
its bytes and characters, as in OLMES.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualpath_cli.evaluation.benchmarks import ROLLING, Benchmark
from dualpath_cli.evaluation.formats import Question, last_number

Sample = dict[str, Any]
"""The record of one document, a line of JSON: `doc`, its scores, and the numbers behind them."""

ACCURACIES = ("acc_uncond", "acc_per_char", "acc_raw", "acc")
"""Metrics that are 0 or 1 for a document."""


@dataclass(frozen=True)
class Metric:
    """A score of a benchmark."""

    value: float
    stderr: float
    """Standard error, with the documents as a sample of many more; nan for a single document."""


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
    scores = {
        "acc_raw": raw,
        "acc_per_char": raw / [len(text) for text in question.continuations],
    }
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
    """The bits per byte of the right continuation."""
    sizes = [len(text.encode()) for text in question.continuations]
    return {
        "loglikelihoods": list(loglikelihoods),
        "bytes": sizes,
        "gold": question.gold,
        "bpb": bits_per_byte(loglikelihoods[question.gold], sizes[question.gold]),
    }


def score_written(question: Question, text: str) -> Sample:
    """Whether the last number in a model's output is the answer."""
    answer = last_number(text)
    return {
        "written": text,
        "answer": answer,
        "gold": question.answer,
        "acc": int(answer == question.answer),
    }


def score_text(text: str, loglikelihood: float) -> Sample:
    """A whole text's log-likelihood and bytes, which `metrics_of` sums over texts."""
    size = len(text.encode())
    return {
        "loglikelihood": loglikelihood,
        "bytes": size,
        ROLLING: bits_per_byte(loglikelihood, size),
    }


def bits_per_byte(loglikelihood: float, size: int) -> float:
    """``-loglikelihood / (ln 2 * bytes)``; nan for no bytes."""
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
