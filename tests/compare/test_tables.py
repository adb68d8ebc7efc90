"""The tables of a comparison: what stands in them, and what in their CSV."""

import csv
import io
import re
from dataclasses import replace

import pytest

from dualpath_cli.compare.differences import differences_of
from dualpath_cli.compare.tables import (
    count,
    group_tables,
    latex,
    records_of_groups,
    tables_of_tests,
)
from dualpath_cli.files import format_csv
from dualpath_cli.output.table import Cell, Column, Table
from tests.compare.groups import configuration, group, wide

TABLE = group(
    wide({0: 2.0, 1: 2.2}),
    configuration("a_50%", {0: 1.9, 1: 2.0}, seconds_per_token=1.5e-4),
    configuration("one|two", {0: 1.97}),
)


def cells_of(table: Table) -> list[dict[str, Cell]]:
    """Rows by heading."""
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings, row, strict=True)) for row in table.cells()]


def test_the_main_table_is_relative_to_the_wide_model():
    rows = cells_of(group_tables(TABLE)[0])
    assert [row["params\n/wide"].text for row in rows] == ["1.00", "0.50", "0.50"]
    assert [row["time\n/wide"].text for row in rows] == ["1.00", "1.50", "1.00"]
    assert [row["aggregate"].text for row in rows] == ["2.1000 ± 0.1000", "1.9500 ± 0.0500",
                                                      "1.9700"]  # fmt: skip
    assert [row["aggregate"].lowest for row in rows] == [False, True, False]
    (alone,) = group_tables(replace(TABLE, wide=None))
    assert [row["µs\n/token"].text for row in cells_of(alone)] == ["100", "150", "100"]


def test_active_parameters_are_a_column_where_a_run_has_experts():
    sparse = group(wide({0: 2.0}), configuration("a50_e8", {0: 1.9}, active=600_000))
    rows = cells_of(group_tables(sparse)[0])
    assert [row["active\nparams"].text for row in rows] == ["2.000M", "600.0K"]
    records, _ = records_of_groups([sparse])
    assert [row["active_parameters"] for row in records] == [2_000_000, 600_000]
    assert "active_parameters" not in records_of_groups([TABLE])[1]


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


def test_tests_say_their_number_and_leave_empty_what_was_not_tested():
    rows = differences_of([TABLE])
    (table,) = tables_of_tests(rows, 2)
    assert table.title.endswith("bits per byte less those of wide, 2 tests in all")
    cells = cells_of(table)[1]
    assert cells["verdict"].text == "one seed, no test"
    assert re.fullmatch(r"-\d\.\d{4}", cells["difference, 95 % interval"].text)
    assert [cells[name].text for name in ("p", "Holm", "df")] == [""] * 3
    (same,) = tables_of_tests(rows[:1], 2)
    assert "in all rows: on aggregate, detectable" in same.caption


def test_latex_has_no_bare_special_character_and_as_many_cells_a_row():
    nasty = "a_b&c%d$e#f{g}~h^i\\j<k>l|m"
    columns = [Column("name"), Column(nasty, ""), Column("error", ".1f", marks_lowest=True)]
    rows = [(nasty, "-0.1 to -0.05 ± α", 1.0), (), ("b", "", -1.0)]
    lines = latex(Table(columns, rows, title=nasty, caption=nasty)).splitlines()
    assert lines[2] == r"\begin{tabular}{lrr}"
    for row in (line for line in lines if line.endswith(r"\\")):
        assert len(re.findall(r"(?<!\\)&", row)) == 2
        bare = re.sub(r"\\text(backslash|asciitilde|asciicircum|less|greater|bar)\{\}|"
                      r"\\textbf\{|\\[&%$#_{}]", "", row)  # fmt: skip
        assert not set("%#_~^<>|") & set(bare)
        assert len(re.findall(r"\$", bare)) % 2 == 0
    assert lines[6].endswith(r"& $-$0.1 to $-$0.05 $\pm$ $\alpha$ & 1.0 \\")
    assert lines[7:9] == [r"\midrule", r"b &  & \textbf{$-$1.0} \\"]


@pytest.mark.parametrize(("value", "text"), [
    (719_000_000, "719.0M"), (1_361_234_567, "1.361B"), (602_100, "602.1K"), (12, "12"),
])  # fmt: skip
def test_counts_have_four_digits(value, text):
    assert count(value) == text
