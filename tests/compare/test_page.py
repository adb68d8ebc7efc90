"""The page of a comparison in Chromium: names stand as they are, and headings sort."""

import math
from pathlib import Path

import pytest

from dualpath_cli.compare.page import write
from dualpath_cli.output.table import Column, Table

NAMES = ("a_k10", "a_k2", "<b>&amp;</b>", "none")
NUMBERS = (-1.5, 2.0, -20.0, math.nan)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def table() -> Table:
    rows = list(zip(NAMES, NUMBERS, strict=True))
    columns = [Column("name"), Column("score", "{:+.1f} ±".format, marks_lowest=True)]
    return Table(columns, rows, "budget <i>1M</i>", "a caption")


@pytest.fixture
def tab(chromium, tmp_path: Path):
    """The page, which asks for nothing and meets no error."""
    met: list[str] = []
    (tmp_path / "quality.png").write_bytes(PIXEL)
    path = write(tmp_path / "index.html", [("runs", "<4>")], [table()], [])
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


def test_figures_are_in_the_page(tab):
    sizes = tab.eval_on_selector_all("img", "list => list.map(e => [e.naturalWidth, e.alt])")
    assert [width for width, _ in sizes] == [1]
    assert sizes[0][1].startswith("Bits per byte against parameters")
