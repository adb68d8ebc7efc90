"""What is known of a family's scaling law: its values, their intervals, a rollout, and
the run that would narrow phi most.

Intervals resample seeds within cells: each cell's loss is the mean of as many seeds,
drawn with replacement from its own, and the law is fitted anew. They cover the noise of
seeds, not a law that has another form.

Shapes: R resamples, S seeds, C cells, V values of a law, Q held values of a profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.compare.fits.families import (
    ScalingFamily,
    refusal,
    unidentified,
)
from dualpath_cli.compare.fits.law import (
    HIGHEST,
    LOWEST,
    NAMES,
    Cells,
    descend,
    fit_law,
    loss_of,
    predicted,
    slopes,
)
from dualpath_cli.report.bootstrap import Floats

RESAMPLES = 1000
SEED = 0
ENDS = (0.025, 0.975)
SINGULAR = 1e-10  # of an information matrix with a unit diagonal
LARGEST = 2.0  # a rollout leaves out budgets of at least the largest divided by this


@dataclass(frozen=True)
class Rollout:
    """A law of the smaller budgets, against the runs of the largest ones."""

    error: float  # mean of predicted minus measured, in bits per byte
    largest: float  # the largest difference of one configuration, without sign
    beyond: float  # the largest training FLOPs over the largest that were kept


@dataclass(frozen=True)
class NextRun:
    """One run more of a family that would narrow phi's interval most."""

    like: Configuration  # the model
    tokens: int
    narrower: float  # share of the interval's width
    repeats: bool  # another seed of a configuration that there is


@dataclass(frozen=True, eq=False)
class ScalingFit:
    """The law of a family."""

    family: ScalingFamily
    values: Floats  # (V,)
    resampled: Floats  # (R, V), without rows if a configuration has one seed
    off: float  # root mean square of log(predicted / measured)
    rollout: Rollout | str  # text: why there is none
    next_run: NextRun | None  # None without loops that vary

    def interval(self, name: str) -> tuple[float, float]:
        """Both ends; nan without resamples."""
        if not len(self.resampled):
            return np.nan, np.nan
        low, high = np.quantile(self.resampled[:, NAMES.index(name)], ENDS)
        return float(low), float(high)


def fit_family(family: ScalingFamily) -> ScalingFit | str:
    """The law of a family, or why none is fitted."""
    if reason := refusal(family):
        return reason

    values_V = fit_law(family.cells, family.losses)
    if reason := edge_of_law(values_V, family):
        return reason

    off_C = np.log(predicted(values_V[None], family.cells)[0] / family.losses)
    return ScalingFit(
        family,
        values_V,
        resampled_laws(family.cells, family.scores, values_V),
        off=float(np.sqrt((off_C**2).mean())),
        rollout=_rollout(family),
        next_run=_next_run(family, values_V),
    )


def edge_of_law(values_V: Floats, family: ScalingFamily) -> str:
    """Says which values lie at an end of their range; empty if none does."""
    ends = zip(NAMES, values_V, LOWEST, HIGHEST, strict=True)
    at_ends = [
        f"{name} = {value:g}"
        for name, value, low, high in ends
        if name in family.fitted and not low < value < high
    ]
    if not at_ends:
        return ""
    return (
        f"its best law has {' and '.join(at_ends)}, at the edge of the search, so its "
        "runs do not determine the law; train larger budgets, or more model sizes and "
        "token counts"
    )


def resampled_laws(
    cells: Cells,
    scores: Sequence[Floats],
    values_V: Floats,
    resamples: int = RESAMPLES,
) -> Floats:
    """Laws (R, V) of resampled seeds, from `scores` by cell and the law of their means;
    without rows if a cell has one seed."""
    if any(len(scores_S) == 1 for scores_S in scores):
        return np.empty((0, len(NAMES)))

    rng = np.random.default_rng(SEED)
    losses = [resampled_means(scores_S, resamples, rng) for scores_S in scores]
    starts_RV = np.repeat(values_V[None], resamples, axis=0)
    return descend(starts_RV, cells, np.stack(losses, axis=1))


