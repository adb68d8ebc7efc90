"""Tests over runs: against enumeration, and corrected for their number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.report.significance import (
    holm,
    signed_rank_p,
)


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
