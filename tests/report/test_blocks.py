"""Tests over runs: against least squares, SciPy, enumeration, and simulated truths."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.report.blocks import (
    Spread,
    block_spread,
    find_blocks,
    holm,
    noncentrality,
    signed_rank_p,
)
from tests.conftest import Lazy

stats = Lazy("scipy.stats")


def least_squares(
    values_CS: np.ndarray, one: int, other: int
) -> tuple[float, float, int]:
    """Difference, standard error and degrees of freedom by ordinary least squares.

    Columns of the design: an intercept, a dummy for each configuration and seed but the
    first.
    """
    C, S = values_CS.shape
    design, y = [], []
    for c in range(C):
        for s in range(S):
            design.append(
                [1.0, *(c == k for k in range(1, C)), *(s == k for k in range(1, S))]
            )
            y.append(values_CS[c, s])
    X = np.array(design, float)
    inverse = np.linalg.inv(X.T @ X)
    weights = inverse @ X.T @ np.array(y)
    residuals = np.array(y) - X @ weights
    df = len(y) - X.shape[1]
    contrast = np.zeros(X.shape[1])
    for place, sign in ((one, 1.0), (other, -1.0)):
        if place:
            contrast[place] = sign
    variance = residuals @ residuals / df * (contrast @ inverse @ contrast)
    return float(contrast @ weights), math.sqrt(variance), df


def drawn(seed: int, C: int, S: int, spread: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(0, 3, (C, 1))
        + rng.normal(0, 5, (1, S))
        + rng.normal(0, spread, (C, S))
    )


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(2, 5), st.data())
def test_blocks_are_ordinary_least_squares_with_dummies(seed, C, S, data):
    values = drawn(seed, C, S)
    one, other = data.draw(st.permutations(range(C)))[:2]
    difference, error, df = least_squares(values, one, other)
    spread = block_spread(values)
    assert values[one].mean() - values[other].mean() == pytest.approx(
        difference, abs=1e-9
    )
    assert (spread.error, spread.df) == (pytest.approx(error, rel=1e-8), df)


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_blocks_of_a_pair_are_students_paired_test(seed, S):
    values = drawn(seed, 2, S)
    gaps = values[1] - values[0]
    found = stats.ttest_rel(values[1], values[0])
    low, high = found.confidence_interval(0.95)
    spread = block_spread(values)
    assert spread.p(gaps.mean()) == pytest.approx(found.pvalue, rel=1e-7)
    assert gaps.mean() - spread.reach == pytest.approx(low, rel=1e-7)
    assert gaps.mean() + spread.reach == pytest.approx(high, rel=1e-7)
    assert spread.df == S - 1


@pytest.mark.parametrize(("C", "S"), [(2, 2), (3, 2), (6, 3), (10, 5)])
@pytest.mark.parametrize("share", [0.05, 0.8])
def test_no_difference_is_found_one_time_in_twenty_and_a_detectable_one_four_in_five(
    share, C, S
):
    """The spread is known here: the noise has variance 1."""
    size = noncentrality((C - 1) * (S - 1)) * math.sqrt(2 / S) if share == 0.8 else 0.0
    found, outside = [], []
    for seed in range(1500):
        rng = np.random.default_rng((C, S, seed))
        values = rng.normal(0, 5, (1, S)) + rng.normal(0, 1, (C, S))
        values[1] += size
        spread, difference = block_spread(values), values[1].mean() - values[0].mean()
        found.append(spread.p(difference) < 0.05)
        outside.append(abs(difference) > spread.reach)
    assert np.mean(found) == pytest.approx(
        share, abs=3.5 * math.sqrt(share * (1 - share) / 1500)
    )
    assert found == outside


def test_what_does_not_vary_is_certain():
    values = np.array([[2.1, 2.3, 2.2], [2.0, 2.2, 2.1]])
    spread = block_spread(values)
    assert (spread.error, spread.reach, spread.detectable) == (0, 0, 0)
    assert (Spread(0.0, 2).p(-0.1), Spread(0.0, 2).p(0.0)) == (0.0, 1.0)


SEEDS = st.frozensets(st.integers(0, 4))


@given(SEEDS, SEEDS, st.lists(SEEDS, max_size=5), st.integers(1, 4))
def test_no_other_complete_blocks_of_a_pair_detect_less(a, wide, others, its_rows):
    scores = {
        name: dict.fromkeys(sorted(seeds), 0.0)
        for name, seeds in [
            ("wide", wide),
            ("a", a),
            *((f"b{n}", s) for n, s in enumerate(others)),
        ]
    }
    rows = {"a": its_rows}  # of all others one
    found = find_blocks(scores, "a", "wide", rows)
    assert {"a", "wide"} <= set(found.names)
    assert all(set(found.seeds) <= scores[name].keys() for name in found.names)
    if len(a & wide) < 2:
        assert found.seeds == tuple(sorted(a & wide))
        return
    for size in range(2, len(a & wide) + 1):
        for chosen in itertools.combinations(sorted(a & wide), size):
            have = [name for name in scores if set(chosen) <= scores[name].keys()]
            df = (sum(rows.get(name, 1) for name in have) - 1) * (size - 1)
            least = noncentrality(df) * math.sqrt(2 / size)
            assert (
                noncentrality(found.df) * math.sqrt(2 / len(found.seeds))
                <= least + 1e-9
            )


# Signed ranks, and the correction for the number of tests


def naive_holm(ps: list[float]) -> list[float]:
    """The least level at which the step-down procedure rejects each hypothesis."""

    def rejected(level: float) -> set[int]:
        left = set(range(len(ps)))
        while left:
            least = min(left, key=lambda n: ps[n])
            if ps[least] > level / len(left):
                break
            left.remove(least)
        return set(range(len(ps))) - left

    levels = sorted(
        {min(1.0, p * n) for p in ps for n in range(1, len(ps) + 1)} | {1.0}
    )
    return [
        next((v for v in levels if n in rejected(v + 1e-12)), 1.0)
        for n in range(len(ps))
    ]


@given(st.lists(st.floats(0, 1), max_size=7))
def test_the_correction_is_holms(ps):
    assert holm(ps) == pytest.approx(naive_holm(ps), abs=1e-9)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # All of one sign: two of the 2^n ways to give n ranks signs are as extreme.
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 2 / 2**6),
        ([-0.1, -0.2, -0.3, -0.4, -0.5], 2 / 2**5),
        # The least rank of the other sign: sums of 0 or 1 on either side.
        ([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 4 / 2**6),
        ([0.0, 0.0, 0.0], math.nan),
    ],
)
def test_the_signed_rank_test_counts_signs_of_ranks(differences, p):
    assert signed_rank_p(differences) == pytest.approx(p, nan_ok=True)


def test_what_was_not_tested_does_not_count():
    corrected = holm([0.01, math.nan, 0.04, math.nan])
    assert corrected == pytest.approx([0.02, math.nan, 0.04, math.nan], nan_ok=True)
