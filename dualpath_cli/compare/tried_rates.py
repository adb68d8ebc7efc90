"""The runs of one configuration at several learning rates: their scores, the best rate,
and whether that lies at an edge of the tried ones.

A rate at which any run went wrong counts as worse than all others: it is left out with
all of its seeds, as those that came to an end would be the luckier ones.

Shapes: K rates, S seeds.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare.rates import lowest, neighbours
from dualpath_cli.compare.runs import (
    AGGREGATE,
    TrainedRun,
    decisive_values,
    settings_of,
)
from dualpath_cli.recipe.keys import SCALED_RATES
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.run.run_folder import WENT_WRONG, facts_now, mapping_of

RATE_IN_NAME = re.compile(r"-lr_[\d.]+(e-?\d+)?")  # as a sweep names its recipes


def without_rate(run: TrainedRun) -> TrainedRun:
    """The run with its learning rate only in `rate`."""
    recipe = RATE_IN_NAME.sub("", run.settings.run.recipe)
    run_settings = replace(run.settings.run, recipe=recipe)
    return replace(
        run,
        rate=run.settings.optim.lr,
        settings=replace(run.settings, run=run_settings),
        key_values=_without_rates(run.key_values),
    )


def _without_rates(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in SCALED_RATES}


def with_diverged_rates(
    runs: Iterable[TrainedRun], unfinished: Iterable[Path]
) -> list[TrainedRun]:
    """The runs, each with the rates of those `unfinished` run folders whose numbers
    went wrong and that differ from it only in rate and seed."""

    def key_of(values: Mapping[str, Any]) -> str:
        return json.dumps(_without_rates(values))

    diverged: dict[str, set[float]] = {}
    for folder in unfinished:
        if (folder / WENT_WRONG).is_file():
            settings = settings_of(folder)
            classes = mapping_of(folder, facts_now(folder), "classes")
            key = key_of(decisive_values(settings, classes))
            diverged.setdefault(key, set()).add(settings.optim.lr)

    return [
        replace(run, diverged=tuple(sorted(diverged.get(key_of(run.key_values), ()))))
        for run in runs
    ]


def without_diverged_rates(runs: Iterable[TrainedRun]) -> tuple[TrainedRun, ...]:
    """The runs at rates at which no run of their configuration went wrong."""
    return tuple(run for run in runs if run.rate not in run.diverged)


def scores_at_best_rate(
    name: str, runs: Sequence[TrainedRun], diverged: Sequence[float]
) -> tuple[float, dict[str, dict[int, float]]]:
    """The best learning rate, the lowest point of a parabola over its log, and the
    scores there, by set and seed.

    Raises UserError unless three rates have a seed in common, beside those that
    `diverged`.
    """
    seeds = _seeds_at_all_rates(runs)
    rates = rates_of(runs)
    if len(rates) < 3 or not seeds:
        tried = rates_text(rates) or "none"
        if diverged:
            tried += f" (runs at {rates_text(diverged)} went wrong)"
        way_out = "train it at more rates"
        if len(rates) >= 3:
            way_out = "train the seeds that these lack"
        raise UserError(
            "--best lr needs three learning rates with a common seed; "
            f"'{name}' has {tried}; {way_out}, or leave '{name}' out"
        )

    logs = np.log(rates)
    means = scores_by_rate(runs, AGGREGATE, seeds).mean(1)
    place = float(lowest(logs, means)[0])

    # Each seed and set has its own parabola, through the same three rates.
    near = neighbours(means)
    scores = {}
    for measure in runs[0].scores:
        scores_KS = scores_by_rate(runs, measure, seeds)
        at_place = np.polyval(np.polyfit(logs[near], scores_KS[near], 2), place)
        scores[measure] = dict(zip(seeds, at_place.tolist(), strict=True))
    return float(np.exp(place)), scores


def rates_of(runs: Iterable[TrainedRun]) -> list[float]:
    return sorted({run.rate for run in runs})


def rates_text(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


def _seeds_at_all_rates(runs: Sequence[TrainedRun]) -> list[int]:
    seeds: dict[float, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.rate, set()).add(run.seed)
    return sorted(set.intersection(*seeds.values())) if seeds else []


def scores_by_rate(
    runs: Sequence[TrainedRun], measure: str, seeds: Sequence[int]
) -> Floats:
    """Bits per byte (K, S) of each rate, from the lowest, and these seeds, which all
    rates have."""
    scores = {(run.rate, run.seed): run.scores[measure] for run in runs}
    rates = rates_of(runs)
    return np.array([[scores[rate, seed] for seed in seeds] for rate in rates])


def edge_of(runs: Sequence[TrainedRun], seeds: Sequence[int] | None = None) -> str:
    """Says that the rate with the lowest mean is the lowest or highest one, and which
    rate to try next; else empty.

    The means are those of some `seeds` that all rates have, by default of all. None of
    the runs is at a rate that diverged.
    """
    if seeds is None:
        seeds = _seeds_at_all_rates(runs)
    rates = rates_of(runs)
    if len(rates) < 2 or not seeds:
        return ""

    scores_KS = scores_by_rate(runs, AGGREGATE, seeds).tolist()
    means = [fmean(scores) for scores in scores_KS]
    best = rates[means.index(min(means))]
    if rates[0] < best < rates[-1]:
        return ""

    is_lowest = best == rates[0]
    beyond = [rate for rate in runs[0].diverged if (rate < best) == is_lowest]
    if beyond:
        nearest = min(beyond, key=lambda rate: abs(rate - best))
        return (
            f"best at {best:g}; runs at {nearest:g} went wrong; train it at a rate "
            "between them"
        )
    end, way = ("lowest", "lower") if is_lowest else ("highest", "higher")
    return f"best at {best:g}, its {end} learning rate; train it at a {way} one"
