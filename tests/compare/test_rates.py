"""The best rate of a configuration, and the intervals of a difference at best rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.compare.rates import lowest, neighbours, resampled
from tests.compare.run_folders import difference

LOGS = np.log([1e-3, 2e-3, 4e-3, 8e-3])


@given(st.floats(0.05, 0.95), st.floats(0.01, 1), st.floats(-2, 2))
def test_a_parabola_over_log_rate_is_found_exactly_and_no_rate_beyond_the_tried(
    share, bend, low
):
    place = LOGS[0] + share * (LOGS[-1] - LOGS[0])
    found, value, rise = lowest(LOGS, low + bend * (LOGS - place) ** 2)
    assert (found, value) == pytest.approx((place, low), abs=1e-9)
    assert rise == pytest.approx(bend * np.log(2) ** 2)  # over one step of rates
    for edge, falling in ((0, LOGS), (-1, -LOGS)):
        assert lowest(LOGS, falling)[:2] == (LOGS[edge], falling[edge])


def test_neighbours_are_the_lowest_mean_and_those_beside_it_or_the_three_at_an_edge():
    means = np.array([[0, 1, 2, 3.0], [3, 0, 1, 2], [3, 1, 0, 2], [3, 2, 1, 0]])
    expected = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [1, 2, 3]]
    assert neighbours(means).tolist() == expected
    assert [neighbours(row).tolist() for row in means] == expected


def test_a_detectable_difference_is_found_four_times_in_five_and_90_in_100_include_it():
    """Four rates, between which the curves bend by four standard errors; 14 seeds. A
    difference at only one rate would be found from 0.040 on: the parabola takes the
    noise of three."""
    rng = np.random.default_rng(3)
    curves = [
        0.04 * ((LOGS - LOGS.mean()) / np.log(2) - aside) ** 2 for aside in (-0.2, 0.2)
    ]
    found, included, detectable, size = [], [], [], 0.0364
    for _ in range(500):
        error = 0.01 * np.sqrt(rng.chisquare(91) / 91)
        ours, theirs = (
            (LOGS, curve + shift + 0.01 * rng.normal(size=4))
            for curve, shift in zip(curves, (0.0, size), strict=True)
        )
        row = resampled(ours, theirs, error, 91, resamples=2000)
        found.append(row["p"] < 0.05)
        included.append(row["low_90"] <= -size <= row["high_90"])
        detectable.append(row["detectable"])
    assert np.mean(detectable) == pytest.approx(size, rel=0.03)
    assert np.mean(found) == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / 500))
    assert 0.9 <= np.mean(included) <= 0.97


@pytest.mark.parametrize(
    ("bends", "included", "passed", "unlike"),
    [
        ((0.1, 10), 0.86, 0.25, 0.96),
        ((1, 10), 0.93, 0.11, 0.88),
        ((0.1, 4), 0.88, 0.20, 0.5),
        ((0.1, 0.1), 0.99, 0.01, 0),
        ((10, 10), 0.95, 0.05, 0),
    ],
)
def test_intervals_of_curves_that_bend_unlike_include_0_as_often_as_the_page_says(
    bends, included, passed, unlike
):
    """No true difference; bends in standard errors a step of rates. The flatter one
    looks better: of four noisy means the lowest is too low."""
    rng, steps = np.random.default_rng(5), (LOGS - LOGS.mean()) / np.log(2)
    rows = []
    while len(rows) < 500:
        means = [
            b * (steps - rng.uniform(-0.5, 0.5)) ** 2 + rng.normal(size=4)
            for b in bends
        ]
        if not any(mean.argmin() in (0, 3) for mean in means):  # an edge is not tested
            error = np.sqrt(rng.chisquare(91) / 91)
            arms = [(LOGS, mean) for mean in means]
            rows.append(resampled(*arms, error, 91, resamples=1000))

    holds = np.mean([r["low"] <= 0 <= r["high"] for r in rows])
    assert holds == pytest.approx(included, abs=0.045)
    # A flatter curve that is worse by the margin, wide as it is, has an interval moved
    # as far.
    assert np.mean([r["high_90"] < 0 for r in rows]) == pytest.approx(passed, abs=0.045)
    made = [difference(bend=r["bend"], bend_baseline=r["bend_baseline"]) for r in rows]
    assert np.mean([row.unlike for row in made]) == pytest.approx(unlike, abs=0.045)
    if bends[1] == 10:
        shown = np.median([r["bend_baseline"] for r in rows])
        assert shown == pytest.approx(10.1, abs=0.3)
    if bends[0] < bends[1]:
        assert -1.1 < np.mean([r["difference"] for r in rows]) < -0.3
