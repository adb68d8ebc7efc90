"""Differences to the baseline, what is said of them, and the tables and CSV of a comparison."""

import csv
import io
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dualpath_cli.base.system import format_csv
from dualpath_cli.compare.groups import Configuration
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.compare.tables import (
    AFTER,
    BLOCKS,
    PAIR,
    SAME,
    Difference,
    differences_of,
    group_tables,
    records_of_groups,
    tables_of_tests,
)
from dualpath_cli.report.blocks import holm
from dualpath_cli.report.table import Entry, Table
from tests.base.lazy import Lazy
from tests.compare.run_folders import configuration, group, wide

stats = Lazy("scipy.stats")


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
        wide(seeds(2.0, 2.1, 2.3)), configuration("a", seeds(1.9, 2.05, 2.2)),
        configuration("b", seeds(1.95, 2.0, 2.21)), configuration("late", {1: 2.0, 2: 2.1}),
        configuration("one", {2: 2.0}), configuration("none", {7: 2.0}),
    )  # fmt: skip
    rows = aggregate_of(differences_of([table]))
    assert [(rows[n].configurations, rows[n].seeds) for n in ("a", "b")] == [(3, 3)] * 2
    late = rows["late"]
    assert (late.test, late.configurations, late.seeds, late.df) == (BLOCKS, 4, 2, 3)
    assert late.difference == pytest.approx(-0.15)
    assert rows["one"].difference == pytest.approx(-0.3)
    assert rows["one"].verdict == "one seed, no test"
    assert rows["none"].verdict == "no seed in common, no test"
    assert math.isnan(rows["none"].difference)
    assert all(math.isnan(rows["one"].__dict__[name]) for name in ("low", "high", "p", "p_holm"))


def test_two_baselines_are_one_pair_and_all_tests_are_corrected_together():
    rng = np.random.default_rng(2)
    loop, dual = (configuration(name, seeds(*rng.normal(2, 0.01, 3))) for name in ("loop", "dual"))
    control = wide(seeds(*rng.normal(2, 0.01, 3)))
    both = differences_of([group(control, loop, dual, baselines=(control, loop))])
    pairs = [(r.configuration, r.baseline) for r in both if r.measure == "aggregate"]
    assert pairs == [("loop", "wide"), ("dual", "wide"), ("dual", "loop")]
    assert [r.p_holm for r in both] == pytest.approx(holm([r.p for r in both]))
    assert differences_of([group(control, loop, dual, baselines=())]) == []
    alone = differences_of([group(control, loop, dual, baselines=(loop,))])
    by_pair = {(r.configuration, r.baseline, r.measure): r.p for r in alone}
    assert {key: by_pair[key] for key in by_pair if key[0] == "dual"} == {
        (r.configuration, r.baseline, r.measure): r.p for r in both if r.baseline == "loop"
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
        group(on_sets("wide", *a), on_sets("a", *b), name=name,
              measures=(AGGREGATE, *map(str, range(sets))))
        for name, a, b in (("first", *scores[:2]), ("second", *scores[2:]))
    ]  # fmt: skip
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


def difference(**changes: float) -> Difference:
    fields = {
        "group": "", "measure": "text", "configuration": "a", "baseline": "wide", "seeds": 3,
        "difference": -0.1, "low": -0.2, "high": -0.05, "low_90": -0.19, "high_90": -0.06,
        "test": BLOCKS, "configurations": 3,
        "df": 4, "detectable": 0.1, "p": 0.01, "p_holm": 0.04,
    }  # fmt: skip
    return Difference(**(fields | changes))


@pytest.mark.parametrize(
    ("margin", "p", "p_holm", "verdict"),
    [
        (None, 0.01, 0.04, "better"),
        (None, 0.01, 0.06, "better, alone; undecided among all"),
        (None, 0.06, 0.2, "undecided"),
        (None, 1.0, 1.0, "undecided"),
        (0.18, 0.01, 0.04, "better"),  # the 90 % interval ends at -0.19
        (0.19, 0.01, 0.04, "better"),
        (0.2, 0.01, 0.04, "better, by less than matters"),
        (0.2, 0.01, math.nan, "better, by less than matters"),
        (0.2, 0.01, 0.06, "no difference that matters"),
        (0.2, 0.06, 0.06, "no difference that matters"),
        (0.18, 0.01, 0.06, "better, alone; undecided among all"),
        (0.18, 0.06, 0.06, "undecided"),
        (0.2, math.nan, math.nan, BLOCKS),
    ],
)
def test_a_verdict_tells_what_does_not_matter_from_what_is_undecided(margin, p, p_holm, verdict):
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
def test_pairs_in_a_fixed_order_find_a_false_difference_one_time_in_twenty_in_all(first):
    """Whether no pair differs, or all but the first. Noise of the seeds 5, of the runs 1."""
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


