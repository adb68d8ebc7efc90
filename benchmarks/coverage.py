"""How often a 95 % interval holds the number that its text was drawn from, by simulation.

python -m benchmarks.coverage

Beside the intervals of `statistics/bootstrap.py`, of the same resamples: the plain percentiles;
those that are corrected for bias (BC), and for skewness too (BCa); those reversed about the
estimate, the basic bootstrap; and of means the studentised ones (bootstrap-t). A cluster is a
document, or a window. The last columns are the shares of texts whose number lies above ours, and
below.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from benchmarks.results import show
from dualpath_cli.statistics.bootstrap import (
    Floats,
    correlation_interval,
    interval,
    resample_weights,
)

TEXTS = 1000
"""Simulated for each row of the table."""
TAGS = 16
ENDS = np.array((0.025, 0.975))


@dataclass(frozen=True)
class Text:
    """A simulated text: the numbers that its interval is made of, and the true one."""

    values: Floats
    """The number, and the resampled ones, (R,)."""
    true: float
    clusters: int
    errors: Floats | None = None
    """Standard error of each value, by the delta method, (R,)."""
    acceleration: float = 0.0
    """A sixth of the skewness of what clusters do to the number; BCa's a."""


Method = Callable[[Text], tuple[Floats, Floats]]
Effects = Callable[[np.random.Generator, int], Floats]
MEANS: dict[str, tuple[Effects, float, tuple[int, ...]]] = {
    "normal": (lambda draw, n: draw.normal(1, 1, n), 1.0, (10, 20, 60)),
    "log-normal 1": (lambda draw, n: draw.lognormal(0, 1, n), float(np.exp(0.5)), (10, 20, 60)),
    "log-normal 1.5": (
        lambda draw, n: draw.lognormal(0, 1.5, n), float(np.exp(1.125)), (10, 20, 60, 300),
    ),
    "0.2 in 1 of 10": (
        lambda draw, n: draw.normal(0, 0.02, n) + 0.2 * (draw.random(n) < 0.1), 0.02,
        (10, 20, 60, 300),
    ),
}  # fmt: skip
"""The cost of an override by document, in nats a token: normal, log-normal of sigma 1 and 1.5, or
0.2 in one of ten and next to nothing in others. With its mean, and the numbers of documents."""


def percentiles(text: Text) -> tuple[Floats, Floats]:
    low, high = np.nanquantile(text.values[1:], ENDS)
    return low, high


def bias_corrected(text: Text, acceleration: float = 0.0) -> tuple[Floats, Floats]:
    values = text.values
    below = ((values[1:] < values[0]).mean() + (values[1:] <= values[0]).mean()) / 2
    shift = norm.ppf(np.clip(below, 1 / len(values), 1 - 1 / len(values)))
    moved = shift + norm.ppf(ENDS)
    low, high = np.nanquantile(values[1:], norm.cdf(shift + moved / (1 - acceleration * moved)))
    return low, high


def accelerated(text: Text) -> tuple[Floats, Floats]:
    return bias_corrected(text, text.acceleration)


def reversed_percentiles(text: Text) -> tuple[Floats, Floats]:
    low, high = percentiles(text)
    return 2 * text.values[0] - high, 2 * text.values[0] - low


def studentised(text: Text) -> tuple[Floats, Floats]:
    assert text.errors is not None
    with np.errstate(invalid="ignore", divide="ignore"):
        away = (text.values[1:] - text.values[0]) / text.errors[1:]
    low, high = np.nanquantile(away, ENDS)
    return text.values[0] - high * text.errors[0], text.values[0] - low * text.errors[0]


def ours(text: Text) -> tuple[Floats, Floats]:
    return interval(text.values, text.clusters)


def ours_of_correlations(text: Text) -> tuple[Floats, Floats]:
    return correlation_interval(text.values, text.clusters)


