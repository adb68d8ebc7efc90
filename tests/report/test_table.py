"""A table says the same wherever it is written, and colours of figures are told
apart."""

import io
import re
from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from dualpath_cli.base.output import amount
from dualpath_cli.report import figures
from dualpath_cli.report.console import (
    Progress,
    bytes_of_bytes,
    counted,
    plain_console,
)
from dualpath_cli.report.figures import DEEP, EVEN, FAMILY_COLORS, INK, SOURCES, WIDE
from dualpath_cli.report.table import (
    Column,
    Table,
    interval,
    markdown,
    show,
    with_error,
)
from dualpath_cli.training.session import Session

NAN = float("nan")
TABLE = Table(
    [
        Column("configuration"),
        Column("verdict"),
        Column("loss", ".4f", marks_lowest=True),
        Column("95 % interval", interval("+.3f")),
        Column("as written\nparameters", ","),
    ],
    [
        (
            "wide",
            "better, alone; undecided after that",
            2.25,
            (-0.125, 0.5),
            719_000_000,
        ),
        ("dual", None, 2.125, (NAN, NAN)),
    ],
    title="two models",
    caption="loss in nats",
)
NASTY = "a_b&c%d$e#f{g}~h^i\\j<k>l|m*n`o"


def shown(
    table: Table, width: int = 80, *, terminal: bool = True, box: bool = True
) -> str:
    file = io.StringIO()
    console = plain_console(
        file=file, width=width, force_terminal=terminal, color_system=None
    )
    show(console, table, box=box)
    return file.getvalue()


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column("words"), "a b", "a b"),
        (Column("number", ".2f"), 1, "1.00"),
        (Column("number", ".2f"), "starting", "starting"),
        (Column("number", ".2f"), NAN, ""),
        (Column("interval", interval("+.1f")), (0.5, 1.0), "+0.5 to +1.0"),
        (Column("interval", interval("+.1f")), (NAN, NAN), ""),
        (Column("error", with_error(".1f")), (0.5, 0.25), "0.5 ± 0.2"),
        (Column("error", with_error(".1f")), (0.5, None), "0.5"),
    ],
)
def test_a_value_becomes_text_by_its_columns_format(column, value, text):
    assert column.text(value) == text


def test_one_of_something_is_a_singular():
    amounts = [amount("runs", count) for count in (0, 1, 2000)]
    assert amounts == ["0 runs", "1 run", "2,000 runs"]


def cells(text: str) -> list[list[str]]:
    """The cells of a drawn table, line by line."""
    lines = [re.split("[│┃]", line)[1:-1] for line in text.splitlines()]
    return [[cell.strip() for cell in line] for line in lines if line]


def test_a_terminal_folds_words():
    assert cells(shown(TABLE, 92))[2:4] == [
        [
            "wide",
            "better, alone; undecided",
            "2.2500",
            "-0.125 to +0.500",
            "719,000,000",
        ],
        ["", "after that", "", "", ""],
    ]


@settings(max_examples=60)
@given(width=st.integers(1, 140), box=st.booleans())
def test_no_number_or_name_is_cut_on_a_terminal_of_any_width(width, box):
    text = shown(TABLE, width, box=box)
    assert sorted(re.findall(r"\d", text)) == sorted(
        re.findall(r"\d", shown(TABLE, 200))
    )
    for value in (
        "wide",
        "dual",
        "2.2500",
        "2.1250 *",
        "-0.125 to +0.500",
        "719,000,000",
    ):
        assert value in text


@pytest.mark.parametrize("columns", ["1", "80"])
def test_a_file_gets_each_row_on_a_line_whatever_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    words = "word " * 60
    table = Table([Column("name"), Column("text")], [("name", words)], caption=words)
    file = io.StringIO()
    show(plain_console(file=file), table, box=False)
    head, row, *caption = file.getvalue().splitlines()
    assert row.split() == ["name", *words.split()]
    assert head.split() == ["name", "text"]
    assert max(map(len, caption)) <= 100


def test_a_row_without_values_divides_and_a_table_without_headings_has_no_head():
    table = Table([Column(""), Column("", "d")], [("a", 1), (), ("b",)])
    assert shown(table).splitlines() == [
        "┌───┬───┐",
        "│ a │ 1 │",
        "├───┼───┤",
        "│ b │   │",
        "└───┴───┘",
    ]
    assert len(markdown(table).splitlines()) == 4


