"""Intervals by the Poisson bootstrap over clusters of text: documents, or else windows.

Tokens of one document are correlated, so a document is drawn whole. Each of 1,000
resamples weighs every cluster by an independent Poisson(1) number. A weight depends
only on the source's name and the cluster's number, not on batches or ranks. So the
total number need not be known, and weights are the same for all rows and runs on one
source. Every statistic of sums over windows is computed from the plain sums and from
each resample's sums. The coverage of the intervals is simulated in
tests/report/test_bootstrap.py.

Shapes: W windows, R 1 + resamples, C columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.output import amount
from dualpath_cli.base.seeds import seed_from

RESAMPLES = 1000
SEED = 0
CLUSTERS_AT_ONCE = 1000
LEAST_CLUSTERS = 10
"""With fewer clusters no command gives an interval or a test. If a source has fewer
documents, its windows are the clusters."""
LEAST_KNOWN = 0.99
"""The least share of resamples with a number; with a smaller share there is no interval
either."""
FACTS: dict[str, Any] = {
    "resamples": RESAMPLES,
    "seed": SEED,
    "weights": "Poisson(1)",
    "clusters": f"documents, or windows of a source with fewer than {LEAST_CLUSTERS}",
    "interval": "95 %, expanded percentiles",
}
"""The facts on intervals in a report."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clusters:
    """The units of a source that are resampled whole: documents or windows."""

    unit: str  # `documents` or `windows`
    of_window: Sequence[int]
    """Number of the cluster of each window, without windows that only fill up a
    batch."""

    @property
    def count(self) -> int:
        return len(set(self.of_window))

    @property
    def facts(self) -> dict[str, Any]:
        return {"unit": self.unit, "count": self.count}

    def __str__(self) -> str:
        return amount(**self.facts)


class NumberedWindows(Protocol):
    """Windows of a source's text."""

    @property
    def numbers(self) -> Sequence[int]:
        """Index of each window among all windows cut."""

    @property
    def documents(self) -> Sequence[int] | None:
        """Number of the document of each window; None if unknown."""


def clusters_of(windows: NumberedWindows) -> Clusters:
    """Returns a source's documents; its windows if documents are too few or unknown."""
    documents = windows.documents
    if documents is not None and len(set(documents)) >= LEAST_CLUSTERS:
        return Clusters("documents", documents)
    return Clusters("windows", windows.numbers)


def resample_weights(source: str, cluster: int) -> Floats:
    """Returns the weight of a cluster in each resample, (R,); the first weight is 1."""
    rng = np.random.default_rng((SEED, seed_from(source), cluster))
    drawn = rng.poisson(1, RESAMPLES)
    return np.concatenate(([1.0], drawn))


def resampled_sums(source: str, clusters: Sequence[int], values_WC: Floats) -> Floats:
    """Returns sums over windows in these clusters, plain (first) and resampled, (R,
    C)."""
    # Windows of a cluster are drawn together, so they are summed first.
    numbers, places = np.unique(clusters, return_inverse=True)
    totals = np.zeros((len(numbers), values_WC.shape[1]))
    np.add.at(totals, places, values_WC)

    # By parts: the weights of all clusters may not fit in memory.
    sums_RC = np.zeros((1 + RESAMPLES, values_WC.shape[1]))
    for start in range(0, len(numbers), CLUSTERS_AT_ONCE):
        part = slice(start, start + CLUSTERS_AT_ONCE)
        weights = [resample_weights(source, n) for n in numbers[part].tolist()]
        sums_RC += np.stack(weights).T @ totals[part]
    return sums_RC


def interval(values_R: Floats, clusters: int) -> tuple[Floats, Floats]:
    """Returns the ends of the 95 % interval of values (R, ...), computed from resampled
    sums.

    Expanded percentiles (Hesterberg 2015, "What teachers should know about the
    bootstrap", section 5.3). Both ends are nan if clusters or resamples are too few
    (`LEAST_CLUSTERS`, `LEAST_KNOWN`).
    """
    from scipy.stats import norm, t

    plain = values_R[0]
    resampled = values_R[1:]
    enough = np.isfinite(resampled).mean(0) >= LEAST_KNOWN
    known = np.isfinite(plain) & enough

    ends = np.full((2, *plain.shape), np.nan)
    if clusters >= LEAST_CLUSTERS and known.any():
        # Plain percentiles would be too narrow, by the square root of n / (n - 1) and
        # by the tails of a normal distribution instead of Student's.
        students = t.ppf(0.025, clusters - 1)
        wider = np.sqrt(clusters / (clusters - 1))
        share = norm.cdf(students * wider)
        quantiles = (share, 1 - share)
        ends[:, known] = np.nanquantile(resampled[:, known], quantiles, axis=0)
    low, high = ends
    return low, high
