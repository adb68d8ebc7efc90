"""Tests over runs: paired over seeds by randomised blocks, signed ranks, and their
correction.

A seed is a block: it has the same data order and shared initial weights in every
configuration. If C configurations have all S seeds, with y_cs = m + a_c + b_s + e_cs,
the variance of e is estimated from all of them together,

    s^2 = sum_cs (y_cs - mean_c - mean_s + mean)^2 / ((C - 1) (S - 1)),

and the difference of two configurations has the standard error s sqrt(2 / S) with (C -
1)(S - 1) degrees of freedom. This assumes that e varies equally in all configurations.
With C = 2 the test is Student's t of the pair's differences, which assumes nothing of
other configurations, but has only S - 1 degrees of freedom.

Shapes: C configurations, S seeds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

LEVEL = 0.05  # a corrected p-value below this rejects
POWER = 0.8  # the probability of finding the smallest detectable difference


@dataclass(frozen=True)
class Spread:
    """The uncertainty of a difference."""

    error: float  # standard error of the difference
    df: int  # degrees of freedom of its variance

    @property
    def reach(self) -> float:
        """Half the width of the 95 % interval."""
        from scipy.stats import t

        return float(t.ppf(1 - LEVEL / 2, self.df)) * self.error

    @property
    def reach_90(self) -> float:
        """Half the width of the 90 % interval, as of two one-sided tests at 5 %."""
        from scipy.stats import t

        return float(t.ppf(1 - LEVEL, self.df)) * self.error

    def p(self, difference: float) -> float:
        """The two-sided p-value of a true difference of zero."""
        from scipy.stats import t

        if self.error == 0:
            return 1.0 if difference == 0 else 0.0
        return float(2 * t.sf(abs(difference) / self.error, self.df))

    @property
    def detectable(self) -> float:
        """The smallest true difference that the test finds at 5 % with 80 % power.

        By the noncentral t, with the estimated spread as the true one.
        """
        return noncentrality(self.df) * self.error


@dataclass(frozen=True)
class SeedBlocks:
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: int  # of all names together

    @property
    def df(self) -> int:
        return (self.rows - 1) * (len(self.seeds) - 1)


def find_blocks(
    seeds: Mapping[str, Collection[int]],
    one: str,
    other: str,
    rows: Mapping[str, int] = {},
) -> SeedBlocks:
    """Returns the complete blocks with both configurations that detect their smallest
    difference.

    `seeds` are those of each configuration, and `rows` its rows in the blocks, by
    default one. More seeds make the standard error smaller; more rows make its estimate
    more precise. With fewer than two common seeds the blocks are only the pair.
    """
    shared = set(seeds[one]).intersection(seeds[other])

    def blocks_of(names: Sequence[str], its_seeds: Iterable[int]) -> SeedBlocks:
        number = sum(rows.get(name, 1) for name in names)
        return SeedBlocks(tuple(names), tuple(sorted(its_seeds)), number)

    pair = [name for name in seeds if name in (one, other)]
    candidates = [blocks_of(pair, shared)]
    # Further blocks are all configurations that have what one of them has of the shared
    # seeds.
    for subset in sorted({tuple(sorted(shared & set(own))) for own in seeds.values()}):
        names = [name for name, own in seeds.items() if set(own).issuperset(subset)]
        candidates.append(blocks_of(names, subset))
    return min(candidates, key=_detectable)


def _detectable(blocks: SeedBlocks) -> float:
    """The detectable difference, in standard deviations of e; infinite without a
    test."""
    if blocks.df <= 0:
        return inf
    return noncentrality(blocks.df) * sqrt(2 / len(blocks.seeds))


def block_spread(values_CS: npt.ArrayLike) -> Spread:
    """Returns the spread of the difference of any two rows of complete blocks, (C, S).

    The difference of two rows is the difference of their means.
    """
    values = np.asarray(values_CS, np.float64)
    configurations, seeds = values.shape
    mean_of_seed = values.mean(0)
    mean_of_configuration = values.mean(1, keepdims=True)
    residuals = values - mean_of_seed - mean_of_configuration + values.mean()

    df = (configurations - 1) * (seeds - 1)
    variance = (residuals**2).sum() / df

    # If all differences are the same, only rounding is left.
    rounding = 8 * np.finfo(np.float64).eps * np.abs(values).max()
    if variance <= rounding**2:
        variance = 0.0
    error = float(np.sqrt(2 * variance / seeds))
    return Spread(error, df)


@cache
def noncentrality(df: int) -> float:
    """The true difference, in standard errors, that a test finds with power POWER."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    # The tail on the wrong side is left out: it is below 1e-4 at this difference.
    bound = t.ppf(1 - LEVEL / 2, df)

    def missing_power(size: float) -> float:
        return float(nct.sf(bound, df, size) - POWER)

    return float(brentq(missing_power, 0.0, 3 * bound))


def signed_rank_p(differences_N: Sequence[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, (N,); nan where all
    are zero.

    Each run gives one difference. Fewer than six runs cannot give p < 0.05.
    """
    from scipy.stats import wilcoxon

    if not any(differences_N):
        return float("nan")
    return float(wilcoxon(differences_N).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm 1979); nan stays, uncounted.

    Rejecting all values below 0.05 rejects a true hypothesis in at most one of twenty
    families.
    """
    tested = [n for n, p in enumerate(p_values) if p == p]  # not nan
    tested.sort(key=lambda n: p_values[n])

    corrected = [float("nan")] * len(p_values)
    least = 0.0
    for place, number in enumerate(tested):
        hypotheses_left = len(tested) - place
        # A corrected p-value is never below that of a smaller p-value.
        least = max(least, min(1.0, hypotheses_left * p_values[number]))
        corrected[number] = least
    return corrected
