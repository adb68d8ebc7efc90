"""The best of several learning rates, and tests that count its choice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.compare import rates
from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.rates import lowest, resampled
from dualpath_cli.compare.runs import find_folders, read_run
from dualpath_cli.compare.tables import BEST, differences_of
from dualpath_cli.report.blocks import block_spread
from tests.compare.run_folders import model_of, write_run
from tests.compare.test_tables import difference

LOGS = np.log([1e-3, 2e-3, 4e-3, 8e-3])


@settings(deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0.01, 1), st.floats(-2, 2))
def test_a_parabola_over_log_rate_is_found_exactly_and_no_rate_beyond_the_tried(share, bend, low):
    place = LOGS[0] + share * (LOGS[-1] - LOGS[0])
    found, value, rise = lowest(LOGS, low + bend * (LOGS - place) ** 2)
    assert (found, value) == (pytest.approx(place, abs=1e-9), pytest.approx(low, abs=1e-9))
    assert rise == pytest.approx(bend * np.log(2) ** 2)  # over one step of rates
    for edge, falling in ((0, LOGS), (-1, -LOGS)):
        assert lowest(LOGS, falling)[:2] == (LOGS[edge], falling[edge])


def test_a_detectable_difference_is_found_four_times_in_five_and_90_in_100_are_held(monkeypatch):
    """Four rates, between which the curves bend by four standard errors; 14 seeds. A difference at
    one rate alone would be found from 0.040 on: the parabola takes the noise of three."""
    monkeypatch.setattr(rates, "RESAMPLES", 2000)
    rng = np.random.default_rng(3)
    curves = [0.04 * ((LOGS - LOGS.mean()) / np.log(2) - aside) ** 2 for aside in (-0.2, 0.2)]
    found, held, detectable, size = [], [], [], 0.0364
    for _ in range(500):
        error = 0.01 * np.sqrt(rng.chisquare(91) / 91)
        ours, theirs = (
            (LOGS, curve + shift + 0.01 * rng.normal(size=4))
            for curve, shift in zip(curves, (0.0, size), strict=True)
        )
        row = resampled(ours, theirs, error, 91)
        found.append(row["p"] < 0.05)
        held.append(row["low_90"] <= -size <= row["high_90"])
        detectable.append(row["detectable"])
    assert np.mean(detectable) == pytest.approx(size, rel=0.03)
    assert np.mean(found) == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / 500))
    assert 0.9 <= np.mean(held) <= 0.97


@pytest.mark.parametrize(
    ("bends", "held", "unlike"),
    [((0.1, 10), 0.86, 0.96), ((1, 10), 0.93, 0.88), ((0.1, 0.1), 0.99, 0), ((10, 10), 0.95, 0)],
)
def test_curves_that_bend_unlike_are_held_less_often_as_the_page_says_and_warned_of(
    monkeypatch, bends, held, unlike
):
    """No true difference; bends in standard errors a step of rates. The flatter one looks better:
    of four noisy means the lowest is too low."""
    monkeypatch.setattr(rates, "RESAMPLES", 1000)
    rng, steps = np.random.default_rng(5), (LOGS - LOGS.mean()) / np.log(2)
    rows = []
    while len(rows) < 500:
        means = [b * (steps - rng.uniform(-0.5, 0.5)) ** 2 + rng.normal(size=4) for b in bends]
        if not any(mean.argmin() in (0, 3) for mean in means):  # an edge is not tested
            error = np.sqrt(rng.chisquare(91) / 91)
            rows.append(resampled((LOGS, means[0]), (LOGS, means[1]), error, 91))
    assert np.mean([r["low"] <= 0 <= r["high"] for r in rows]) == pytest.approx(held, abs=0.045)
    made = [difference(bend=r["bend"], bend_baseline=r["bend_baseline"]) for r in rows]
    assert np.mean([row.unlike for row in made]) == pytest.approx(unlike, abs=0.045)
    if bends[1] == 10:
        assert np.median([r["bend_baseline"] for r in rows]) == pytest.approx(10.1, abs=0.3)
    if bends[0] < bends[1]:
        assert -1.1 < np.mean([r["difference"] for r in rows]) < -0.3


def write_rates(folder, optima, tried=(1e-3, 2e-3, 4e-3, 8e-3), seeds=3):
    rng = np.random.default_rng(0)
    models = {cell: model_of(cell, 1 if cell == "wide" else 2) for cell in optima}
    for lr in tried:
        for seed in range(seeds):
            for cell, (best, score) in optima.items():
                value = score + 0.05 * np.log(lr / best) ** 2 + 0.01 * seed + rng.normal(0, 1e-4)
                write_run(folder / f"{cell}-lr_{lr:g}/{seed}", models[cell],
                          {"a": value, "b": value + 1}, cell=f"{cell}-lr_{lr:g}", seed=seed,
                          optim={"lr": lr})  # fmt: skip
    return [read_run(path) for path in find_folders([str(folder)])]


def test_each_configuration_is_compared_at_its_own_best_rate(tmp_path):
    runs = write_rates(tmp_path, {"wide": (3e-3, 2.0), "dual": (1.5e-3, 1.9)})
    (group,) = groups_of(runs, best=True)
    assert [c.name for c in group.configurations] == ["wide", "dual"]
    assert [c.best_rate for c in group.configurations] == pytest.approx([3e-3, 1.5e-3], rel=0.01)
    assert [c.mean("a") for c in group.configurations] == pytest.approx([2.01, 1.91], abs=3e-4)
    for c in group.configurations:  # the same parabola chooses the rate and gives the scores
        means = [
            np.mean([run.scores["aggregate"] for run in by.values()]) for by in c.frame.values()
        ]
        assert c.mean("aggregate") == pytest.approx(float(lowest(LOGS, np.array(means))[1]), 1e-9)
    (row,) = differences_of([group])
    assert (row.test, row.measure, row.configurations, row.df) == (BEST, "aggregate", 2, 14)
    assert row.difference == pytest.approx(-0.1, abs=3e-4)
    assert row.low < row.difference < row.high < 0
    assert {run.settings.optim.lr for run in group.configurations[0].runs} == {4e-3}


def test_arms_of_unlike_numbers_of_seeds_are_tested_on_those_that_all_have(tmp_path):
    """Also where a seed lacks a rate; the noise is that of all rates of all arms."""
    arms = {"wide": (3e-3, 2.0), "dual": (1.5e-3, 1.9), "loop": (2.5e-3, 1.9)}
    runs = write_rates(tmp_path, arms, seeds=5)
    kept = [
        run for run in runs
        if (run.seed, run.settings.model.block) != (4, "dual")
        and (run.seed, run.settings.model.block, run.settings.optim.lr) != (3, "loop", 8e-3)
    ]  # fmt: skip
    (group,) = groups_of(kept, best=True, pairs=[("dual", "wide"), ("loop", "dual")])
    rows = differences_of([group], margin=0.01)
    assert [(row.seeds, row.df, row.test) for row in rows] == [(4, 21, BEST), (3, 22, BEST)]
    assert [row.verdict for row in rows] == ["better", "no difference that matters"]


@pytest.mark.parametrize(("best", "other"), [(8e-3, "higher"), (1e-3, "lower")])
def test_a_best_rate_at_either_edge_names_its_arm_which_alone_is_not_tested(tmp_path, best, other):
    arms = {"wide": (3e-3, 2.0), "dual": (best, 1.9), "loop": (2e-3, 1.9)}
    (group,) = groups_of(write_rates(tmp_path, arms), best=True)
    by_name = {c.name: c for c in group.configurations}
    assert f"best at {best:g}" in by_name["dual"].edge
    assert other in by_name["dual"].edge
    assert (by_name["wide"].edge, by_name["loop"].edge) == ("", "")
    rows = {row.configuration: row for row in differences_of([group])}
    assert rows["dual"].verdict == "best rate at the edge, no test"
    assert np.isnan([rows["dual"].p, rows["dual"].low, rows["dual"].p_holm]).all()
    assert rows["loop"].verdict == "better"


def test_the_error_at_a_steep_best_rate_is_that_of_blocks_of_all_arms_and_students(tmp_path):
    """A steep curve leaves no choice, and at a rate that was tried the parabola is its mean: blocks
    at that rate, whose noise is that of all rates of all arms, here mostly the third one's."""
    rng, tried = np.random.default_rng(1), np.array([1e-3, 2e-3, 4e-3])
    scores = {
        name: 2
        + np.log(tried / 2e-3)[:, None] ** 2
        + 0.01 * np.arange(2)
        + rng.normal(0, s, (3, 2))
        for name, s in (("wide", 1e-4), ("dual", 1e-4), ("loop", 1e-3))
    }
    for name, values in scores.items():
        model = model_of(name, 1 if name == "wide" else 2)
        for (n, seed), value in np.ndenumerate(values):
            cell = f"{name}-lr_{tried[n]:g}"
            write_run(tmp_path / cell / f"{seed}", model, {"a": value}, cell=cell, seed=seed,
                      optim={"lr": float(tried[n])})  # fmt: skip
    runs = [read_run(path) for path in find_folders([str(tmp_path)])]
    (group,) = groups_of(runs, best=True)
    row = next(row for row in differences_of([group]) if row.configuration == "dual")
    spread = block_spread(np.concatenate(list(scores.values())))
    assert (row.df, row.configurations) == (spread.df, 3) == (8, 3)
    assert (row.high - row.low) / 2 == pytest.approx(spread.reach, rel=0.04)
    assert (row.high_90 - row.low_90) / 2 == pytest.approx(spread.reach_90, rel=0.04)
    assert row.detectable == pytest.approx(spread.detectable, rel=0.04)
