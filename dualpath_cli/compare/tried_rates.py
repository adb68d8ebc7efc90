"""The runs of one configuration at several learning rates: their scores, the best rate,
and whether that lies at an edge of the tried ones.

Shapes: K rates, S seeds.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare.rates import lowest, neighbours
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.recipe.keys import SCALED_RATES
from dualpath_cli.report.bootstrap import Floats

RATE_IN_NAME = re.compile(r"-lr_[\d.]+(e-?\d+)?")  # as a sweep names its recipes


def without_rate(run: TrainedRun) -> TrainedRun:
    """The run with its learning rate only in `rate`."""
    recipe = RATE_IN_NAME.sub("", run.settings.run.recipe)
    run_settings = replace(run.settings.run, recipe=recipe)
    return replace(
        run,
        rate=run.settings.optim.lr,
        settings=replace(run.settings, run=run_settings),
        key_values={
            key: value
            for key, value in run.key_values.items()
            if key not in SCALED_RATES
        },
    )


def scores_at_best_rate(
    name: str, runs: Sequence[TrainedRun]
) -> tuple[float, dict[str, dict[int, float]]]:
    """The best learning rate, the lowest point of a parabola over its log, and the
    scores there, by set and seed.

    Raises UserError unless three rates have a seed in common.
    """
    seeds = _seeds_at_all_rates(runs)
    rates = rates_of(runs)
    if len(rates) < 3 or not seeds:
        way_out = "train it at others"
        if len(rates) >= 3:
            way_out = "train the seeds that these lack"
        raise UserError(
            f"--best lr needs three learning rates of a seed in common; '{name}' has "
            f"{', '.join(f'{rate:g}' for rate in rates)}; {way_out}, or leave it out"
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


def _seeds_at_all_rates(runs: Sequence[TrainedRun]) -> list[int]:
    seeds: dict[float, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.rate, set()).add(run.seed)
    return sorted(set.intersection(*seeds.values()))


def scores_by_rate(
    runs: Sequence[TrainedRun], measure: str, seeds: Sequence[int]
) -> Floats:
    """Bits per byte (K, S) of each rate, from the lowest, and these seeds, which all
    rates have."""
    scores = {(run.rate, run.seed): run.scores[measure] for run in runs}
    rates = rates_of(runs)
    return np.array([[scores[rate, seed] for seed in seeds] for rate in rates])


def edge_of(runs: Sequence[TrainedRun], seeds: Sequence[int] | None = None) -> str:
    """Says that the rate with the lowest mean is the lowest or highest one; else
    empty. The means are those of some `seeds` that all rates have, by default of all.
    """
    if seeds is None:
        seeds = _seeds_at_all_rates(runs)
    rates = rates_of(runs)
    if len(rates) < 2 or not seeds:
        return ""

    scores_KS = scores_by_rate(runs, AGGREGATE, seeds).tolist()
    means = [fmean(scores) for scores in scores_KS]
    best = rates[means.index(min(means))]

    if best == rates[0]:
        return f"best at {best:g}, its lowest learning rate; train it at a lower one"
    if best == rates[-1]:
        return f"best at {best:g}, its highest learning rate; train it at a higher one"
    return ""
