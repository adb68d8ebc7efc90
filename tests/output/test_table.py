"""A table says the same wherever it is written: its values, its marks, and what it leaves out."""

import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.output.console import plain_console
from dualpath_cli.output.table import Column, Table, html, interval, latex, markdown, with_error
from dualpath_cli.output.terminal import aligned, fits, show

NAN = float("nan")
TABLE = Table(
    [
        Column("configuration"),
        Column("verdict", importance=2),
        Column("loss", ".4f", importance=3, marks_lowest=True),
        Column("95 % interval", interval("+.3f")),
        Column("as written\nparameters", ","),
    ],
    [
        ("wide", "better, alone; undecided", 2.25, (-0.125, 0.5), 719_000_000),
        ("dual", None, 2.125, (NAN, NAN)),
    ],
    title="two models",
    caption="loss in nats",
)
NASTY = "a_b&c%d$e#f{g}~h^i\\j<k>l|m*n`o"
NASTY_TABLE = Table(
    [Column("name"), Column(NASTY, "", marks_lowest=True), Column("error", with_error(".2f"))],
    [(NASTY, "-0.1 to -0.05 ± α", (1.0, 0.5)), (NASTY, 2, (-1.0, None))],
    title=NASTY,
    caption=NASTY,
)


def shown(table: Table, width: int = 80, *, terminal: bool = True, box: bool = True) -> str:
    file = io.StringIO()
    console = plain_console(file=file, width=width, force_terminal=terminal, color_system=None)
    show(console, table, box=box)
    return file.getvalue()


@pytest.mark.parametrize(("column", "value", "text"), [
    (Column("words"), "a b", "a b"),
    (Column("number", ".2f"), 1, "1.00"),
    (Column("number", ".2f"), "starting", "starting"),
    (Column("number", ".2f"), None, ""),
    (Column("number", ".2f"), NAN, ""),
    (Column("interval", interval("+.1f")), (0.5, 1.0), "+0.5 to +1.0"),
    (Column("interval", interval("+.1f")), (NAN, NAN), ""),
    (Column("error", with_error(".1f")), (0.5, 0.25), "0.5 ± 0.2"),
    (Column("error", with_error(".1f")), (0.5, None), "0.5"),
    (Column("error", with_error(".1f")), (0.5, NAN), "0.5"),
])  # fmt: skip
def test_a_value_becomes_text_by_its_columns_format(column: Column, value, text: str) -> None:
    assert column.text(value) == text


def test_the_lowest_of_several_numbers_is_marked() -> None:
    assert [row[2].marked for row in TABLE.cells()] == [False, True]
    one = Table([Column("n", "d", marks_lowest=True)], [[1], [None]])
    assert [row[0].marked for row in one.cells()] == [False, False]


def test_a_terminal_wraps_words_and_leaves_out_the_least_column() -> None:
    lines = shown(TABLE, 66).splitlines()
    assert [line.strip() for line in (lines[0], *lines[-2:])] == [
        "two models", "loss in nats", "left out, as there is no room: as written parameters"
    ]  # fmt: skip
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines[4:7]] == [
        ["wide", "better, alone;", "2.2500", "-0.125 to +0.500"],
        ["", "undecided", "", ""],
        ["dual", "", "2.1250 *", ""],
    ]


@settings(max_examples=40)
@given(width=st.integers(20, 110), box=st.booleans())
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int, box: bool) -> None:
    text = shown(TABLE, width, box=box)
    assert max(map(len, text.splitlines())) <= width
    named = " ".join(text.partition("left out")[2].split())
    for heading, number in (("loss", "2.1250 *"), ("95 % interval", "-0.125 to +0.500"),
                            ("as written parameters", "719,000,000")):  # fmt: skip
        assert (number in text) != (heading in named)


def test_a_terminal_too_narrow_for_one_column_breaks_its_words() -> None:
    assert "┃ configura ┃" in shown(TABLE, 13)


def test_a_file_gets_every_column_and_wraps_prose_alone() -> None:
    assert "better, alone; undecided │" in shown(TABLE, 20, terminal=False)
    assert "left out" not in shown(TABLE, 20, terminal=False)
    words = "word " * 60
    for prose in (False, True):
        table = Table([Column("name"), Column("text", prose=prose)], [("name", words)])
        assert (words.strip() in shown(table, terminal=False)) == (not prose)


def test_a_row_without_values_divides_and_a_table_without_headings_has_no_head() -> None:
    table = Table([Column(""), Column("", "d")], [("a", 1), (), ("b",)])
    assert shown(table, box=True).splitlines() == [
        "┌───┬───┐", "│ a │ 1 │", "├───┼───┤", "│ b │   │", "└───┴───┘"
    ]  # fmt: skip
    assert aligned(table) == ["a  1", "", "b"]
    assert [line for line in latex(table).splitlines() if "rule" in line] == [
        r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"
    ]  # fmt: skip


def test_a_style_is_that_of_the_value() -> None:
    file = io.StringIO()
    console = plain_console(file=file, force_terminal=True, color_system="truecolor")
    show(console, Table([Column("n", ".1f", style=lambda n: "red" if n > 1 else "")], [[1], [2]]))
    assert "\x1b[31m2.0" in file.getvalue()
    assert "\x1b[31m1.0" not in file.getvalue()


