"""Laws come back from the losses that they make, and are the best that a slow search
finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from dualpath_cli.compare.fits.law import (
    DELTA,
    HIGHEST,
    LOWEST,
    NAMES,
    Cells,
    descend,
    fit_law,
    loss_of,
    predicted,
    project,
    slopes,
)

LOOPED = np.array([0.9, 0.5, 0.05, 0.35, 0.40, 0.46])
CHINCHILLA = np.array([1.8608, 4.1479, 1.0546, 0.36, 0.40, 0.0])
"""As fitted to the public points: N in millions, D in billions."""


def grid_of_cells(sizes, loops, tokens, looped_share=0.5) -> Cells:
    """Each size with each number of loops on each number of tokens."""
    rows = [(n, t, d) for n in sizes for t in loops for d in tokens]
    times = np.array(sorted({1, *loops}), float)
    split = [
        n * ((1 - looped_share) * (times == 1) + looped_share * (times == t))
        for n, t, _ in rows
    ]
    tokens_of_rows = np.array([d for _, _, d in rows], float)
    return Cells(np.array(split), times, tokens_of_rows, np.ones(len(rows)))


CELLS = grid_of_cells((0.5, 1, 2, 4), (1, 2, 4), (1e-4, 2e-4, 4e-4))
PLAIN = grid_of_cells((70, 300, 1000, 4000), (1,), (1, 4, 16, 64))


def noisy(law, cells, noise=0.005, seed=0):
    losses = predicted(law[None], cells)[0]
    return losses * np.exp(noise * np.random.default_rng(seed).normal(size=len(cells)))


def reference(law, cells, losses):
    """The lowest Huber loss that a general search finds from 10 random starts."""
    rng = np.random.default_rng(1)

    def off(values):
        a, b, phi = values[3:]
        worth = sum(n * t**phi for n, t in zip(cells.sizes.T, cells.times, strict=True))
        fitted = values[0] + values[1] / worth**a + values[2] / cells.tokens**b
        return np.log(fitted / losses)

    ends = LOWEST.copy(), HIGHEST.copy()
    if not cells.varies_times:
        ends[0][-1], ends[1][-1] = -1e-9, 1e-9
    found = [
        least_squares(
            off,
            (law * np.exp(rng.normal(0, 0.4, size=6))).clip(*ends),
            bounds=ends,
            loss="huber",
            f_scale=DELTA,
            x_scale="jac",
            max_nfev=500,
            xtol=1e-12,
            ftol=1e-12,
            gtol=1e-14,
        )
        for _ in range(10)
    ]
    return min(fit.cost for fit in found) / len(losses)


@pytest.mark.parametrize(
    ("law", "cells"), [(LOOPED, CELLS), (CHINCHILLA, PLAIN)], ids=["looped", "plain"]
)
def test_losses_of_a_law_give_the_law_back(law, cells):
    assert fit_law(cells, predicted(law[None], cells)[0]) == pytest.approx(law, 1e-5)


@settings(max_examples=4)
@given(
    st.tuples(
        st.floats(0.1, 2),
        st.floats(0.1, 1),
        st.floats(0.02, 0.2),
        st.floats(0.15, 0.8),
        st.floats(0.15, 0.8),
        st.floats(-0.2, 1.2),
    )
)
def test_so_do_losses_of_any_law_within_the_range(values):
    law = np.array(values)
    found = fit_law(CELLS, predicted(law[None], CELLS)[0])
    assert predicted(found[None], CELLS) == pytest.approx(
        predicted(law[None], CELLS), rel=1e-5
    )
    assert found == pytest.approx(law, rel=0.02, abs=0.01)


@pytest.mark.parametrize(
    ("law", "cells"), [(LOOPED, CELLS), (CHINCHILLA, PLAIN)], ids=["looped", "plain"]
)
def test_no_search_from_random_starts_finds_a_lower_loss(law, cells):
    losses = noisy(law, cells)
    ours = loss_of(fit_law(cells, losses)[None], cells, losses)[0]
    assert ours <= reference(law, cells, losses) * (1 + 1e-5)


def test_one_cell_a_fifth_off_hardly_moves_a_law():
    clean = predicted(LOOPED[None], CELLS)[0]
    spoiled = clean.copy()
    spoiled[7] *= 1.2
    assert fit_law(CELLS, spoiled) == pytest.approx(LOOPED, rel=0.03)


def test_coefficients_are_never_negative_and_the_best_for_their_exponents():
    losses = noisy(LOOPED, CELLS)
    exponents = np.array([[0.35, 0.4, 0.46], [2.0, 0.1, 0.0], [0.05, 1.5, 1.4]])
    found = project(exponents, CELLS, losses)
    assert (found >= 0).all()
    assert (found == 0).any()

    values = np.concatenate([found, exponents], axis=1)
    for n in range(len(values)):
        for place in range(3):
            for factor in (0.98, 1.02):
                moved = values[n].copy()
                moved[place] *= factor
                losses_of = loss_of(np.stack([values[n], moved]), CELLS, losses)
                assert losses_of[0] <= losses_of[1] * 1.001


@given(st.floats(0.05, 2), st.floats(0.05, 2), st.floats(-0.9, 1.9))
def test_slopes_are_those_of_small_steps(a, b, phi):
    law = np.array([0.9, 0.5, 0.05, a, b, phi])
    found = slopes(law[None], CELLS)[0]
    for place in range(len(NAMES)):
        step = np.zeros(6)
        step[place] = 1e-6
        up, down = np.log(predicted(np.stack([law + step, law - step]), CELLS))
        assert found[:, place] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)


def test_other_units_of_parameters_change_only_their_coefficient():
    losses = noisy(CHINCHILLA, PLAIN)
    law = fit_law(PLAIN, losses)
    thousands = Cells(1e3 * PLAIN.sizes, PLAIN.times, PLAIN.tokens, PLAIN.weights)
    other = fit_law(thousands, losses)
    expected = law.copy()
    expected[1] *= 1e3 ** law[3]
    assert other == pytest.approx(expected, rel=1e-3)


def test_phi_is_fitted_only_where_cells_differ_in_how_often_parameters_are_applied():
    assert list(CELLS.fitted) == [True] * 6
    for loops in ((1,), (4,)):
        alike = grid_of_cells((0.5, 1, 2, 4), loops, (1, 2, 4))
        assert list(alike.fitted) == [True] * 5 + [False]
        losses = noisy(CHINCHILLA, alike)
        assert fit_law(alike, losses)[-1] == 0


def test_a_held_value_keeps_still_and_all_others_move():
    losses = noisy(LOOPED, CELLS)
    best = fit_law(CELLS, losses)
    start = best.copy()
    start[3] += 0.05
    moved = descend(start[None], CELLS, losses, held="a")[0]
    assert moved[3] == start[3]
    assert (np.delete(moved, 3) != np.delete(start, 3)).all()
    before, after, lowest = loss_of(np.stack([start, moved, best]), CELLS, losses)
    assert lowest < after < before
