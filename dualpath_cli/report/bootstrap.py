"""Intervals by the Poisson bootstrap over clusters of text: documents, or else windows.

Tokens of one document are alike, so a document is drawn whole. Each of 1,000 resamples weighs every
cluster by an independent Poisson(1) number. A weight depends on the source's name and the cluster's
number alone: not on batches or ranks, so that a stream needs not know how many follow, and is the
same for all rows and runs on one source. Whatever is computed from sums over windows is computed
from the plain sums and from every resample's. How well the intervals cover is simulated in
tests/report/test_bootstrap.py.

Shapes: W windows, R 1 + resamples, C columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualpath_cli.report.seeds import seed_from

RESAMPLES = 1000
SEED = 0
LEAST_CLUSTERS = 10
"""Fewer say too little about others: they have no interval and no test, in any command. Windows are
the clusters of a source with fewer documents."""
LEAST_KNOWN = 0.99
"""Nor has what so few clusters hold that a larger share of resamples than the rest has none."""
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
    """The tokens of a source that are drawn together."""

    unit: str  # `documents` or `windows`
    of_window: Sequence[int]
    """Number of the cluster that each window is in, of those that do not only fill up a batch."""

    @property
    def count(self) -> int:
        return len(set(self.of_window))

    @property
    def facts(self) -> dict[str, Any]:
        return {"unit": self.unit, "count": self.count}

    def __str__(self) -> str:
        """Such as `31 documents`, `1 window`."""
        return clusters_text(**self.facts)


def clusters_text(unit: str, count: int) -> str:
    """Returns such as `31 documents`, `1 window`."""
    return f"{count:,} {unit if count != 1 else unit.removesuffix('s')}"


class NumberedWindows(Protocol):
    """Windows of a source's text."""

    @property
    def numbers(self) -> Sequence[int]:
        """Place of each window among those that were cut."""

    @property
    def documents(self) -> Sequence[int] | None:
        """Number of the document that each was cut from; None where unknown."""


def clusters_of(windows: NumberedWindows) -> Clusters:
    """Returns a source's documents; its windows where those are too few or unknown."""
    if windows.documents is not None and len(set(windows.documents)) >= LEAST_CLUSTERS:
        return Clusters("documents", windows.documents)
    return Clusters("windows", windows.numbers)


def resample_weights(source: str, cluster: int) -> Floats:
    """Returns how often each resample has a cluster, (R,), the first one being 1."""
    drawn = np.random.default_rng((SEED, seed_from(source), cluster)).poisson(1, RESAMPLES)
    return np.concatenate(([1.0], drawn))


def resampled_sums(source: str, clusters: Sequence[int], values_WC: Floats) -> Floats:
    """Returns sums over windows in these clusters, as they are and resampled, (R, C)."""
    numbers, places = np.unique(clusters, return_inverse=True)
    totals = np.zeros((len(numbers), values_WC.shape[1]))
    np.add.at(totals, places, values_WC)
    sums_RC = np.zeros((1 + RESAMPLES, values_WC.shape[1]))
    for start in range(0, len(numbers), 1000):  # the weights of all may not fit in memory
        some = slice(start, start + 1000)
        weights = np.stack([resample_weights(source, number) for number in numbers[some].tolist()])
        sums_RC += weights.T @ totals[some]
    return sums_RC


def interval(values_R: Floats, clusters: int) -> tuple[Floats, Floats]:
    """Returns the ends of the 95 % interval of values (R, ...), computed from resampled sums.

    Expanded percentiles (Hesterberg 2015, "What teachers should know about the bootstrap", section
    5.3): those of `clusters` resampled clusters alone would be too narrow by the square root of
    n / (n - 1) and by the normal distribution's tails in the place of Student's. Both ends are nan
    where little is known (`LEAST_CLUSTERS`, `LEAST_KNOWN`).
    """
    from scipy.stats import norm, t

    plain, resampled = values_R[0], values_R[1:]
    ends = np.full((2, *plain.shape), np.nan)
    known = np.isfinite(plain) & (np.isfinite(resampled).mean(0) >= LEAST_KNOWN)
    if clusters >= LEAST_CLUSTERS and known.any():
        share = norm.cdf(t.ppf(0.025, clusters - 1) * np.sqrt(clusters / (clusters - 1)))
        quantiles = (share, 1 - share)
        ends[:, known] = np.nanquantile(resampled[:, known], quantiles, axis=0)
    return ends[0], ends[1]
