"""Compute multipliers, against a search over sizes, and laws whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from dualpath_cli.compare.fits.fits import ScalingFit, fit_family
from dualpath_cli.compare.fits.multipliers import (
    FARTHEST,
    UNIT,
    LoopVariant,
    multipliers_of,
    variants_of,
)
from tests.compare.fits.law_runs import write_law_runs
from tests.compare.fits.test_families import families


@pytest.fixture(scope="module")
def fits(tmp_path_factory) -> list[ScalingFit]:
    """Of PureWide, and of the family of repeated cores."""
    folder = tmp_path_factory.mktemp("made") / "both"
    found = [fit_family(its) for its in families(write_law_runs(folder)).values()]
    return [fit for fit in found if isinstance(fit, ScalingFit)]


def losses(variant: LoopVariant, budget: float, size: np.ndarray) -> np.ndarray:
    """Of models of these millions of parameters that spend a budget."""
    big_e, big_a, big_b, a, b, phi = variant.fit.values
    times = variant.fit.family.cells.times
    worth = size * (variant.shares * times**phi).sum()
    tokens = budget / (variant.flops * UNIT * size)
    return big_e + big_a / worth**a + big_b / tokens**b


def test_the_best_size_for_a_budget_is_the_one_that_a_search_finds(fits):
    for variant in variants_of(fits[1]):
        for budget in (1e12, 1e13):
            found = variant.best_loss(variant.fit.values[None], np.array([budget]))
            searched = losses(variant, budget, np.geomspace(1e-4, 1e4, 20_001)).min()
            assert found[0] == pytest.approx(searched, rel=1e-6)


def test_a_variant_has_the_flops_and_the_shares_of_its_largest_run(fits):
    once, four = variants_of(fits[1])
    assert (once.name, four.name) == ("core, 1 times", "core, 4 times")
    assert once.shares == pytest.approx([1, 0])
    assert four.shares.sum() == pytest.approx(1)
    assert four.shares[1] == pytest.approx(0.5, abs=0.01)
    # half of the parameters four times: 6 FLOPs a parameter applied, scores and head
    assert 6 * 2.5 < four.flops < 6 * 2.5 * 1.6


def test_half_the_flops_for_the_same_law_are_a_multiplier_of_two(fits):
    wide, _ = fits
    other = replace(
        wide.family,
        configurations=wide.family.configurations[1:],
        flops=wide.family.flops / 2,
    )
    cheaper = replace(wide, family=other)
    rows = multipliers_of([wide, cheaper])
    assert [row.ahead for row in rows] == [1, 2]
    for row in rows:
        assert row.value == pytest.approx(2)
    assert rows[0].budget == wide.family.flops.max() / 2


def test_resamples_of_two_families_are_not_paired_by_their_draws(fits):
    """Two families of the same scores, whose laws vary alike and each by itself."""
    wide, _ = fits
    family = replace(wide.family, configurations=wide.family.configurations[1:])
    same = replace(wide, family=family)
    for row in multipliers_of([wide, same]):
        assert row.value == pytest.approx(1)
        assert row.low < 0.99 < 1.01 < row.high


def test_resamples_of_one_family_stay_paired(fits):
    _, core = fits
    shuffled = replace(core, resampled=core.resampled[::-1])
    for row, apart in zip(
        multipliers_of([core]), multipliers_of([core, shuffled])[-2:], strict=True
    ):
        assert row.variant == apart.variant == "core, 4 times"
        assert row.high / row.low < apart.high / apart.low


def test_looped_models_are_set_against_pure_wide_once(fits):
    rows = multipliers_of(fits)
    assert {(row.variant, row.over) for row in rows} == {("core, 4 times", "wide")}
    for row in rows:
        assert row.low < row.value < row.high


def test_a_loss_that_the_other_law_never_reaches_is_beyond_all_multipliers(fits):
    wide, core = fits
    hopeless = wide.values.copy()
    hopeless[0] += 50
    rows = multipliers_of([replace(wide, values=hopeless), core])
    assert rows[0].value == np.inf > FARTHEST
    rows = multipliers_of([core, replace(wide, values=hopeless)])
    assert rows[-1].value == 0
