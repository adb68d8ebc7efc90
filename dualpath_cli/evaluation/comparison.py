"""Several models on the same documents: paired differences to the first one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import ACCURACIES
from dualpath_cli.statistics.bootstrap import Floats, interval, resampled_sums
from dualpath_cli.statistics.significance import detectable, holm, mcnemar_p, p_value


@dataclass(frozen=True)
class Difference:
    """One score of a model minus that of the first, over the same documents."""

    task: str
    metric: str
    model: str
    first: str
    value: float
    """The model's score."""
    difference: float
    low: float
    high: float
    """Ends of the 95 % interval, resampling documents; nan for too few."""
    better: int
    """Documents on which the model scores better than the first."""
    worse: int
    ties: int
    """Documents on which both score the same."""
    detectable: float
    """The smallest true difference that a test at 5 % finds with a probability of 80 %."""
    test: str
    """McNemar's exact test for accuracies, otherwise Student's t of the resampled difference."""
    p: float
    p_holm: float
    """Corrected for the tests of all rows."""


def compare(names: Sequence[str], results: Sequence[Sequence[Result]]) -> list[Difference]:
    """Compares every other model with the first one, on the primary metric and bits per byte."""
    rows: list[dict[str, Any]] = []
    for place, first in enumerate(results[0]):
        for name, others in zip(names[1:], results[1:], strict=True):
            other = others[place]
            if first.facts["sha256"] != other.facts["sha256"]:
                raise UserError(
                    f"{names[0]} and {name} were asked different {other.benchmark.name}"
                )
            metrics = dict.fromkeys((other.benchmark.primary, "bpb"))
            rows += [
                _difference(metric, names[0], first, name, other)
                for metric in metrics
                if metric in other.metrics
            ]
    corrected = holm([row["p"] for row in rows])
    return [Difference(**row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _difference(metric: str, first: str, one: Result, model: str, other: Result) -> dict[str, Any]:
    task, n = one.benchmark.name, len(one.samples)
    pairs = list(zip(one.samples, other.samples, strict=True))
    differences_R = _resampled(task, metric, one, other)
    low, high = (float(end[()]) for end in interval(differences_R, n))
    gains = [new[metric] - old[metric] for old, new in pairs if old[metric] is not None]
    exact = metric in ACCURACIES
    sign = 1 if exact else -1  # fewer bits are better; an empty text has none
    better, worse = (sum(way * sign * gain > 0 for gain in gains) for way in (1, -1))
    return {
        "task": task,
        "metric": metric,
        "model": model,
        "first": first,
        "value": other.metrics[metric].value,
        "difference": float(differences_R[0]),
        "low": low,
        "high": high,
        "better": better,
        "worse": worse,
        "ties": n - better - worse,
        "detectable": detectable(differences_R, n),
        "test": "McNemar" if exact else "t",
        "p": mcnemar_p(better, worse) if exact else p_value(differences_R, 0.0, n),
    }


def _resampled(task: str, metric: str, one: Result, other: Result) -> Floats:
    """The difference of two scores: first as it is, then of resampled documents, (1 + resamples,).

    For texts, of their bits per byte over all bytes; otherwise, of means over documents.
    """
    if one.benchmark.kind == "text":
        scores = [
            [-s["loglikelihood"] / np.log(2) for s in result.samples] for result in (one, other)
        ]
        weights = [sample["bytes"] for sample in one.samples]
    else:
        scores = [[sample[metric] for sample in result.samples] for result in (one, other)]
        weights = [1] * len(one.samples)
    values = np.array([np.subtract(scores[1], scores[0]), weights], dtype=float).T
    sums_R2 = resampled_sums(task, [sample["doc"] for sample in one.samples], values)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of no document
        return sums_R2[:, 0] / sums_R2[:, 1]
