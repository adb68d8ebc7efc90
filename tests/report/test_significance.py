"""Tests: against simulated truths, against enumeration, and corrected for their number."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.report.bootstrap import RESAMPLES, resampled_sums
from dualpath_cli.report.significance import (
    detectable,
    holm,
    mcnemar_p,
    p_value,
    signed_rank_p,
)
from tests.base.lazy import Lazy

stats = Lazy("scipy.stats")


def test_a_true_bound_is_rejected_one_time_in_twenty():
    rejected = []
    for seed in range(300):
        rows = np.random.default_rng(seed).normal(0.5, 1.0, (15, 1))
        values = resampled_sums(f"text {seed}", range(15), np.column_stack([rows, np.ones(15)]))
        rejected.append(p_value(values[:, 0] / values[:, 1], 0.5, 15) < 0.05)
    # Binomial(300, 0.05): standard deviation 0.0126.
    assert 0.05 - 3 * 0.0126 < np.mean(rejected) < 0.05 + 3 * 0.0126


def test_the_p_value_is_students():
    """Of ten clusters, 2.262 standard errors from the bound: 0.05."""
    spread = np.random.default_rng(0).normal(size=RESAMPLES)
    spread *= 1 / spread.std(ddof=1)
    values = np.concatenate([[2.262 * math.sqrt(10 / 9)], spread])
    assert p_value(values, 0.0, 10) == pytest.approx(0.05, abs=1e-4)
    assert p_value(-values, 0.0, 10) == pytest.approx(0.05, abs=1e-4)


def test_what_has_no_interval_has_no_test_and_what_does_not_vary_is_certain():
    level = np.full(1 + RESAMPLES, 0.5)
    assert math.isnan(p_value(level, 0.0, 9))
    assert (p_value(level, 0.5, 10), p_value(level, 0.25, 10)) == (1.0, 0.0)
    assert math.isnan(p_value(level * math.nan, 0.0, 10))


@given(st.floats(-5, 5), st.integers(10, 500), st.integers(0, 20), st.integers(0, 99))
def test_resamples_without_a_number_are_left_out_of_the_test_and_of_what_is_detectable(
    value, clusters, unknown, seed
):
    spread = np.random.default_rng(seed).normal(size=RESAMPLES)
    spread[:unknown] = math.nan
    values = np.concatenate([[value], spread])
    found = [p_value(values, 0.0, clusters), detectable(values, clusters)]
    if unknown > 0.01 * RESAMPLES:
        assert np.isnan(found).all()
        return
    error = spread[unknown:].std(ddof=1) * math.sqrt(clusters / (clusters - 1))
    assert found[0] == pytest.approx(2 * stats.t.sf(abs(value) / error, clusters - 1))
    assert found[1] == pytest.approx(2.8016 * error, rel=1e-4)


@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_is_the_share_of_all_signs_that_are_as_uneven(better, worse):
    n = better + worse
    as_uneven = [
        abs(2 * sum(signs) - n) >= abs(better - worse) for signs in product((0, 1), repeat=n)
    ]
    assert mcnemar_p(better, worse) == pytest.approx(sum(as_uneven) / 2**n)


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

    levels = sorted({min(1.0, p * n) for p in ps for n in range(1, len(ps) + 1)} | {1.0})
    return [next((v for v in levels if n in rejected(v + 1e-12)), 1.0) for n in range(len(ps))]


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
