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
from dualpath_cli.errors import UserError
from tests.compare.run_folders import model_of, write_run

LOGS = np.log([1e-3, 2e-3, 4e-3, 8e-3])


@settings(deadline=None)
@given(st.floats(0.05, 0.95), st.floats(0.01, 1), st.floats(-2, 2))
def test_a_parabola_over_log_rate_is_found_exactly_and_no_rate_beyond_the_tried(share, bend, low):
    place = LOGS[0] + share * (LOGS[-1] - LOGS[0])
    found, value = lowest(LOGS, low + bend * (LOGS - place) ** 2)
    assert (found, value) == (pytest.approx(place, abs=1e-9), pytest.approx(low, abs=1e-9))
    for edge, falling in ((0, LOGS), (-1, -LOGS)):
        assert lowest(LOGS, falling) == (LOGS[edge], falling[edge])


def test_intervals_that_count_the_choice_hold_the_true_difference(monkeypatch):
    """Flat parabolas, so that chance chooses among the rates; three seeds of each."""
    monkeypatch.setattr(rates, "RESAMPLES", 2000)
    rng = np.random.default_rng(1)
    curves = [0.002 * (LOGS - LOGS.mean() - aside) ** 2 for aside in (-0.2, 0.3)]
    held = []
    for _ in range(400):
        error = 0.01 * np.sqrt(rng.chisquare(14) / 14)
        ours, theirs = ((LOGS, curve + 0.01 * rng.normal(size=4)) for curve in curves)
        found = resampled(ours, theirs, error, 14)
        held.append(found["low"] <= 0 <= found["high"])
        assert (found["p"] >= 0.05) == held[-1] or found["p"] == pytest.approx(0.05, abs=0.002)
    assert 0.94 <= np.mean(held) < 1


def write_rates(folder, optima, tried=(1e-3, 2e-3, 4e-3, 8e-3)):
    rng = np.random.default_rng(0)
    for lr in tried:
        for seed in range(3):
            for cell, (best, score) in optima.items():
                value = score + 0.05 * np.log(lr / best) ** 2 + 0.01 * seed + rng.normal(0, 1e-4)
                model = model_of(cell, 1 if cell == "wide" else 2)
                write_run(folder / f"{cell}-lr_{lr:g}/{seed}", model, {"a": value, "b": value + 1},
                          cell=f"{cell}-lr_{lr:g}", seed=seed, optim={"lr": lr})  # fmt: skip
    return [read_run(path) for path in find_folders([str(folder)])]


def test_each_configuration_is_compared_at_its_own_best_rate(tmp_path):
    runs = write_rates(tmp_path, {"wide": (3e-3, 2.0), "dual": (1.5e-3, 1.9)})
    (group,) = groups_of(runs, best=True)
    assert [c.name for c in group.configurations] == ["wide", "dual"]
    assert [c.best_rate for c in group.configurations] == pytest.approx([3e-3, 1.5e-3], rel=0.01)
    assert [c.mean("a") for c in group.configurations] == pytest.approx([2.01, 1.91], abs=3e-4)
    (row,) = differences_of([group])
    assert (row.test, row.measure, row.configurations, row.df) == (BEST, "aggregate", 2, 14)
    assert row.difference == pytest.approx(-0.1, abs=3e-4)
    assert row.low < row.difference < row.high < 0
    assert {run.settings.optim.lr for run in group.configurations[0].runs} == {4e-3}


def test_a_best_rate_at_the_edge_is_refused(tmp_path):
    runs = write_rates(tmp_path, {"wide": (8e-3, 2.0)})
    with pytest.raises(UserError, match=r"'wide' is best at 0\.008, the edge .* at a higher one"):
        groups_of(runs, best=True)
