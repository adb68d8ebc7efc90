"""Tables as text: what stands in them, and that every format takes any name."""

import csv
import io
import re
from dataclasses import replace

import pytest

from dualpath_cli.compare.differences import differences_of
from dualpath_cli.compare.sheet import (
    Cell,
    Sheet,
    count,
    records_of_groups,
    sheet_of_group,
    sheets_of_tests,
)
from dualpath_cli.compare.writing import latex, markdown
from dualpath_cli.output.csv_text import format_csv
from tests.compare.groups import configuration, group, wide

TABLE = group(
    wide({0: 2.0, 1: 2.2}),
    configuration("a_50%", {0: 1.9, 1: 2.0}, seconds_per_token=1.5e-4),
    configuration("one|two", {0: 1.97}),
)
NASTY = "a_b&c%d$e#f{g}~h^i\\j<k>l|m*n`o"


def test_the_main_table_is_relative_to_the_wide_model():
    sheet = sheet_of_group(TABLE)
    rows = [dict(zip(sheet.headings, row, strict=True)) for row in sheet.rows]
    assert [row["params/wide"].text for row in rows] == ["1.00", "0.50", "0.50"]
    assert [row["time/wide"].text for row in rows] == ["1.00", "1.50", "1.00"]
    assert [row["µs/token"].text for row in rows] == ["100", "150", "100"]
    assert [row["aggregate"].text for row in rows] == ["2.1000 ± 0.1000", "1.9500 ± 0.0500",
                                                      "1.9700"]  # fmt: skip
    assert [row["aggregate"].best for row in rows] == [False, True, False]
    short = sheet_of_group(TABLE, errors=False)
    cells = dict(zip(short.headings, short.rows[0], strict=True))
    assert (cells["aggregate"].text, cells["text"].text) == ("2.1000 ± 0.1000", "2.1000")


def test_a_table_of_one_marks_no_best():
    assert not any(cell.best for row in sheet_of_group(group(wide({0: 2.0}))).rows for cell in row)


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
    (sheet,) = sheets_of_tests(rows, 2)
    assert sheet.title.endswith("bits per byte less those of wide, 2 tests in all")
    cells = dict(zip(sheet.headings, sheet.rows[1], strict=True))
    assert cells["verdict"].text == "one seed, no test"
    assert [cells[name].text for name in ("95 % interval", "p", "Holm", "df")] == [""] * 4


@pytest.mark.parametrize(("value", "text"), [
    (719_000_000, "719.0M"), (1_361_234_567, "1.361B"), (602_100, "602.1K"), (12, "12"),
])  # fmt: skip
def test_counts_have_four_digits(value, text):
    assert count(value) == text


def nasty_sheet() -> Sheet:
    row = (Cell(NASTY), Cell("-0.1 to -0.05 ± α", -0.1, best=True))
    return Sheet(NASTY, NASTY, ("name",), (NASTY,), (row, row))


def test_latex_has_no_bare_special_character_and_as_many_cells_a_row():
    lines = [line for line in latex(nasty_sheet()).splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lr}"
    rows = [line for line in lines if line.endswith(r"\\")]
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 1
        bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|"
                      r"textbar)\{\}|\\[&%$#_{}]", "", row)  # fmt: skip
        assert not set("%#_~^<>|") & set(bare)
        assert len(re.findall(r"\$", bare)) % 2 == 0
    assert rows[1].endswith(r"\textbf{$-$0.1 to $-$0.05 $\pm$ $\alpha$} \\")
    assert lines[-1] == r"\end{tabular}"


def test_markdown_has_as_many_cells_a_row():
    lines = [line for line in markdown(nasty_sheet()).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert lines[1] == "| --- | ---: |"
    assert "**-0.1 to -0.05 ± α**" in lines[2]
    assert r"\`o" in lines[2]
    assert r"\*n" in lines[2]