def test_markdown_escapes_what_is_a_mark_and_has_as_many_cells_a_row():
    columns = [Column("name"), Column(NASTY, ""), Column("error", with_error(".2f"))]
    text = markdown(
        Table(columns, [(NASTY, "-0.1 to -0.05 ± α", (1.0, 0.5))], NASTY, NASTY)
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert lines[1] == "| --- | ---: | ---: |"
    for mark in "*`_<>#":
        assert f"\\{mark}" in lines[2]
    assert lines[2].endswith("| -0.1 to -0.05 ± α | 1.00 ± 0.50 |")
    assert markdown(TABLE) == (
        "**two models**\n"
        "\n"
        "| configuration | verdict | loss | 95 % interval | as written parameters |\n"
        "| --- | --- | ---: | ---: | ---: |\n"
        "| wide | better, alone; undecided after that | 2.2500 | -0.125 to +0.500 | "
        "719,000,000 |\n"
        "| dual |  | **2.1250** |  |  |\n"
        "\n"
        "loss in nats\n"
    )
    bare = Table([Column("a"), Column("b")], [("|", "")])
    assert markdown(bare, escape=lambda text: text.replace("|", "&#124;")) == (
        "| a | b |\n| --- | --- |\n| &#124; |  |\n"
    )


# Names


NAMES = ["[red]", "[/x]", "[bold]a[/bold]", ":smile:", "[link=x]"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name):
    screen = io.StringIO()
    console = plain_console(
        file=screen, width=100, force_terminal=True, color_system=None
    )
    result = {name: {"loss": 1.0, "bits_per_byte": 1.0}}
    module: Any = SimpleNamespace(val_results=result)
    nothing: Any = None
    session = Session(nothing, nothing, module, nothing, console)
    session.say(f"said {name}")
    session.show_validation()
    columns = [Column(name), Column(f"number {name}", "d")]
    show(
        console,
        Table(columns, [(f"cell {name}", 1)], f"title {name}", f"caption {name}"),
    )
    with Progress(console, f"bar {name}", counted("steps"), 1) as progress:
        progress.advance(1, status=f"status {name}")
    shown = screen.getvalue()
    for place in ("said", "title", "number", "caption", "cell", "bar", "status"):
        assert f"{place} {name}" in shown
    assert f"│ {name}" in shown


def test_the_time_left_leaves_out_the_first_part_and_names_are_shown_as_they_are(
    monkeypatch,
):
    # begun; compiled with the first step; a minute for the second
    clock = iter([0, 600, 660])
    monkeypatch.setattr(
        "dualpath_cli.report.console.time.monotonic", lambda: next(clock)
    )
    screen = io.StringIO()
    progress = Progress(plain_console(file=screen), "[/x] [red]", counted("steps"), 10)
    progress.advance()
    progress.advance()
    assert screen.getvalue().splitlines() == [
        "[/x] [red]: 1 of 10 steps",
        "[/x] [red]: 2 of 10 steps, 8.0 min left",
    ]


def test_work_beyond_its_total_says_how_much_it_was_and_no_time_left(monkeypatch):
    # The last of three pieces of 4,000 tokens is whole.
    clock = iter([0, 60, 120, 180])
    monkeypatch.setattr(
        "dualpath_cli.report.console.time.monotonic", lambda: next(clock)
    )
    screen = io.StringIO()
    console = plain_console(file=screen)
    progress = Progress(console, "reading", counted("tokens"), 10_000)
    for _ in range(3):
        progress.advance(4_000)
    assert screen.getvalue().splitlines() == [
        "reading: 4,000 of 10,000 tokens",
        "reading: 8,000 of 10,000 tokens, 0.5 min left",
        "reading: 12,000 tokens, 10,000 wanted",
    ]
    assert bytes_of_bytes(3_000, 2_000) == "3.0 kB"


# The colours of figures, against a model of how people see, colour-blind ones too


def seen(colors: npt.ArrayLike, deficiency: str | None = None) -> np.ndarray:
    """Colours in CAM02-UCS, where distances are how different they look."""
    colorspacious = pytest.importorskip("colorspacious")
    space = {"name": "sRGB1"}
    if deficiency is not None:
        space = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 100}
    return colorspacious.cspace_convert(np.clip(colors, 0, 1), space, "CAM02-UCS")


def least_difference(
    colors: Sequence[str], others: Sequence[str], deficiency: str | None
) -> float:
    one, other = (seen([*map(to_rgb, names)], deficiency) for names in (colors, others))
    return np.linalg.norm(one[:, None] - other, axis=-1).min()


def test_the_map_runs_from_wide_over_even_to_deep_in_steps_that_look_equally_large():
    colors = figures.share_colormap()(np.linspace(0, 1, 256))[:, :3]
    for place, name in ((0, WIDE), (128, EVEN), (255, DEEP)):
        assert colors[place] == pytest.approx(to_rgb(name), abs=1 / 255)
    looks = seen(colors)
    assert looks[0, 0] == pytest.approx(looks[-1, 0], abs=5), "lightness"
    steps = np.linalg.norm(np.diff(looks, axis=0), axis=1)
    for half in (steps[:127], steps[128:]):
        assert half.max() < 1.6 * half.min()
    assert steps[:127].sum() == pytest.approx(steps[128:].sum(), rel=0.35)


@pytest.mark.parametrize(
    "deficiency", [None, "deuteranomaly", "protanomaly", "tritanomaly"]
)
def test_everybody_tells_families_in_their_shades_and_six_sources_apart(deficiency):
    counts = {"wide": 1, "expanded": 1, "core": 3, "loop": 3, "dual": 9}
    families = [
        figures.shades(FAMILY_COLORS[family], count) for family, count in counts.items()
    ]
    sources = [[color] for color in (INK, *SOURCES[:6])]
    for colors, least in ((families, 10), (sources, 18)):
        for one, other in combinations(colors, 2):
            assert least_difference(one, other, deficiency) > least, (one, other)
    assert least_difference([DEEP, WIDE, FAMILY_COLORS["dual"]], SOURCES, None) > 15
    assert families[0] == [WIDE.lower()]
    assert all(len(set(colors)) == len(colors) for colors in families)
