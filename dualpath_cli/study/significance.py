"""Tests: of a number against a bound, of correlations, over runs."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dualpath_cli.study.bootstrap import LEAST_CLUSTERS, LEAST_KNOWN, Floats

PERMUTATIONS = 9999
"""Of a permutation test; where there are fewer in all, all of them."""


def p_value(values_R: Floats, bound: float, clusters: int) -> float:
    """Returns the two-sided p-value of a number against a bound by Student's t.

    `values_R` holds the number and 1,000 resampled ones, (R,), whose spread is its standard error;
    `clusters` of text were resampled. nan where too little is known for an interval.
    """
    from scipy.stats import t

    resampled = values_R[1:][np.isfinite(values_R[1:])]
    known = len(resampled) >= LEAST_KNOWN * (len(values_R) - 1) and np.isfinite(values_R[0])
    if clusters < LEAST_CLUSTERS or not known:
        return float("nan")
    error = float(resampled.std(ddof=1)) * np.sqrt(clusters / (clusters - 1))
    away = abs(float(values_R[0]) - bound)
    if error == 0:
        return 1.0 if away == 0 else 0.0
    return float(2 * t.sf(away / error, clusters - 1))


def permutation_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the two-sided p-value of a correlation: how often a random pairing has a larger one.

    nan for fewer than three pairs, and where all of one side are equal.
    """
    from scipy.stats import permutation_test

    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return float("nan")
    found = permutation_test(
        (np.array(one, float),), partial(_correlation, np.array(other, float)), vectorized=True,
        permutation_type="pairings", n_resamples=PERMUTATIONS,
        random_state=np.random.default_rng(0),
    )  # fmt: skip
    return float(found.pvalue)


def _correlation(other: Floats, one: Floats, axis: int) -> Floats:
    """Pearson's, rounded: pairings that agree as well must not differ in their last digit."""
    one, other = one - one.mean(axis, keepdims=True), other - other.mean()
    scale = np.sqrt((one**2).sum(axis) * (other**2).sum())
    rounded: Floats = np.round((one * other).sum(axis) / scale, 10)
    return rounded


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, (N,); nan where all are zero.

    Each difference is of one run. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)
