"""The page of a comparison in Chromium: literal names, headings that sort, figures, widths."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dualpath_cli.cli.main import main
from dualpath_cli.report.figures import MUTED, WIDE, panels
from dualpath_cli.report.page import page, pictures, tables, terms
from dualpath_cli.report.table import Column, Table
from tests.compare.run_folders import write_sweep

NAMES = ("a_k10", "a_k2", "<b>&amp;</b>", "none")
NUMBERS = (-1.5, 2.0, -20.0, math.nan)


def table() -> Table:
    rows = list(zip(NAMES, NUMBERS, strict=True))
    columns = [Column("name"), Column("score", "{:+.1f} ±".format, marks_lowest=True)]
    wide = [Column("n" * 60, "") for _ in range(4)]
    return Table([*columns, *wide], rows, "budget <i>1M</i>", "a caption")


def figure() -> Figure:
    drawn, axes = panels(8, 2)
    axes[0, 0].plot([0, 1], [1, 0], color=WIDE)
    axes[0, 0].annotate("a <b>", (0.5, 0.5), color=MUTED)
    return drawn


@pytest.fixture
def tab(chromium, tmp_path: Path):
    """The page, which asks for nothing and meets no error."""
    met: list[str] = []
    path = tmp_path / "index.html"
    drawn = pictures({"quality": figure(), "curves": None}, {"quality": "a figure", "curves": ""})
    path.write_text(page("runs", [terms([("runs", "<4>")]), tables([table()]), drawn]))
    context = chromium.new_context(offline=True)
    opened = context.new_page()
    opened.on("console", lambda message: met.append(message.text))
    opened.on("pageerror", lambda error: met.append(str(error)))
    opened.on("request", lambda asked: met.append(asked.url[:30]))
    opened.goto(path.as_uri())
    yield opened
    context.close()
    assert {line for line in met if not line.startswith("data:")} == {path.as_uri()[:30]}


def column(tab) -> list[str]:
    return tab.eval_on_selector_all("tbody td:first-child", "list => list.map(e => e.textContent)")


def test_names_stand_literally_and_headings_sort_both_ways(tab):
    assert column(tab) == list(NAMES)
    assert tab.inner_text("h2") == "budget <i>1M</i>"
    assert tab.inner_text("dd") == "<4>"
    assert tab.inner_text("strong") == "-20.0 ±"
    score, name = tab.locator("th button").nth(1), tab.locator("th button").nth(0)
    score.click()
    # What is no number stays last, either way.
    assert column(tab) == ["<b>&amp;</b>", "a_k10", "a_k2", "none"]
    assert tab.get_attribute("th:nth-child(2)", "aria-sort") == "ascending"
    score.click()
    assert column(tab) == ["a_k2", "a_k10", "<b>&amp;</b>", "none"]
    name.click()
    assert column(tab) == ["<b>&amp;</b>", "a_k2", "a_k10", "none"]
    assert tab.get_attribute("th:nth-child(2)", "aria-sort") is None


INKS = """svg => [svg.getAttribute("aria-label"), ...["fill", "background-color", "width"].map(
  name => getComputedStyle(svg)[name]), getComputedStyle(document.body).color,
  ...[...svg.querySelectorAll("path[clip-path]")].map(e => getComputedStyle(e).stroke)]"""


def test_figures_take_the_ink_of_the_page_light_or_dark(tab):
    label, ink, ground, _, text_ink, *lines = tab.eval_on_selector("svg", INKS)
    assert label == "a figure"
    assert (ink, ground, lines[-1]) == (text_ink, "rgba(0, 0, 0, 0)", "rgb(76, 140, 184)")
    tab.emulate_media(color_scheme="dark")
    _, dark_ink, _, _, text_ink, *lines = tab.eval_on_selector("svg", INKS)
    assert ink != dark_ink == text_ink
    assert lines[-1] != "rgb(76, 140, 184)"


@pytest.mark.parametrize("width", [1400, 800, 390])
def test_a_wide_table_scrolls_in_its_box_beside_its_first_column(tab, width):
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.eval_on_selector(".scroll", "box => { box.scrollLeft = 300; }")
    assert tab.locator(".scroll").evaluate("box => box.scrollLeft") == 300
    box, cell = (tab.locator(place).first.bounding_box() for place in (".scroll", "td"))
    assert cell["x"] == pytest.approx(box["x"], abs=2)


def test_results_are_beside_the_names_on_a_phone_and_figures_in_two_columns(chromium, tmp_path):
    sweep = write_sweep(tmp_path / "sweep", ["wide", "loop_k2", "a50_k2"], range(2))
    assert main(["compare", str(sweep)]) == 0
    opened = chromium.new_page()
    opened.goto((sweep / "comparison/index.html").as_uri())
    for width, columns in ((390, 1), (800, 1), (1400, 2)):
        opened.set_viewport_size({"width": width, "height": 900})
        for table in opened.locator("table").all():
            result = table.locator("tbody tr").first.locator("td").nth(1).bounding_box()
            assert result["x"] + result["width"] < width
        places = {round(f.bounding_box()["x"]) for f in opened.locator("figure").all()}
        assert len(places) == columns
    assert opened.locator("th").nth(1).inner_text() == "aggregate"
    opened.close()
