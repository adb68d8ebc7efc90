"""Tests of a comparison by simulation: their errors, corrections and verdicts."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dualpath_cli.compare.baselines import groups_of
from dualpath_cli.compare.configurations import Configuration, partition
from dualpath_cli.compare.differences import (
    AFTER,
    BEST,
    BLOCKS,
    PAIR,
    SAME,
    Difference,
    differences_of,
)
from dualpath_cli.compare.finished import read_finished_runs
from dualpath_cli.compare.rates import lowest
from dualpath_cli.compare.runs import AGGREGATE, find_folders, read_trained_run
from dualpath_cli.compare.tried_rates import rates_of
from dualpath_cli.report.blocks import block_spread, holm
from dualpath_cli.run.run_folder import WENT_WRONG
from tests.compare.run_folders import (
    configuration,
    difference,
    group,
    model_of,
    wide,
    write_run,
)
from tests.conftest import Lazy

stats = Lazy("scipy.stats")

RATES = (1e-3, 2e-3, 4e-3, 8e-3)


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def aggregate_of(rows: list[Difference]) -> dict[str, Difference]:
    return {row.configuration: row for row in rows if row.measure == "aggregate"}


def test_the_variance_of_all_complete_configurations_is_behind_each_test():
    rng = np.random.default_rng(1)
    tables = {name: rng.normal(2, 0.01, 3) for name in ("wide", "a", "b", "c")}
    others = [configuration(name, seeds(*tables[name])) for name in ("a", "b", "c")]
    rows = aggregate_of(differences_of([group(wide(seeds(*tables["wide"])), *others)]))
    values = np.array(list(tables.values()))
    left = values - values.mean(0) - values.mean(1)[:, None] + values.mean()
    error = math.sqrt(2 / 3 * (left**2).sum() / 6)
    for name, row in rows.items():
        mean = (tables[name] - tables["wide"]).mean()
        assert (row.test, row.configurations, row.seeds, row.df) == (BLOCKS, 4, 3, 6)
        assert row.difference == pytest.approx(mean)
        assert row.p == pytest.approx(2 * stats.t.sf(abs(mean) / error, 6))
        assert row.high - row.difference == pytest.approx(stats.t.ppf(0.975, 6) * error)
        assert row.low + row.high == pytest.approx(2 * mean)


def test_what_lacks_seeds_is_tested_on_those_that_it_has():
    table = group(
        wide(seeds(2.0, 2.1, 2.3)),
        configuration("a", seeds(1.9, 2.05, 2.2)),
        configuration("b", seeds(1.95, 2.0, 2.21)),
        configuration("late", {1: 2.0, 2: 2.1}),
        configuration("one", {2: 2.0}),
        configuration("none", {7: 2.0}),
    )
    rows = aggregate_of(differences_of([table]))
    assert [(rows[n].configurations, rows[n].seeds) for n in ("a", "b")] == [(3, 3)] * 2
    late = rows["late"]
    assert (late.test, late.configurations, late.seeds, late.df) == (BLOCKS, 4, 2, 3)
    assert late.difference == pytest.approx(-0.15)
    assert rows["one"].difference == pytest.approx(-0.3)
    assert rows["one"].verdict == "one seed, no test"
    assert rows["none"].verdict == "no seed in common, no test"
    assert math.isnan(rows["none"].difference)
    one = rows["one"]
    assert np.isnan([one.low, one.high, one.p, one.p_holm]).all()


def test_two_baselines_are_one_pair_and_all_tests_are_corrected_together():
    rng = np.random.default_rng(2)
    loop, dual = (
        configuration(name, seeds(*rng.normal(2, 0.01, 3))) for name in ("loop", "dual")
    )
    control = wide(seeds(*rng.normal(2, 0.01, 3)))
    both = differences_of([group(control, loop, dual, baselines=(control, loop))])
    pairs = [(r.configuration, r.baseline) for r in both if r.measure == "aggregate"]
    assert pairs == [("loop", "wide"), ("dual", "wide"), ("dual", "loop")]
    assert [r.p_holm for r in both] == pytest.approx(holm([r.p for r in both]))
    assert differences_of([group(control, loop, dual, baselines=())]) == []
    alone = differences_of([group(control, loop, dual, baselines=(loop,))])
    by_pair = {(r.configuration, r.baseline, r.measure): r.p for r in alone}
    assert {key: by_pair[key] for key in by_pair if key[0] == "dual"} == {
        (r.configuration, r.baseline, r.measure): r.p
        for r in both
        if r.baseline == "loop"
    }


def on_sets(name: str, *sets: dict[int, float]) -> Configuration:
    """A configuration with these scores on as many sets, and on their mean."""
    scores = {str(number): of_set for number, of_set in enumerate(sets)}
    mean = {seed: float(np.mean([of_set[seed] for of_set in sets])) for seed in sets[0]}
    return replace(configuration(name, mean), scores={AGGREGATE: mean, **scores})


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_the_correction_counts_each_test_of_all_groups_and_sets_once(sets):
    """The aggregate over one set is that set."""
    rng = np.random.default_rng(sets)
    scores = [[seeds(*rng.normal(2, 0.1, 3)) for _ in range(sets)] for _ in range(4)]
    groups = [
        group(
            on_sets("wide", *a),
            on_sets("a", *b),
            name=name,
            measures=(AGGREGATE, *map(str, range(sets))),
        )
        for name, a, b in (("first", *scores[:2]), ("second", *scores[2:]))
    ]
    rows = differences_of(groups)
    assert len(rows) == 2 * (1 if sets == 1 else 1 + sets)
    assert len({row.p for row in rows}) == len(rows)
    assert {row.test for row in rows} == {PAIR}
    assert [row.p_holm for row in rows] == pytest.approx(holm([row.p for row in rows]))
    first = min(rows, key=lambda row: row.p)
    assert first.p_holm == pytest.approx(min(1, len(rows) * first.p))
    alone = differences_of(groups, aggregate_only=True)
    assert [row.measure for row in alone] == ["aggregate", "aggregate"]
    assert {row.p for row in alone} <= {row.p for row in rows}


@pytest.mark.parametrize(
    ("margin", "p", "p_holm", "verdict"),
    [
        (None, 0.01, 0.04, "better"),
        (None, 0.01, 0.06, "better, uncorrected; undecided among all"),
        (None, 0.06, 0.2, "undecided"),
        (0.19, 0.01, 0.04, "better"),  # the 90 % interval ends at -0.19
        (0.2, 0.01, 0.04, "better, by less than matters"),
        (0.2, 0.01, math.nan, "better, by less than matters"),
        (0.2, 0.01, 0.06, "no difference that matters"),
        (0.2, 0.06, 0.06, "no difference that matters"),
        (0.18, 0.01, 0.06, "better, uncorrected; undecided among all"),
        (0.2, math.nan, math.nan, BLOCKS),
    ],
)
def test_a_verdict_tells_what_does_not_matter_from_what_is_undecided(
    margin, p, p_holm, verdict
):
    row = difference(p=p, p_holm=p_holm, margin=margin)
    assert row.verdict == verdict
    turned = replace(row, difference=0.1, low=0.05, high=0.2, low_90=0.06, high_90=0.19)
    assert turned.verdict == verdict.replace("better", "worse")


def pairs_of(truth: dict[str, float], values_CS: np.ndarray) -> list[Difference]:
    """Neighbours in their order, of these means."""
    made = [
        configuration(name, seeds(*(mean + row)))
        for (name, mean), row in zip(truth.items(), values_CS, strict=True)
    ]
    return differences_of([group(*made, pairs=tuple(pairwise(made)))], margin=0.5)


@pytest.mark.parametrize("first", [0.0, 9.0])
def test_pairs_in_a_fixed_order_find_a_false_difference_one_time_in_twenty_in_all(
    first,
):
    """Whether no pair differs, or all but the first. Noise of the seeds 5, of the runs
    1."""
    rng, draws = np.random.default_rng(2), 1000
    truth = {"a": first, "b": 0.0, "c": 0.0, "d": 0.0}
    false, held, unlike = [], [], []
    for _ in range(draws):
        rows = pairs_of(truth, rng.normal(0, 5, (1, 4)) + rng.normal(0, 1, (4, 4)))
        null = [row for row in rows if truth[row.configuration] == truth[row.baseline]]
        false.append(any(row.p < 0.05 for row in null))
        held.append(rows[0].low_90 <= first <= rows[0].high_90)
        stopped = next((n for n, row in enumerate(rows) if not row.p < 0.05), 2)
        assert [row.test for row in rows[stopped + 1 :]] == [AFTER] * (2 - stopped)
        assert all(row.tested for row in rows[: stopped + 1])
        unlike.append(len({round(row.high_90 - row.low_90, 9) for row in rows}))
    assert np.mean(false) == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / draws))
    assert np.mean(held) == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / draws))
    assert set(unlike) == {1}  # pairs that are not tested have the same intervals


def test_a_pair_without_a_test_ends_the_order_and_no_test_is_said_to_have_been():
    one = configuration("one", {0: 2.0})
    a, b = (
        configuration(name, seeds(2.0, 2.1, level))
        for name, level in (("a", 2.3), ("b", 2.2))
    )
    rows = differences_of([group(one, a, b, pairs=((one, a), (a, b), (b, a)))])
    assert [row.verdict for row in rows] == [
        "one seed, no test",
        *["not tested: no difference was found before"] * 2,
    ]


def test_a_difference_as_large_as_the_margin_is_taken_for_none_one_time_in_twenty():
    rng, draws = np.random.default_rng(3), 1000
    truth, same = {"a": 0.5, "b": 0.0}, 0
    for _ in range(draws):
        (row,) = pairs_of(
            truth, rng.normal(0, 5, (1, 14)) + rng.normal(0, 0.3, (2, 14))
        )
        same += row.verdict in (SAME, "worse, by less than matters")
    assert same / draws == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / draws))


def write_rates(folder, optima, tried=RATES, seeds=3):
    rng = np.random.default_rng(0)
    models = {cell: model_of(cell, 1 if cell == "wide" else 2) for cell in optima}
    for lr in tried:
        for seed in range(seeds):
            for cell, (best, score) in optima.items():
                bend = 0.05 * np.log(lr / best) ** 2
                value = score + bend + 0.01 * seed + rng.normal(0, 1e-4)
                write_run(
                    folder / f"{cell}-lr_{lr:g}/{seed}",
                    models[cell],
                    {"a": value, "b": value + 1},
                    cell=f"{cell}-lr_{lr:g}",
                    seed=seed,
                    expected_loops=(1000 * lr,) * 4,
                    optim={"lr": lr},
                )
    return [read_trained_run(path) for path in find_folders([str(folder)])]


def test_each_configuration_is_compared_at_its_own_best_rate(tmp_path):
    runs = write_rates(tmp_path, {"wide": (3e-3, 2.0), "dual": (1.5e-3, 1.9)})
    (group,) = groups_of(runs, best=True)
    assert [c.name for c in group.configurations] == ["wide", "dual"]
    assert [c.best_rate for c in group.configurations] == pytest.approx(
        [3e-3, 1.5e-3], rel=0.01
    )
    assert [c.mean("a") for c in group.configurations] == pytest.approx(
        [2.01, 1.91], abs=3e-4
    )

    # The same parabola chooses the rate and gives the scores.
    for c in group.configurations:
        means = [
            np.mean([run.scores["aggregate"] for run in its])
            for its in partition(c.all_runs, lambda run: run.rate).values()
        ]
        _, value, _ = lowest(np.log(RATES), np.array(means))
        assert c.mean("aggregate") == pytest.approx(float(value), 1e-9)

    (row,) = differences_of([group])
    assert (row.test, row.measure) == (BEST, "aggregate")
    assert (row.configurations, row.df) == (2, 14)
    assert row.difference == pytest.approx(-0.1, abs=3e-4)
    assert row.low < row.difference < row.high < 0
    assert {run.settings.optim.lr for run in group.configurations[0].runs} == {4e-3}
    # The router's loops are those at the nearest rate, not of all that were tried.
    assert [c.expected_loops for c in group.configurations] == [4, 2]


def test_arms_of_unlike_numbers_of_seeds_are_tested_on_those_that_all_have(tmp_path):
    """Also where a seed lacks a rate; the noise is that of all rates of all arms."""
    arms = {"wide": (3e-3, 2.0), "dual": (1.5e-3, 1.9), "loop": (2.5e-3, 1.9)}
    runs = write_rates(tmp_path, arms, seeds=5)

    def is_missing(run):
        where = (run.seed, run.settings.model.block, run.settings.optim.lr)
        return where[:2] == (4, "dual") or where == (3, "loop", 8e-3)

    kept = [run for run in runs if not is_missing(run)]
    (group,) = groups_of(kept, best=True, pairs=[("dual", "wide"), ("loop", "dual")])
    rows = differences_of([group], margin=0.01)
    assert [(row.seeds, row.df) for row in rows] == [(4, 21), (3, 22)]
    assert {row.test for row in rows} == {BEST}
    assert [row.verdict for row in rows] == ["better", "no difference that matters"]


def test_blocks_of_arms_at_several_rates_are_chosen_by_their_degrees_of_freedom(
    tmp_path,
):
    """Four arms lack a seed of the pair, which has six rows and detects more by
    itself."""
    arms = {"wide": (2e-3, 2.0), "dual": (2e-3, 1.9), "loop": (2e-3, 1.9)}
    runs = write_rates(tmp_path, arms, RATES[:3], seeds=4)
    kept = [run for run in runs if (run.settings.model.block, run.seed) != ("loop", 3)]
    (made,) = groups_of(kept, best=True, pairs=[("dual", "wide")])
    (loop,) = [c for c in made.configurations if c.name == "loop"]
    others = [replace(loop, name=f"{n}") for n in range(3)]
    six = replace(made, configurations=(*made.configurations, *others))
    (row,) = differences_of([six])
    assert (row.seeds, row.configurations, row.df) == (4, 2, 5 * 3)


@pytest.mark.parametrize("seeds_gone", [[1], [0, 1, 2]])
@pytest.mark.parametrize(
    ("best", "gone", "left"), [(6e-3, 8e-3, 4e-3), (1.3e-3, 1e-3, 2e-3)]
)
def test_a_rate_at_which_any_run_went_wrong_is_left_out_with_all_of_its_seeds(
    best, gone, left, seeds_gone, tmp_path
):
    """And the best of those that are left, beside it, is at an edge."""
    write_rates(tmp_path, {"wide": (3e-3, 2.0), "dual": (best, 1.9)})
    for seed in seeds_gone:
        run = tmp_path / f"dual-lr_{gone:g}/{seed}"
        (run / "validation.csv").unlink()
        (run / WENT_WRONG).write_text("steps 11 to 20 were skipped\n")

    runs, _ = read_finished_runs([str(tmp_path)])
    (group,) = groups_of(runs, best=True)
    wide, dual = group.configurations
    assert (wide.diverged, wide.edge) == ((), "")
    assert rates_of(wide.all_runs) == list(RATES)
    assert dual.diverged == (gone,)
    assert rates_of(dual.all_runs) == [rate for rate in RATES if rate != gone]
    assert dual.seeds == (0, 1, 2)
    assert dual.edge == (
        f"best at {left:g}; runs at {gone:g} went wrong; train it at a rate between "
        "them"
    )
    (row,) = differences_of([group])
    assert row.verdict == "best rate at the edge, no test"


@pytest.mark.parametrize(("best", "other"), [(8e-3, "higher"), (1e-3, "lower")])
def test_an_arm_whose_best_rate_is_at_either_edge_is_named_and_not_tested(
    tmp_path, best, other
):
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


def test_a_best_rate_at_the_edge_on_the_seeds_of_a_test_is_not_tested(tmp_path):
    """The dual's lowest mean of all four seeds is in the middle; that of the two seeds
    that PureWide has is its highest rate's."""
    arms = {"wide": (3e-3, 2.0), "dual": (3e-3, 1.9)}
    runs = []
    for run in write_rates(tmp_path, arms, seeds=4):
        is_dual = run.settings.model.block == "dual"
        if is_dual and run.settings.optim.lr == max(RATES):
            shift = -1 if run.seed < 2 else 2
            run = replace(run, scores={k: v + shift for k, v in run.scores.items()})
        if is_dual or run.seed < 2:
            runs.append(run)

    (group,) = groups_of(runs, best=True)
    assert not any(c.edge for c in group.configurations)
    (row,) = differences_of([group])
    assert row.seeds == 2
    assert row.verdict == "best rate at the edge, no test"


def test_the_error_at_a_steep_best_rate_is_that_of_blocks_of_all_arms_and_students(
    tmp_path,
):
    """A steep curve leaves no choice, and at a rate that was tried the parabola is its
    mean: blocks at that rate, whose noise is that of all rates of all arms."""
    arms = {"wide": (2e-3, 2.0), "dual": (2e-3, 1.9), "loop": (2e-3, 1.9)}
    (group,) = groups_of(
        write_rates(tmp_path, arms, (1e-3, 2e-3, 4e-3), seeds=2), best=True
    )
    row = next(row for row in differences_of([group]) if row.configuration == "dual")
    rows = [
        its
        for c in group.configurations
        for its in partition(c.all_runs, lambda run: run.rate).values()
    ]
    spread = block_spread([[run.scores["aggregate"] for run in its] for its in rows])
    assert (row.df, row.configurations) == (spread.df, 3) == (8, 3)
    assert (row.high - row.low) / 2 == pytest.approx(spread.reach, rel=0.04)
    assert (row.high_90 - row.low_90) / 2 == pytest.approx(spread.reach_90, rel=0.04)
    assert row.detectable == pytest.approx(spread.detectable, rel=0.04)