def test_a_difference_as_large_as_the_margin_is_taken_for_none_one_time_in_twenty():
    rng, draws = np.random.default_rng(3), 1000
    truth, same = {"a": 0.5, "b": 0.0}, 0
    for _ in range(draws):
        (row,) = pairs_of(truth, rng.normal(0, 5, (1, 14)) + rng.normal(0, 0.3, (2, 14)))
        same += row.verdict in (SAME, "worse, by less than matters")
    assert same / draws == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / draws))


def test_a_pair_that_was_not_tested_has_intervals_and_no_verdict():
    rng = np.random.default_rng(4)
    rows = pairs_of({"a": 9.0, "b": 0.0, "c": 0.0, "d": -9.0}, rng.normal(0, 1, (4, 5)))
    assert [row.verdict for row in rows] == ["worse", "undecided", AFTER]
    assert 6 < rows[2].low < rows[2].low_90 < 9 < rows[2].high_90 < rows[2].high
    cells = cells_of(*tables_of_tests(rows, 2))
    assert [bool(row["p"].text) for row in cells] == [True, True, False]
    assert all(" to " in row["90 % interval"].text for row in cells)
    assert "Holm" not in cells[0]


TABLE = group(
    wide({0: 2.0, 1: 2.2}),
    configuration("a_50%", {0: 1.9, 1: 2.0}, seconds_per_token=1.5e-4),
    configuration("one|two", {0: 1.97}),
)


def cells_of(table: Table) -> list[dict[str, Entry]]:
    """Rows by heading."""
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings, row, strict=True)) for row in table.cells()]


def test_the_main_table_is_relative_to_the_wide_model():
    rows = cells_of(group_tables(TABLE)[0])
    assert "active\nparams" not in rows[0]
    assert [row["params\n/wide"].text for row in rows] == ["1.00", "0.50", "0.50"]
    assert [row["time\n/wide"].text for row in rows] == ["1.00", "1.50", "1.00"]
    assert [row["aggregate"].text for row in rows] == ["2.1000 ± 0.1000", "1.9500 ± 0.0500",
                                                      "1.9700"]  # fmt: skip
    assert [row["aggregate"].lowest for row in rows] == [False, True, False]
    (alone,) = group_tables(replace(TABLE, wide=None))
    assert [row["µs\n/token"].text for row in cells_of(alone)] == ["100", "150", "100"]


def test_several_sets_have_a_table_of_their_own():
    sets = replace(TABLE, measures=("aggregate", "text", "text"))
    for errors, text in ((True, "2.1000 ± 0.1000"), (False, "2.1000")):
        main, by_set = group_tables(sets, errors)
        assert cells_of(main)[0]["aggregate"].text == "2.1000 ± 0.1000"
        assert cells_of(by_set)[0]["text"].text == text


def test_the_csv_has_full_numbers_and_leaves_empty_what_a_group_has_not():
    scores = {"aggregate": {0: 1.0}, "C4": {0: 1.5}}
    single = replace(configuration("f80m_wide", {0: 1.0}), scores=scores)
    other = group(single, name="paper", measures=("aggregate", "C4"), wide=None)
    rows = list(csv.DictReader(io.StringIO(format_csv(*records_of_groups([TABLE, other])))))
    assert [row["text"] for row in rows] == ["2.1", "1.95", "1.97", ""]
    assert [row["C4"] for row in rows] == ["", "", "", "1.5"]
    assert float(rows[0]["aggregate_standard_error"]) == pytest.approx(0.1)
    assert rows[2]["aggregate_standard_error"] == rows[3]["parameters_to_wide"] == ""


def test_bends_are_shown_where_rates_were_chosen_and_warned_of_where_they_differ_much():
    for bends, warned in (((1.3, 10.1), True), ((10.1, 1.3), True), ((4.4, 40.0), False)):
        row = difference(bend=bends[0], bend_baseline=bends[1])
        (table,) = tables_of_tests([row], 1)
        assert cells_of(table)[0]["bends"].text == f"{bends[0]} and {bends[1]}"
        assert ("WARNING: the bends of a less wide differ much" in table.caption) == warned
    (table,) = tables_of_tests([difference()], 1)
    assert "bends" not in cells_of(table)[0]
