"""Intervals and tests for paired differences. Shapes: W windows, R rows, N runs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
BOOTSTRAP_SEED = 0

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def bootstrap_interval(
    nats_WR: Floats, tokens_W: Counts, resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED
) -> tuple[Floats, Floats]:
    """Returns the 95 % interval of each column's mean per token: its ends, low (R,) and high (R,).

    Percentiles over resamples: whole windows are drawn with replacement, the same ones for all
    columns, and the nats of a draw are divided by its tokens. Windows of one document count as
    independent. One window alone says nothing about others: both ends are nan.
    """
    count = len(tokens_W)
    if count < 2:
        nan = np.full(nats_WR.shape[1], np.nan)
        return nan, nan
    draw = np.random.default_rng(seed)
    means = np.empty((resamples, nats_WR.shape[1]))
    for mean_R in means:
        times_W = np.bincount(draw.integers(count, size=count), minlength=count)
        mean_R[:] = times_W @ nats_WR / (times_W @ tokens_W)
    low_R, high_R = np.percentile(means, [2.5, 97.5], axis=0)
    return low_R, high_R


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test; nan where all are zero.

    Each difference is of one run. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)
