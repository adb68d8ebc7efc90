"""How much compute a family saves: the compute multiplier.

A family at budget C, with the parameters and tokens that its law makes best of C, has a
loss that another family needs m C for. m above 1 is compute saved. The FLOPs of a token
are taken to grow with the parameters as in the family's largest run,

    C = k N D,

so heads and attention scores, which do not grow so, make m rougher for models in which
they are a large part.

Shapes: G laws, of which the first is the fit and the others are resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from dualpath_cli.compare.fits.fits import ENDS, ScalingFit
from dualpath_cli.compare.fits.law import Mask
from dualpath_cli.report.bootstrap import Floats

AHEAD = (1, 2)  # budgets, in largest budgets
FARTHEST = 1e3  # of multipliers, and of 1 over them
HALVINGS = 50
LEAST = 1e-9  # of A and B
UNIT = 1e15  # FLOPs of a token and parameter, at millions times billions


@dataclass(frozen=True, eq=False)
class LoopVariant:
    """A family's models with equally many loops."""

    name: str
    fit: ScalingFit
    shares: Floats  # (T,), of the parameters, by how often they are applied
    flops: float  # k

    def best_loss(self, laws_GV: Floats, budget_G: Floats) -> Floats:
        """The lowest loss (G,) of training FLOPs, at each law's best N and D."""
        big_e, big_a, big_b, a, b, phi = laws_GV.T
        # A resample may have a coefficient of 0, and then no best N.
        big_a, big_b = big_a.clip(LEAST), big_b.clip(LEAST)
        worth_G = self.fit.family.cells.times ** phi[:, None] @ self.shares
        size_factor_G = big_a * worth_G**-a
        product_G = budget_G / (self.flops * UNIT)  # N D

        # where A / N^a + B (N / (N D))^b has the derivative 0
        power_G = a * size_factor_G * product_G**b / (b * big_b)
        size_G = power_G ** (1 / (a + b))
        tokens_G = product_G / size_G
        loss_G: Floats = big_e + size_factor_G * size_G**-a + big_b * tokens_G**-b
        return loss_G


@dataclass(frozen=True)
class Multiplier:
    """Compute that `over` needs for a variant's loss, over what the variant needs."""

    variant: str
    over: str
    budget: float  # training FLOPs
    ahead: float  # in largest budgets
    value: float
    low: float  # 95 % interval; nan without resamples
    high: float


def multipliers_of(fits: Sequence[ScalingFit]) -> list[Multiplier]:
    """Each variant over PureWide, or over the first where PureWide has no fit."""
    variants = [variant for fit in fits for variant in variants_of(fit)]
    if len(variants) < 2:
        return []

    over, *others = variants
    return [
        _multiplier(variant, over, ahead)
        for variant in others
        if not _is_of(variant, over)
        for ahead in AHEAD
    ]


def variants_of(fit: ScalingFit) -> list[LoopVariant]:
    """A variant for each number of loops, with the shares of its largest run."""
    cells = fit.family.cells
    # Cells are ordered by training FLOPs, so the last one of a number is the largest.
    largest = {times: n for n, times in enumerate(cells.most_times)}

    found = []
    for times, n in sorted(largest.items()):
        size = cells.sizes[n].sum()
        flops = fit.family.flops[n] / (size * cells.tokens[n] * UNIT)
        name = fit.family.name
        if len(largest) > 1:
            name += f", {times} times"
        found.append(LoopVariant(name, fit, cells.sizes[n] / size, flops))
    return found


def _is_of(variant: LoopVariant, over: LoopVariant) -> bool:
    """Whether both are the same models, as PureWide in a family of looped models."""
    applied_once = variant.shares[variant.fit.family.cells.times == 1].sum() == 1
    is_member = set(over.fit.family.configurations) <= set(
        variant.fit.family.configurations
    )
    return bool(applied_once and is_member)


def _multiplier(variant: LoopVariant, over: LoopVariant, ahead: float) -> Multiplier:
    fits = (variant.fit, over.fit)
    budget = ahead * min(float(fit.family.flops.max()) for fit in fits)

    ours_GV, theirs_GV = _paired_laws(*fits)
    aim_G = variant.best_loss(ours_GV, np.full(len(ours_GV), budget))
    values_G = _budgets_for(over, theirs_GV, aim_G, budget) / budget

    low = high = np.nan
    if len(values_G) > 1:
        # Some may be infinite, between which nothing is interpolated.
        low, high = np.quantile(values_G[1:], ENDS, method="nearest")
    return Multiplier(
        variant.name,
        over.name,
        budget,
        ahead,
        float(values_G[0]),
        float(low),
        float(high),
    )


def _paired_laws(ours: ScalingFit, theirs: ScalingFit) -> tuple[Floats, Floats]:
    """Laws (G, V) of two fits: the fits, then as many resamples of each."""
    of_theirs = theirs.resampled
    if ours is not theirs:
        # Resamples of one number come from the same draws in both families, which would
        # couple families that were trained apart.
        of_theirs = np.roll(of_theirs, len(of_theirs) // 2, axis=0)

    fewest = min(len(ours.resampled), len(of_theirs))
    ours_GV = np.concatenate([ours.values[None], ours.resampled[:fewest]])
    theirs_GV = np.concatenate([theirs.values[None], of_theirs[:fewest]])
    return ours_GV, theirs_GV


def _budgets_for(
    over: LoopVariant, laws_GV: Floats, aim_G: Floats, budget: float
) -> Floats:
    """The budgets (G,) at which `over` has these losses, by halving; beyond FARTHEST 0
    or inf."""

    def is_worse(log_budget_G: Floats) -> Mask:
        worse: Mask = over.best_loss(laws_GV, np.exp(log_budget_G)) > aim_G
        return worse

    low_G = np.full(len(aim_G), log(budget / FARTHEST))
    high_G = np.full(len(aim_G), log(budget * FARTHEST))
    never_G = is_worse(high_G)
    always_G = ~is_worse(low_G)
    for _ in range(HALVINGS):
        middle_G = (low_G + high_G) / 2
        worse_G = is_worse(middle_G)
        low_G = np.where(worse_G, middle_G, low_G)
        high_G = np.where(worse_G, high_G, middle_G)

    found_G = np.exp(high_G)
    found_G[never_G] = inf
    found_G[always_G] = 0
    return found_G
