"""Tests over runs, and their correction for their number. Torch-free."""

from collections.abc import Sequence

LEVEL = 0.05  # a corrected p-value below this rejects
POWER = 0.8  # the probability of finding the smallest detectable difference


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, (N,); nan where all are zero.

    Each run gives one difference. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm 1979); nan (no test) stays, uncounted.

    Rejecting all values below 0.05 rejects a true hypothesis in at most one of twenty families.
    """
    order = sorted((n for n, p in enumerate(p_values) if p == p), key=lambda n: p_values[n])
    corrected = [float("nan")] * len(p_values)
    least = 0.0
    for place, number in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * p_values[number]))
        corrected[number] = least
    return corrected
