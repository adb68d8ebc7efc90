"""Intervals contain what they should, as wide as they should be; the test over runs."""

import math

import numpy as np
import pytest

from dualpath_cli.study.bootstrap import bootstrap_interval, signed_rank_p


def test_the_interval_contains_the_mean_and_has_the_width_of_its_standard_error():
    draw = np.random.default_rng(0)
    tokens = draw.integers(50, 100, 400)
    nats = tokens[:, None] * draw.normal([0.3, -2.0], [0.1, 0.5], (400, 2))
    low, high = bootstrap_interval(nats, tokens)
    mean = nats.sum(0) / tokens.sum()
    assert (low < mean).all()
    assert (mean < high).all()
    np.testing.assert_allclose(high - low, 2 * 1.96 * np.array([0.1, 0.5]) / 20, rtol=0.15)
    assert np.array_equal(bootstrap_interval(nats, tokens), (low, high))


def test_windows_are_drawn_whole_and_weighed_by_their_tokens():
    low, high = bootstrap_interval(np.array([[2.0], [3.0]]), np.array([8, 2]))
    assert (low[0], high[0]) == (2 / 8, 3 / 2)  # each window drawn twice


def test_a_single_window_has_no_interval():
    low, high = bootstrap_interval(np.ones((1, 3)), np.array([5]))
    assert np.isnan([*low, *high]).all()


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # All of one sign: two of the 2^n ways to give n ranks signs are as extreme.
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 2 / 2**6),
        ([-0.1, -0.2, -0.3, -0.4, -0.5], 2 / 2**5),
        # The least rank of the other sign: sums of 0 or 1 on either side.
        ([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 4 / 2**6),
    ],
)
def test_the_signed_rank_test_counts_signs_of_ranks(differences, p):
    assert signed_rank_p(differences) == pytest.approx(p)


def test_runs_without_any_difference_have_no_p_value():
    assert math.isnan(signed_rank_p([0.0, 0.0, 0.0]))
