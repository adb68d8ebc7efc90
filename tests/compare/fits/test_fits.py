"""What is said of a law: intervals, profiles, rollouts, and the next run."""

from dataclasses import replace

import numpy as np
import pytest

from dualpath_cli.compare.fits.families import ScalingFamily
from dualpath_cli.compare.fits.fits import (
    LARGEST,
    RESAMPLES,
    Rollout,
    ScalingFit,
    fit_family,
    profile,
    resampled_laws,
    resampled_means,
)
from dualpath_cli.compare.fits.law import NAMES, fit_law, predicted, slopes
from tests.compare.fits.law_runs import LAW, write_law_runs
from tests.compare.fits.test_families import families


@pytest.fixture(scope="module")
def core(tmp_path_factory) -> ScalingFamily:
    folder = tmp_path_factory.mktemp("made") / "core"
    return families(write_law_runs(folder, seeds=3))["core"]


@pytest.fixture(scope="module")
def fit(core) -> ScalingFit:
    found = fit_family(core)
    assert isinstance(found, ScalingFit)
    return found


def test_the_law_of_runs_comes_back_up_to_their_noise(fit):
    for name in ("a", "b", "phi"):
        value = fit.values[NAMES.index(name)]
        low, high = fit.interval(name)
        assert value == pytest.approx(LAW[name], abs=0.1)
        assert low < value < high < low + 0.25
    assert len(fit.resampled) == RESAMPLES
    assert fit.off < 0.003


def test_equal_runs_give_equal_digits(core, fit):
    again = fit_family(core)
    assert isinstance(again, ScalingFit)
    assert (again.values == fit.values).all()
    assert (again.resampled == fit.resampled).all()


def test_means_of_resampled_seeds_vary_as_means_of_seeds_do():
    scores = np.array([1.0, 1.1, 1.4])
    means = resampled_means(scores, 200_000, np.random.default_rng(0))
    assert means.mean() == pytest.approx(scores.mean(), abs=1e-3)
    assert means.var() == pytest.approx(scores.var(ddof=1) / 3, rel=0.01)


def test_intervals_grow_with_the_noise_of_seeds(core, fit):
    spread = [scores + 2 * (scores - scores.mean()) for scores in core.scores]
    wider = resampled_laws(core.cells, spread, fit.values, 300)
    place = NAMES.index("phi")
    ratio = wider[:, place].std() / fit.resampled[:300, place].std()
    assert ratio == pytest.approx(3, rel=0.25)


def test_a_configuration_with_one_seed_leaves_a_law_without_intervals(core, fit):
    scores = [*core.scores[:-1], core.scores[-1][:1]]
    assert len(resampled_laws(core.cells, scores, fit.values)) == 0
    low, high = replace(fit, resampled=np.empty((0, 6))).interval("a")
    assert np.isnan([low, high]).all()


def test_a_profile_is_lowest_at_the_fit_and_rises_to_both_sides(fit):
    for name in ("a", "b", "phi"):
        best = fit.values[NAMES.index(name)]
        around = best + np.array([-0.1, -0.05, 0, 0.05, 0.1])
        relative = profile(fit, name, around)
        assert relative[2] == pytest.approx(1, abs=1e-6)
        assert relative[0] > relative[1] > 1.05
        assert relative[4] > relative[3] > 1.05


def test_a_rollout_predicts_the_largest_budgets_from_a_law_without_them(core, fit):
    largest = core.flops >= core.flops.max() / LARGEST
    kept = core.take(~largest)
    law = fit_law(kept.cells, kept.losses)
    off = predicted(law[None], core.cells)[0][largest] - core.losses[largest]
    assert largest.sum() > 1
    assert isinstance(fit.rollout, Rollout)
    assert fit.rollout.error == pytest.approx(off.mean())
    assert fit.rollout.largest == pytest.approx(np.abs(off).max())
    assert fit.rollout.beyond == pytest.approx(core.flops.max() / kept.flops.max())


def test_the_next_run_narrows_phi_by_what_one_row_more_of_its_slopes_does(core, fit):
    def error_of_phi(cells):
        rows = slopes(fit.values[None], cells)[0] * np.sqrt(cells.weights)[:, None]
        _, triangle = np.linalg.qr(rows)
        inverse = np.linalg.inv(triangle)
        return float(np.sqrt((inverse[-1] ** 2).sum()))

    run = fit.next_run
    assert run is not None
    now = error_of_phi(core.cells)
    narrowed = []
    for n, c in enumerate(core.configurations):
        weights = core.cells.weights + (np.arange(len(core.cells)) == n)
        then = error_of_phi(replace(core.cells, weights=weights))
        narrowed.append(1 - then / now)
        if run.repeats and c is run.like:
            assert run.narrower == pytest.approx(narrowed[-1])
    assert run.narrower >= max(narrowed) - 1e-9


def test_a_law_at_an_edge_is_refused_with_the_value_and_the_way_out(tmp_path):
    """Scores that fall with ever more parameters as if there were no end: E is 0."""
    family = families(write_law_runs(tmp_path / "wide", ["wide"], seeds=1))["wide"]
    size = family.cells.sizes.sum(1)
    losses = 0.5 * size**-0.35 + 0.05 * family.cells.tokens**-0.4 - 0.15
    configurations = tuple(
        replace(c, scores={name: dict.fromkeys(c.seeds, loss) for name in c.scores})
        for c, loss in zip(family.configurations, losses, strict=True)
    )
    said = fit_family(replace(family, configurations=configurations))
    assert isinstance(said, str)
    assert said.startswith("its best law has E = 0, at the edge of the search")
    assert "train larger budgets" in said


def test_no_rollout_where_only_the_largest_budgets_tell_phi(core):
    """A law without phi is not the family's."""
    is_looped = core.cells.sizes[:, 1] > 0
    kept = core.take(~is_looped | (core.flops >= core.flops.max() / LARGEST))
    assert "phi" in kept.fitted
    found = fit_family(kept)
    assert isinstance(found, ScalingFit)
    assert "so phi cannot be fitted" in str(found.rollout)
