"""Tests: of a number against a bound, of accuracies, over runs. Torch-free."""

from collections.abc import Sequence

import numpy as np

from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, LEAST_KNOWN, Floats

LEVEL = 0.05  # a corrected p-value below this rejects
POWER = 0.8  # the probability of finding the smallest detectable difference


def p_value(values_R: Floats, bound: float, clusters: int) -> float:
    """Returns the two-sided p-value of a number against a bound by Student's t.

    `values_R` holds the number and 1,000 resampled ones, (R,), whose spread is its standard error;
    `clusters` of text were resampled. nan where too little is known for an interval.
    """
    from scipy.stats import t

    error = standard_error(values_R, clusters)
    away = abs(float(values_R[0]) - bound)
    if error == 0:
        return 1.0 if away == 0 else 0.0
    return float(2 * t.sf(away / error, clusters - 1))


def standard_error(values_R: Floats, clusters: int) -> float:
    """Returns the standard error of a number, by the spread of the resampled ones behind it, (R,).

    Resamples of n clusters vary too little by the square root of n / (n - 1). A few resamples may
    have no number; nan where too little is known for an interval.
    """
    resampled = values_R[1:][np.isfinite(values_R[1:])]
    known = len(resampled) >= LEAST_KNOWN * (len(values_R) - 1) and np.isfinite(values_R[0])
    if clusters < LEAST_CLUSTERS or not known:
        return float("nan")
    return float(resampled.std(ddof=1)) * np.sqrt(clusters / (clusters - 1))


def detectable(values_R: Floats, clusters: int) -> float:
    """Returns the smallest true difference that a test at 5 % finds with a probability of 80 %.

    `values_R` and nan are as in `standard_error`.
    """
    from scipy.stats import norm

    sizes = norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER)
    return float(sizes * standard_error(values_R, clusters))


def mcnemar_p(better: int, worse: int) -> float:
    """Returns the exact two-sided p-value that two models are right as often (McNemar's test).

    `better` and `worse` count the documents on which one of them alone is right. The others say
    nothing; without any of these it is 1.
    """
    from scipy.stats import binomtest

    if better + worse == 0:
        return 1.0
    return float(binomtest(better, better + worse).pvalue)


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, (N,); nan where all are zero.

    Each difference is of one run. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm 1979); nan, no test, stays and counts not.

    Rejecting all that are below 0.05 rejects a true hypothesis in one of twenty families.
    """
    order = sorted((n for n, p in enumerate(p_values) if p == p), key=lambda n: p_values[n])
    corrected = [float("nan")] * len(p_values)
    least = 0.0
    for place, number in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * p_values[number]))
        corrected[number] = least
    return corrected
