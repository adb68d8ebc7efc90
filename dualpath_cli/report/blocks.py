"""Paired tests over seeds, by randomised blocks.

The same seed has the same data order and shared initial weights in every configuration, so that a
seed is a block. Where C configurations have all S seeds, with y_cs = m + a_c + b_s + e_cs, the
variance of e is estimated from all of them together,

    s^2 = sum_cs (y_cs - mean_c - mean_s + mean)^2 / ((C - 1) (S - 1)),

and the difference of two configurations has the standard error s sqrt(2 / S) with (C - 1)(S - 1)
degrees of freedom. It assumes that e varies equally in all configurations. With C = 2 this is
Student's t of the pair's own differences, which assumes nothing of others, but has only S - 1
degrees of freedom.

Shapes: C configurations, S seeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from dualpath_cli.report.significance import LEVEL, POWER

Scores = Mapping[str, Mapping[int, float]]  # by configuration and seed


@dataclass(frozen=True)
class Spread:
    """How much chance is in a difference."""

    error: float  # its standard error
    df: int  # degrees of freedom of the variance behind it

    @property
    def reach(self) -> float:
        """Half the width of the 95 % interval."""
        from scipy.stats import t

        return float(t.ppf(1 - LEVEL / 2, self.df)) * self.error

    @property
    def reach_90(self) -> float:
        """Half the width of the 90 % interval, which is two one-sided tests at 5 %."""
        from scipy.stats import t

        return float(t.ppf(1 - LEVEL, self.df)) * self.error

    def p(self, difference: float) -> float:
        """The two-sided p-value that the true difference is zero."""
        from scipy.stats import t

        if self.error == 0:
            return 1.0 if difference == 0 else 0.0
        return float(2 * t.sf(abs(difference) / self.error, self.df))

    @property
    def detectable(self) -> float:
        """The smallest true difference that the test finds at 5 % with a probability of 80 %.

        By the noncentral t, given that the true spread is the estimated one.
        """
        return noncentrality(self.df) * self.error


@dataclass(frozen=True)
class SeedBlocks:
    names: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def df(self) -> int:
        return (len(self.names) - 1) * (len(self.seeds) - 1)


def find_blocks(scores: Scores, one: str, other: str) -> SeedBlocks:
    """Returns the complete blocks with both in them that detect the smallest difference of the two.

    Which these are depends on who has which seeds alone. More seeds make the difference surer, more
    configurations its error. Where the two share fewer than two seeds, these are the pair's own.
    """
    shared = scores[one].keys() & scores[other].keys()
    found = SeedBlocks(tuple(n for n in scores if n in (one, other)), tuple(sorted(shared)))
    for seeds in sorted({tuple(sorted(shared & runs.keys())) for runs in scores.values()}):
        names = tuple(name for name, runs in scores.items() if runs.keys() >= set(seeds))
        found = min(found, SeedBlocks(names, seeds), key=_detectable)
    return found


def _detectable(blocks: SeedBlocks) -> float:
    """The difference that they detect, in standard deviations of e; infinite without a test."""
    return noncentrality(blocks.df) * sqrt(2 / len(blocks.seeds)) if blocks.df > 0 else inf


def block_spread(values_CS: npt.ArrayLike) -> Spread:
    """Returns the spread of the difference of any two rows of complete blocks, (C, S).

    The difference of two rows is that of their means.
    """
    values = np.asarray(values_CS, np.float64)
    left = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    df = (values.shape[0] - 1) * (values.shape[1] - 1)
    variance = (left**2).sum() / df
    rounding = 8 * np.finfo(np.float64).eps * np.abs(values).max()
    if variance <= rounding**2:  # all differences are the same
        variance = 0.0
    return Spread(float(np.sqrt(2 * variance / values.shape[1])), df)


@cache
def noncentrality(df: int) -> float:
    """The true difference in standard errors at which a two-sided test has its power.

    The tail on the wrong side is left out: there, it is below 1e-4.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    bound = t.ppf(1 - LEVEL / 2, df)
    return float(brentq(lambda size: nct.sf(bound, df, size) - POWER, 0.0, 3 * bound))
