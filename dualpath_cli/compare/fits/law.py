"""A scaling law of looped models, fitted by variable projection.

    L = E + A / M^a + B / D^b,   M = sum_t t^phi N_t

N_t are the parameters that a forward pass applies t times, D the training tokens. With
N_1 = N_once and one other N_r = N_loop this is the law of arXiv:2604.21106; with all
parameters applied once it is Hoffmann et al.'s (arXiv:2203.15556), and phi has no
effect.

A fit minimises the Huber loss (delta 1e-3) of log L, weighted by the number of seeds.
At fixed exponents (a, b, phi) the coefficients (E, A, B) are nearly linear, and are
projected out (arXiv:2603.22339) by Gauss-Newton steps of non-negative least squares,
whose weights turn the squares into a Huber loss. This is done at each point of a grid
of exponents. From the best points, Gauss-Newton steps in exponents and coefficients
together follow, to first order the steps of the projected problem (Kaufman 1975). There
are no random starts.

Shapes: G fits at once, C cells, T numbers of applications, K = 3 coefficients, P = 3
exponents, V = 6 values of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.report.bootstrap import Floats

Mask = npt.NDArray[np.bool_]

NAMES = ("E", "A", "B", "a", "b", "phi")
"""The values of a law, coefficients before exponents."""
COEFFICIENTS = 3

DELTA = 1e-3  # of log L, where the Huber loss turns from squares to absolute values
LOWEST = np.array([0, 0, 0, 0.02, 0.02, -1.0])
HIGHEST = np.array([np.inf, np.inf, np.inf, 2.5, 2.5, 2.0])
"""A minimum at one of these ends is refused: the runs do not say where it lies."""
LEAST_VARIED = 0.05
"""Of the mean log of the times that a model's parameters are applied: smaller
differences are those of norms, gains and solved widths."""

EXPONENT_GRID = np.geomspace(0.03, 2, 15)
PHI_GRID = np.linspace(-0.5, 1.5, 7)
STARTS = 12  # grid points from which steps go on
PROJECTIONS = 15  # steps of the coefficients at each grid point
STEPS = 400  # of all values; most fits stand still long before
STANDSTILL = 1e-12  # share of the loss


@dataclass(frozen=True)
class Cells:
    """What the models of some configurations are, and what each was trained on."""

    sizes: Floats  # (C, T), millions of parameters by how often a pass applies them
    times: Floats  # (T,)
    tokens: Floats  # (C,), billions
    weights: Floats  # (C,), seeds

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def most_times(self) -> list[int]:
        """How often a pass applies the parameters that it applies most, (C,)."""
        return [int(self.times[row_T > 0].max()) for row_T in self.sizes]

    @property
    def varies_times(self) -> bool:
        """Whether phi has an effect that differs between cells."""
        shares_CT = self.sizes / self.sizes.sum(1, keepdims=True)
        mean_log_C = shares_CT @ np.log(self.times)
        return bool(np.ptp(mean_log_C) > LEAST_VARIED)

    @property
    def fitted(self) -> Mask:
        """Which values (V,) of a law are fitted: phi only where it has an effect."""
        return np.array([name != "phi" or self.varies_times for name in NAMES])

    def take(self, chosen: Sequence[int] | Mask) -> "Cells":
        """The cells with these numbers, or of a mask."""
        return replace(
            self,
            sizes=self.sizes[chosen],
            tokens=self.tokens[chosen],
            weights=self.weights[chosen],
        )


def predicted(values_GV: Floats, cells: Cells) -> Floats:
    """The losses (G, C) of laws at cells."""
    bases_GCK, _ = _bases(values_GV[..., COEFFICIENTS:], cells)
    fitted: Floats = (bases_GCK @ values_GV[..., :COEFFICIENTS, None])[..., 0]
    return fitted


def fit_law(cells: Cells, losses_C: Floats) -> Floats:
    """The values (V,) with the lowest `loss_of`; phi is 0 where it has no effect."""
    phis = PHI_GRID if cells.varies_times else np.zeros(1)
    grid = product(EXPONENT_GRID, EXPONENT_GRID, phis)
    exponents_GP = np.array(list(grid))
    coefficients_GK = project(exponents_GP, cells, losses_C)

    values_GV = np.concatenate([coefficients_GK, exponents_GP], axis=1)
    best = np.argsort(loss_of(values_GV, cells, losses_C))[:STARTS]
    found_GV = descend(values_GV[best], cells, losses_C)
    lowest: Floats = found_GV[loss_of(found_GV, cells, losses_C).argmin()]
    return lowest


def loss_of(values_GV: Floats, cells: Cells, losses_GC: Floats) -> Floats:
    """The Huber loss (G,) of laws: the mean over runs."""
    off_GC = np.abs(np.log(predicted(values_GV, cells) / losses_GC))
    huber_GC = np.where(off_GC <= DELTA, off_GC**2 / 2, DELTA * (off_GC - DELTA / 2))
    loss_G: Floats = huber_GC @ cells.weights / cells.weights.sum()
    return loss_G


def project(exponents_GP: Floats, cells: Cells, losses_C: Floats) -> Floats:
    """The coefficients (G, K), none negative, that fit best with these exponents."""
    bases_GCK, _ = _bases(exponents_GP, cells)
    fitted_GC = np.broadcast_to(losses_C, bases_GCK.shape[:2])
    weights_GC = np.broadcast_to(cells.weights, fitted_GC.shape)
    for _ in range(PROJECTIONS):
        # log f of the next coefficients, to first order at the present ones
        slopes_GCK = bases_GCK / fitted_GC[..., None]
        off_GC = np.log(fitted_GC / losses_C)
        coefficients_GK = _non_negative(slopes_GCK, 1 - off_GC, weights_GC)

        fitted_GC = (bases_GCK @ coefficients_GK[..., None])[..., 0]
        off_GC = np.log(fitted_GC / losses_C)
        weights_GC = cells.weights * _huber_weights(off_GC)
    return coefficients_GK


def descend(
    values_GV: Floats, cells: Cells, losses_GC: Floats, held: str = ""
) -> Floats:
    """Laws after damped Gauss-Newton steps from some values, each on its own losses.

    Values that are `held` or not fitted keep still, and so do those at an end of their
    range from which the loss falls outwards.
    """
    free_V = cells.fitted & (np.array(NAMES) != held)
    values_GV = values_GV.copy()
    losses_GC = np.broadcast_to(losses_GC, (len(values_GV), len(cells)))
    loss_G = loss_of(values_GV, cells, losses_GC)
    damping_G = np.full(len(values_GV), 1e-2)
    left_G = np.arange(len(values_GV))  # laws that still fall

    for _ in range(STEPS):
        if not len(left_G):
            break
        now_GV = values_GV[left_G]
        step_GV = _step(now_GV, cells, losses_GC[left_G], free_V, damping_G[left_G])
        next_GV = (now_GV + step_GV).clip(LOWEST, HIGHEST)
        next_G = loss_of(next_GV, cells, losses_GC[left_G])

        fallen_G = next_G < loss_G[left_G]
        damping_G[left_G] *= np.where(fallen_G, 0.3, 5)
        gain_G = (loss_G[left_G] - next_G) / loss_G[left_G].clip(1e-300)
        taken_G = left_G[fallen_G]
        values_GV[taken_G] = next_GV[fallen_G]
        loss_G[taken_G] = next_G[fallen_G]

        # A rejected step may only have been too long, unless damping made it tiny.
        stands_G = np.where(fallen_G, gain_G < STANDSTILL, damping_G[left_G] > 1e8)
        left_G = left_G[~stands_G & (loss_G[left_G] > 0)]
    return values_GV


def slopes(values_GV: Floats, cells: Cells) -> Floats:
    """The derivatives (G, C, V) of log L by the values."""
    exponents_GP = values_GV[..., COEFFICIENTS:]
    _, big_a, big_b = np.moveaxis(values_GV[..., :COEFFICIENTS, None], -2, 0)
    a, _, phi = np.moveaxis(exponents_GP[..., None], -2, 0)
    bases_GCK, effective_GC = _bases(exponents_GP, cells)
    fitted_GC = (bases_GCK @ values_GV[..., :COEFFICIENTS, None])[..., 0]

    of_size_GC = big_a * bases_GCK[..., 1]
    of_tokens_GC = big_b * bases_GCK[..., 2]
    growth_GT = cells.times**phi * np.log(cells.times)
    by_exponent = (
        -of_size_GC * np.log(effective_GC),
        -of_tokens_GC * np.log(cells.tokens),
        -of_size_GC * a / effective_GC * (growth_GT @ cells.sizes.T),
    )
    both_GCV = np.concatenate([bases_GCK, np.stack(by_exponent, axis=-1)], axis=-1)
    relative: Floats = both_GCV / fitted_GC[..., None]
    return relative


def _bases(exponents_GP: Floats, cells: Cells) -> tuple[Floats, Floats]:
    """What the coefficients multiply, (G, C, K), and M in millions, (G, C)."""
    a, b, phi = np.moveaxis(exponents_GP[..., None], -2, 0)
    effective_GC = cells.times**phi @ cells.sizes.T
    by_size_GC = effective_GC**-a
    by_tokens_GC = cells.tokens**-b
    bases = (np.ones_like(by_size_GC), by_size_GC, by_tokens_GC)
    return np.stack(bases, axis=-1), effective_GC


def _huber_weights(off_GC: Floats) -> Floats:
    """The weights with which squares fall as the Huber loss does."""
    weights: Floats = DELTA / np.abs(off_GC).clip(DELTA)
    return weights


def _non_negative(slopes_GCK: Floats, aims_GC: Floats, weights_GC: Floats) -> Floats:
    """Weighted least squares (G, K) without negative coefficients."""
    weighted_GKC = np.swapaxes(slopes_GCK * weights_GC[..., None], -1, -2)
    normal_GKK = weighted_GKC @ slopes_GCK
    right_GK = (weighted_GKC @ aims_GC[..., None])[..., 0]
    # columns of like lengths, for the solver's sake
    scale_GK = np.sqrt(np.diagonal(normal_GKK, axis1=-2, axis2=-1))
    normal_GKK = normal_GKK / (scale_GK[..., None] * scale_GK[..., None, :])
    right_GK = right_GK / scale_GK

    # Of all sets of coefficients that may be above zero, the best that is.
    found_GK = np.zeros_like(right_GK)
    most_G = np.full(len(right_GK), -np.inf)
    for size in range(1, COEFFICIENTS + 1):
        for kept in combinations(range(COEFFICIENTS), size):
            inside = np.ix_(range(len(right_GK)), kept, kept)
            own_GK = np.linalg.solve(
                normal_GKK[inside] + 1e-12 * np.eye(size), right_GK[:, kept, None]
            )[..., 0]
            gain_G = (own_GK * right_GK[:, kept]).sum(-1)
            better = (own_GK >= 0).all(-1) & (gain_G > most_G)
            most_G[better] = gain_G[better]
            whole_GK = np.zeros_like(right_GK)
            whole_GK[:, kept] = own_GK
            found_GK[better] = whole_GK[better]
    return found_GK / scale_GK


def _step(
    values_GV: Floats,
    cells: Cells,
    losses_GC: Floats,
    free_V: Mask,
    damping_G: Floats,
) -> Floats:
    """A damped Gauss-Newton step (G, V) of the weighted squares."""
    off_GC = np.log(predicted(values_GV, cells) / losses_GC)
    weights_GC = cells.weights * _huber_weights(off_GC)
    slopes_GCV = slopes(values_GV, cells)
    weighted_GVC = np.swapaxes(slopes_GCV * weights_GC[..., None], -1, -2)
    normal_GVV = weighted_GVC @ slopes_GCV
    fall_GV = -(weighted_GVC @ off_GC[..., None])[..., 0]

    outwards = (values_GV <= LOWEST) & (fall_GV < 0)
    outwards |= (values_GV >= HIGHEST) & (fall_GV > 0)
    moves_GV = free_V & ~outwards
    fall_GV *= moves_GV
    kept_GVV = moves_GV[..., None] & moves_GV[..., None, :]
    normal_GVV *= kept_GVV

    # Damped by each value's own scale; values that keep still have a row of their own.
    own_GV = np.diagonal(normal_GVV, axis1=-2, axis2=-1)
    extra_GV = own_GV * damping_G[:, None]
    extra_GV[own_GV == 0] = 1
    damped_GVV = normal_GVV + extra_GV[..., None] * np.eye(len(NAMES))
    # numpy's types promise less than float64 here
    step_GV1: npt.NDArray[Any] = np.linalg.solve(damped_GVV, fall_GV[..., None])
    return step_GV1[..., 0]
