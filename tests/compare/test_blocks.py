"""Paired tests over seeds: against least squares, SciPy, integrals, and simulated truths."""

import itertools
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dualpath_cli.compare.blocks import (
    Blocks,
    Spread,
    block_spread,
    find_blocks,
    noncentrality,
)


def least_squares(values_CS: np.ndarray, one: int, other: int) -> tuple[float, float, int]:
    """Difference, standard error and degrees of freedom by ordinary least squares.

    Columns of the design: an intercept, a dummy for each configuration and seed but the first.
    """
    C, S = values_CS.shape
    design, y = [], []
    for c in range(C):
        for s in range(S):
            design.append([1.0, *(c == k for k in range(1, C)), *(s == k for k in range(1, S))])
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
    return rng.normal(0, 3, (C, 1)) + rng.normal(0, 5, (1, S)) + rng.normal(0, spread, (C, S))


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(2, 5), st.data())
def test_blocks_are_ordinary_least_squares_with_dummies(seed, C, S, data):
    values = drawn(seed, C, S)
    one, other = data.draw(st.permutations(range(C)))[:2]
    difference, error, df = least_squares(values, one, other)
    spread = block_spread(values)
    assert values[one].mean() - values[other].mean() == pytest.approx(difference, abs=1e-9)
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
def test_equal_configurations_differ_one_time_in_twenty(C, S):
    """At the 5 % level, and their interval holds the truth in the other nineteen."""
    rejected, held = [], []
    for seed in range(2000):
        rng = np.random.default_rng((C, S, seed))
        values = rng.normal(0, 5, (1, S)) + rng.normal(0, 1, (C, S))
        spread, difference = block_spread(values), values[1].mean() - values[0].mean()
        rejected.append(spread.p(difference) < 0.05)
        held.append(abs(difference) <= spread.reach)
    # Binomial(2000, 0.05): standard deviation 0.0049.
    assert np.mean(rejected) == pytest.approx(0.05, abs=3.5 * 0.0049)
    assert np.array_equal(np.logical_not(rejected), held)


def power(size: float, df: int) -> float:
    """P(|T| > bound) of the noncentral t: normal tails, averaged over chi-square variances."""
    bound = stats.t.ppf(0.975, df)

    def given_variance(v: float) -> float:
        scale = bound * math.sqrt(v / df)
        tails = stats.norm.sf(scale - size) + stats.norm.cdf(-scale - size)
        return float(tails * stats.chi2.pdf(v, df))

    mean, width = df, math.sqrt(2 * df)
    edges = [0.0, *(10.0**-k for k in range(8, 0, -1)), *(mean + width * k for k in range(1, 40))]
    return sum(integrate.quad(given_variance, low, high)[0] for low, high in pairwise(edges))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 8, 24, 200])
def test_a_detectable_difference_is_found_four_times_in_five(df):
    assert power(noncentrality(df), df) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize(("C", "S"), [(2, 2), (2, 5), (4, 3), (8, 2)])
def test_a_true_difference_of_that_size_is_found_so_often(C, S):
    """The spread is known here: the noise has variance 1."""
    size = noncentrality((C - 1) * (S - 1)) * math.sqrt(2 / S)
    found = []
    for seed in range(1500):
        rng = np.random.default_rng((C, S, seed))
        values = rng.normal(0, 5, (1, S)) + rng.normal(0, 1, (C, S))
        values[1] += size
        found.append(block_spread(values).p(values[1].mean() - values[0].mean()) < 0.05)
    # Binomial(1500, 0.8): standard deviation 0.0103.
    assert np.mean(found) == pytest.approx(0.8, abs=3.5 * 0.0103)


def test_the_normal_distribution_would_promise_too_much():
    normal = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert noncentrality(10**5) == pytest.approx(normal, abs=1e-3)
    assert noncentrality(2) > 2 * normal
    assert noncentrality(1) > 5 * normal


def test_a_seed_shifts_all_configurations_and_no_difference():
    values = drawn(0, 4, 3)
    shifted = values + np.array([[100.0, -50.0, 7.0]])
    assert block_spread(shifted).error == pytest.approx(block_spread(values).error, rel=1e-9)


def test_what_does_not_vary_is_certain():
    values = np.array([[2.1, 2.3, 2.2], [2.0, 2.2, 2.1]])
    spread = block_spread(values)
    assert (spread.error, spread.reach, spread.detectable) == (0, 0, 0)
    assert (Spread(0.0, 2).p(-0.1), Spread(0.0, 2).p(0.0)) == (0.0, 1.0)


def scores_of(**seeds: str) -> dict[str, dict[int, float]]:
    return {name: {int(seed): 0.0 for seed in text} for name, text in seeds.items()}


@pytest.mark.parametrize(
    ("scores", "names", "seeds"),
    [
        (scores_of(wide="012", a="012", b="012"), ("wide", "a", "b"), (0, 1, 2)),
        # One that lacks a seed stays outside, and leaves the others theirs.
        (scores_of(wide="012", a="012", b="012", c="01"), ("wide", "a", "b"), (0, 1, 2)),
        # One that the pair alone has is worth less than the error of many others,
        (scores_of(wide="012", a="012", b="01", c="01", d="01"), ("wide", "a", "b", "c", "d"),
         (0, 1)),
        # eight of them are worth more.
        (scores_of(wide="0123456789", a="0123456789", b="01", c="01", d="01"), ("wide", "a"),
         tuple(range(10))),
        # Where the pair lacks one, the others give it up.
        (scores_of(wide="012", a="01", b="012", c="012"), ("wide", "a", "b", "c"), (0, 1)),
        # Seeds that the baseline has not are of no use.
        (scores_of(wide="01", a="0123", b="0123"), ("wide", "a", "b"), (0, 1)),
    ],
)  # fmt: skip
def test_blocks_of_a_pair_detect_the_smallest_difference(scores, names, seeds):
    assert find_blocks(scores, "a", "wide") == Blocks(names, seeds)


SEEDS = st.frozensets(st.integers(0, 4))


@given(SEEDS, SEEDS, st.lists(SEEDS, max_size=5))
def test_no_other_complete_blocks_of_a_pair_detect_less(a, wide, others):
    scores = {
        name: dict.fromkeys(sorted(seeds), 0.0)
        for name, seeds in [("wide", wide), ("a", a), *((f"b{n}", s) for n, s in enumerate(others))]
    }
    found = find_blocks(scores, "a", "wide")
    assert {"a", "wide"} <= set(found.names)
    assert all(set(found.seeds) <= scores[name].keys() for name in found.names)
    if len(a & wide) < 2:
        assert found.seeds == tuple(sorted(a & wide))
        return
    for size in range(2, len(a & wide) + 1):
        for chosen in itertools.combinations(sorted(a & wide), size):
            have = sum(set(chosen) <= runs.keys() for runs in scores.values())
            least = noncentrality((have - 1) * (size - 1)) * math.sqrt(2 / size)
            assert noncentrality(found.df) * math.sqrt(2 / len(found.seeds)) <= least + 1e-9


@pytest.mark.parametrize("scores", [
    scores_of(wide="0", a="0"), scores_of(wide="01", a="23"), scores_of(wide="012", a="0", b="012"),
])  # fmt: skip
def test_there_are_no_blocks_of_fewer_than_two_seeds(scores):
    blocks = find_blocks(scores, "a", "wide")
    assert len(blocks.seeds) < 2
    assert set(blocks.names) >= {"a", "wide"}
