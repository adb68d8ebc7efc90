"""The tables and CSV of a comparison."""

import csv
import io
from dataclasses import replace

import pytest

from dualpath_cli.compare.tables import (
    count,
    group_tables,
    records_of_groups,
    tables_of_tests,
)
from dualpath_cli.report.table import Entry, Table, format_csv
from tests.compare.run_folders import configuration, difference, group, wide

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
    assert [row["aggregate"].text for row in rows] == [
        "2.1000 ± 0.1000",
        "1.9500 ± 0.0500",
        "1.9700",
    ]
    assert [row["aggregate"].lowest for row in rows] == [False, True, False]
    (alone,) = group_tables(replace(TABLE, wide=None))
    assert [row["µs\n/token"].text for row in cells_of(alone)] == ["100", "150", "100"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.4, "999.4"), (999_940, "999.9K"), (999_960, "1.000M"), (2e12, "2.000T")],
)
def test_a_count_has_four_digits_also_where_they_round_to_the_next_unit(value, text):
    assert count(value) == text


def test_several_sets_have_a_table_of_their_own():
    sets = replace(TABLE, measures=("aggregate", "text", "text"))
    for errors, text in ((True, "2.1000 ± 0.1000"), (False, "2.1000")):
        main, by_set = group_tables(sets, errors)
        assert cells_of(main)[0]["aggregate"].text == "2.1000 ± 0.1000"
        assert cells_of(by_set)[0]["text"].text == text


def test_the_csv_has_full_numbers_and_leaves_empty_what_a_group_has_not():
    single = configuration("f80m_wide", {0: 1.0})
    other = group(single, name="paper", wide=None)
    text = format_csv(records_of_groups([TABLE, other]))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["text"] for row in rows] == ["2.1", "1.95", "1.97", "1.0"]
    assert float(rows[0]["aggregate_standard_error"]) == pytest.approx(0.1)
    assert rows[2]["aggregate_standard_error"] == rows[3]["parameters_to_wide"] == ""


def test_bends_are_shown_where_rates_were_chosen_and_warned_of_where_they_differ_much():
    warning = "WARNING: the bends of a minus wide differ much"
    for ours, other, warned in (
        (1.3, 10.1, True),
        (10.1, 1.3, True),
        (4.4, 40.0, False),
    ):
        row = difference(bend=ours, bend_baseline=other)
        (table,) = tables_of_tests([row], 1)
        assert cells_of(table)[0]["bends"].text == f"{ours} and {other}"
        assert (warning in table.caption) == warned

    (table,) = tables_of_tests([difference()], 1)
    assert "bends" not in cells_of(table)[0]