def test_plain_text_is_aligned_without_lines() -> None:
    assert aligned(TABLE) == [
        "configuration  verdict                       loss     95 % interval   as written",
        "                                                                      parameters",
        "wide           better, alone; undecided    2.2500  -0.125 to +0.500  719,000,000",
        "dual                                     2.1250 *",
        "loss in nats",
    ]


def test_plain_text_wraps_words_and_then_leaves_columns_out() -> None:
    rows = [("  attention scores, 5 passes", 31_457_280), ("total", 7)]
    table = Table([Column(""), Column("as written", ",")], rows)
    assert aligned(table, 30) == [
        "                    as written",
        "  attention         31,457,280",
        "      scores, 5",
        "      passes",
        "total                        7",
    ]
    assert fits(TABLE, 70)
    assert not fits(TABLE, 50)
    assert aligned(TABLE, 50)[-2:] == [
        "left out, as there is no room: 95 % interval, as",
        "written parameters",
    ]


def test_a_column_without_values_is_left_out_first() -> None:
    columns = [Column("name"), Column("of no value", ",", importance=9), Column("loss", ".1f")]
    assert aligned(Table(columns, [("a", None, 1.0), ("b", None, 2.0)]), 18)[:3] == [
        "name  loss", "a      1.0", "b      2.0"
    ]  # fmt: skip


def test_words_are_broken_into_two_lines_at_most_before_columns_are_left_out() -> None:
    rows = [("one two three four five six", 1.0, 2.0)]
    table = Table([Column("name"), Column("loss", ".4f"), Column("more", ".4f")], rows)
    text = shown(table, 30)
    assert "one two three " in text
    assert "four five six " in text
    assert text.rstrip().endswith("more")


@settings(max_examples=40)
@given(width=st.integers(30, 110))
def test_no_line_of_plain_text_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, aligned(TABLE, width))) <= width
    assert fits(TABLE, width) == ("left out" not in "".join(aligned(TABLE, width)))


def test_a_note_is_in_the_caption_where_its_column_is_shown() -> None:
    columns = [Column("name"), Column("a" * 20, note="a: first"),
               Column("b" * 20, importance=0, note="b: second"),
               Column("c" * 20, importance=0, note="b: second")]  # fmt: skip
    table = Table(columns, [], caption="and all")
    for written in (markdown(table), latex(table), html(table), shown(table, 99)):
        assert "a: first; b: second; and all" in written
    assert "a: first; b: second" in shown(table, 70), "one of two columns is left"
    assert "a: first; and all" in shown(table, 50)


def test_markdown_escapes_what_is_a_mark_and_has_as_many_cells_a_row() -> None:
    text = markdown(NASTY_TABLE)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    assert r"\j" in text.replace(r"\\", "\\")
    for mark in "*`_<>#":
        assert f"\\{mark}" in lines[2]
    assert lines[2].endswith("| -0.1 to -0.05 ± α | 1.00 ± 0.50 |")
    assert markdown(TABLE) == (
        "**two models**\n\n"
        "| configuration | verdict | loss | 95 % interval | as written parameters |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| wide | better, alone; undecided | 2.2500 | -0.125 to +0.500 | 719,000,000 |\n"
        "| dual |  | **2.1250** |  |  |\n"
        "\nloss in nats\n"
    )
    bare = Table([Column("a"), Column("b")], [("|", "")])
    assert markdown(bare, escape=lambda text: text.replace("|", "&#124;")) == (
        "| a | b |\n| --- | --- |\n| &#124; |  |\n"
    )


def test_latex_has_no_bare_special_character_and_as_many_cells_a_row() -> None:
    lines = [line for line in latex(NASTY_TABLE).splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lrr}"
    rows = [line for line in lines if line.endswith(r"\\")]
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 2
        bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|"
                      r"textbar)\{\}|\\[&%$#_{}]", "", row)  # fmt: skip
        assert not set("%#_~^<>|") & set(bare)
        assert len(re.findall(r"\$", bare)) % 2 == 0
    assert rows[1].endswith(r"& $-$0.1 to $-$0.05 $\pm$ $\alpha$ & 1.00 $\pm$ 0.50 \\")
    assert lines[-1] == r"\end{tabular}"
    assert r"dual &  & \textbf{2.1250} &  &  \\" in latex(TABLE).splitlines()


class Page(HTMLParser):
    """Reads the texts of a table's cells, and the numbers that they are sorted by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("th", "td"):
            self.cells.append(("", dict(attrs).get("data-order")))

    def handle_data(self, data: str) -> None:
        if self.cells and data.strip():
            self.cells[-1] = (self.cells[-1][0] + data, self.cells[-1][1])


def test_html_shows_every_text_and_sorts_by_full_numbers() -> None:
    text = html(NASTY_TABLE)
    assert Page(text.partition("</table>")[0]).cells[3:6] == [
        (NASTY, None), ("-0.1 to -0.05 ± α", None), ("1.00 ± 0.50", "1.0")
    ]  # fmt: skip
    assert text.startswith("<section>\n<h2>a_b&amp;c%d$e#f{g}~h^i\\j&lt;k&gt;l|m*n`o</h2>")
    assert '<td class="number" data-order="2.125"><strong>2.1250</strong></td>' in html(TABLE)
    assert '<th scope="col"><button>verdict</button></th>' in html(TABLE)
