"""Intervals over windows of text by the Poisson bootstrap, and a test over runs.

Each of 1,000 resamples weighs every window by an independent Poisson(1) number. A weight depends on
the source's name and the window's number alone: not on batches or ranks, so that a stream needs not
know how many windows follow, and is the same for all rows and runs on one source. Whatever is
computed from sums over windows is computed from the plain sums and from every resample's, and the
percentiles of these are its 95 % interval. Windows of one document count as independent.

Shapes: W windows, R 1 + resamples, C columns, N runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.seeds import seed_from

RESAMPLES = 1000
SEED = 0
FACTS: dict[str, Any] = {"resamples": RESAMPLES, "seed": SEED, "weights": "Poisson(1)"}
"""What a report says of its intervals."""

Floats = npt.NDArray[np.float64]


def resample_weights(source: str, window: int) -> Floats:
    """Returns how often each resample has a window, (R,), the first one being 1."""
    drawn = np.random.default_rng((SEED, seed_from(source), window)).poisson(1, RESAMPLES)
    return np.concatenate(([1.0], drawn))


def resampled_sums(source: str, windows: Sequence[int], values_WC: Floats) -> Floats:
    """Returns sums over the windows of these numbers, as they are and resampled, (R, C)."""
    sums_RC = np.zeros((1 + RESAMPLES, values_WC.shape[1]))
    for start in range(0, len(windows), 1000):  # the weights of all may not fit in memory
        some = slice(start, start + 1000)
        weights_WR = np.stack([resample_weights(source, window) for window in windows[some]])
        sums_RC += weights_WR.T @ values_WC[some]
    return sums_RC


def interval(values_R: Floats, least_known: float = 0.0) -> tuple[Floats, Floats]:
    """Returns the ends of the 95 % interval of values (R, ...), computed from resampled sums.

    Resamples without a value are left out. Both ends are nan where the plain sums, or more than
    1 - `least_known` of the resamples, give no value.
    """
    plain, resampled = values_R[0], values_R[1:]
    ends = np.full((2, *plain.shape), np.nan)
    share = np.isfinite(resampled).mean(0)
    known = np.isfinite(plain) & (share > 0) & (share >= least_known)
    if known.any():
        ends[:, known] = np.nanpercentile(resampled[:, known], [2.5, 97.5], axis=0)
    return ends[0], ends[1]


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test; nan where all are zero.

    Each difference is of one run. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)