def resampled_means(
    scores_S: Floats, resamples: int, rng: np.random.Generator
) -> Floats:
    """Means (R,) of seeds drawn with replacement.

    Their deviations are widened by the square root of S / (S - 1), or few seeds would
    seem less noisy than they are.
    """
    n = len(scores_S)
    mean = scores_S.mean()
    drawn_RS = rng.choice(scores_S - mean, (resamples, n))
    means: Floats = mean + sqrt(n / (n - 1)) * drawn_RS.mean(1)
    return means


def profile(fit: ScalingFit, name: str, held_Q: Floats) -> Floats:
    """The lowest loss (Q,) of laws in which a value is held, over that of the fit."""
    family = fit.family
    starts_QV = np.repeat(fit.values[None], len(held_Q), axis=0)
    starts_QV[:, NAMES.index(name)] = held_Q

    found_QV = descend(starts_QV, family.cells, family.losses, held=name)
    lowest_Q = loss_of(found_QV, family.cells, family.losses)
    best = loss_of(fit.values[None], family.cells, family.losses)
    relative: Floats = lowest_Q / best
    return relative


def _rollout(family: ScalingFamily) -> Rollout | str:
    """The error of a law without the largest budgets; or why there is none."""
    most = family.flops.max() * (1 - 1e-9)
    is_largest_C = family.flops * LARGEST >= most
    kept = family.take(~is_largest_C)
    if reason := unidentified(kept):
        return f"without the largest budgets {reason}"
    if kept.fitted != family.fitted:
        return (
            "without the largest budgets the number of loops does not vary, so phi "
            "cannot be fitted"
        )

    values_V = fit_law(kept.cells, kept.losses)
    if reason := edge_of_law(values_V, kept):
        return f"without the largest budgets {reason}"

    largest = family.take(is_largest_C)
    error_C = predicted(values_V[None], largest.cells)[0] - largest.losses
    return Rollout(
        error=float(error_C.mean()),
        largest=float(np.abs(error_C).max()),
        beyond=float(family.flops.max() / kept.flops.max()),
    )


def _next_run(family: ScalingFamily, values_V: Floats) -> NextRun | None:
    """The model of the family, and one of its numbers of tokens, that narrow phi most,
    within the largest budget; None if phi is not fitted, or cannot be determined.

    To first order, with equal noise of log L in all cells.
    """
    if not family.cells.varies_times:
        return None
    free = family.cells.fitted
    slopes_CV = slopes(values_V[None], family.cells)[0][:, free]
    scale_V = np.sqrt((slopes_CV**2).sum(0))
    information = (slopes_CV.T * family.cells.weights) @ slopes_CV
    unit = information / np.outer(scale_V, scale_V)
    if np.linalg.eigvalsh(unit)[0] < SINGULAR:
        return None

    def variance_of_phi(matrix: Floats) -> float:
        return float(np.linalg.inv(matrix / np.outer(scale_V, scale_V))[-1, -1])

    now = variance_of_phi(information)
    best: NextRun | None = None
    for like, tokens in _candidates(family):
        cell = _cell_of(family, like, tokens)
        own_V = slopes(values_V[None], cell)[0, 0, free]
        then = variance_of_phi(information + np.outer(own_V, own_V))
        narrower = 1 - sqrt(then / now)
        if best is None or narrower > best.narrower:
            repeats = like.tokens == tokens
            best = NextRun(like, tokens, narrower, repeats)
    return best


def _candidates(family: ScalingFamily) -> list[tuple[Configuration, int]]:
    """Each model with each number of tokens, as far as the largest budget goes."""
    most = family.flops.max()
    every_tokens = sorted({c.tokens for c in family.configurations})
    done = {
        (_size_of(family, n), c.tokens): c for n, c in enumerate(family.configurations)
    }

    found = {}
    for n, c in enumerate(family.configurations):
        for tokens in every_tokens:
            key = (_size_of(family, n), tokens)
            if family.flops[n] * tokens / c.tokens <= most * (1 + 1e-9):
                found[key] = (done.get(key, c), tokens)
    return list(found.values())


def _size_of(family: ScalingFamily, n: int) -> tuple[float, ...]:
    return tuple(family.cells.sizes[n].tolist())


def _cell_of(family: ScalingFamily, like: Configuration, tokens: int) -> Cells:
    place = family.configurations.index(like)
    alone = family.cells.take([place])
    return replace(alone, tokens=np.array([tokens / 1e9]))