METHODS = (percentiles, bias_corrected, accelerated, reversed_percentiles, studentised, ours)
OF_CORRELATIONS = (
    percentiles, bias_corrected, None, reversed_percentiles, None, ours_of_correlations,
)  # fmt: skip


def weights_of(clusters: int, source: str = "a") -> Floats:
    return np.stack([resample_weights(source, n) for n in range(clusters)])


def means(clusters: int, effects: Effects, true: float) -> Iterator[Text]:
    """Mean nats a token, over documents whose lengths span two orders of magnitude."""
    weights = weights_of(clusters)
    for seed in range(TEXTS):
        draw = np.random.default_rng(seed)
        tokens = np.exp(draw.normal(4, 1, clusters))
        nats = tokens * effects(draw, clusters)
        with np.errstate(invalid="ignore"):
            values = weights.T @ nats / (weights.T @ tokens)
            # Sum of (nats - value * tokens)^2 over the clusters of each resample.
            squares = weights.T @ np.stack([nats**2, nats * tokens, tokens**2], axis=1)
            left = squares[:, 0] - 2 * values * squares[:, 1] + values**2 * squares[:, 2]
            errors = np.sqrt(left.clip(min=0)) / (weights.T @ tokens)
        own = nats - values[0] * tokens
        skewness = float((own**3).sum() / (own**2).sum() ** 1.5)
        yield Text(values, true, clusters, errors, skewness / 6)


def rank_correlations(clusters: int, noise: float) -> Iterator[Text]:
    """Of the means of two texts' tags, which vary by 1, and by `noise` between documents."""
    weights = [weights_of(clusters, source) for source in "ab"]
    for seed in range(TEXTS):
        draw = np.random.default_rng(seed)
        common, own = draw.normal(size=TAGS), draw.normal(size=(2, TAGS))
        true = 0.9 * common + np.sqrt(1 - 0.9**2) * own
        estimates = []
        for text, weight in zip(true, weights, strict=True):
            tokens = draw.poisson(4, (clusters, TAGS)) + 1
            shares = text + draw.normal(0, noise, (clusters, TAGS))
            estimates.append(weight.T @ (tokens * shares) / (weight.T @ tokens))
        yield Text(_correlation(*estimates), float(_correlation(*true[:, None])[0]), clusters)


def _correlation(one: Floats, other: Floats) -> Floats:
    ranks = np.stack([rankdata(values, axis=1) for values in (one, other)])
    ranks -= ranks.mean(2, keepdims=True)
    return np.asarray((ranks[0] * ranks[1]).sum(1) / np.sqrt((ranks**2).sum(2).prod(0)))


def held(texts: Iterator[Text], *methods: Method | None) -> list[str]:
    """Share of the texts whose number each method's interval holds; of the last also both sides."""
    beyond = []
    for text in texts:
        ends = [method(text) for method in methods if method]
        beyond.append([(low - 1e-9 > text.true, text.true > high + 1e-9) for low, high in ends])
    below, above = np.mean(beyond, axis=0).T
    shares = iter(1 - below - above)
    cells = [f"{next(shares):.3f}" if method else "" for method in methods]
    return [*cells, f"{above[-1]:.3f}", f"{below[-1]:.3f}"]


def main() -> None:
    rows = []
    for name, (effects, true, sizes) in MEANS.items():
        for clusters in sizes:
            cells = held(means(clusters, effects, true), *METHODS)
            rows.append([name, str(clusters), *cells])
    for clusters in (20, 100):
        for noise in (0.1, 0.5, 1.0):
            cells = held(rank_correlations(clusters, noise), *OF_CORRELATIONS)
            rows.append([f"ranks, noise {noise:g}", str(clusters), *cells])
    methods = ("percentiles", "BC", "BCa", "reversed", "boot-t", "ours")
    show(["", "n", *methods, "above", "below"], rows)
    print(f"{TEXTS} texts a row: a share of 0.95 has a standard deviation of 0.007")


if __name__ == "__main__":
    main()
