"""The page of routing in Chromium."""

import re

import numpy as np
import pytest

from tests.study.routing.conftest import (
    ALONE,
    FORCED,
    FURTHER,
    LAYERS,
    NASTY,
    OTHER,
    SECOND,
    TOLD,
    WORDS,
    panel,
    place,
    press,
    said_rows,
    shown,
    signed,
    table,
    token,
    tokens_of,
    word,
)  # fmt: skip

pytestmark = pytest.mark.slow  # the smoke tests are in test_page_in_short.py

COLOURS = """list => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (...layers) => {
    for (const colour of layers) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const page = getComputedStyle(document.body).backgroundColor;
  return list.map(e => {
    const style = getComputedStyle(e);
    return [rgb(page, style.backgroundColor), rgb(style.color)];
  });
}"""


def colours(tab, selector=".token") -> np.ndarray:
    """Of each token its background and its ink, as sRGB from 0 to 1, (N, 2, 3)."""
    return np.array(tab.eval_on_selector_all(selector, COLOURS)) / 255


def contrasts(found: np.ndarray) -> np.ndarray:
    """The ratio that WCAG 2 asks to be 4.5 at least."""
    linear = np.where(found <= 0.04045, found / 12.92, ((found + 0.055) / 1.055) ** 2.4)
    luminance = np.sort(linear @ [0.2126, 0.7152, 0.0722], axis=-1) + 0.05
    return luminance[:, 1] / luminance[:, 0]


def test_every_token_stands_literally_and_in_order(visit):
    tab = visit()
    # A lone carriage return or NUL also stays in the page's text.
    assert tokens_of(tab) == list(NASTY)
    assert tab.evaluate("document.querySelectorAll('.token img, .token script').length") == 0
    marks = "list => list.map(e => getComputedStyle(e, '::before').content)"
    assert tab.eval_on_selector_all(".source:first-child .mark", marks) == [
        '"↵"', '"◌"', '"⇥"', '"◌"', '"␀"', '"␍"', '"↵"', '"∅"',
    ]  # fmt: skip
    press(tab, "n")
    assert tokens_of(tab) == list(WORDS)
    # A newline in a token breaks the line, and a leading space keeps its width.
    boxes = [token(tab, i).bounding_box() for i in (3, 5)]
    assert boxes[1]["y"] > boxes[0]["y"]
    assert boxes[1]["x"] < boxes[0]["x"]
    width = token(tab, 1).bounding_box()["width"]
    token(tab, 1).evaluate("e => { e.textContent = 'quick'; }")
    assert token(tab, 1).bounding_box()["width"] < width - 2
    assert "first 120 of 4,096 tokens" in tab.inner_text("[data-source=gsm8k]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_deep_is_red_wide_is_blue_and_all_can_be_read(visit, scheme):
    tab = visit(scheme=scheme)
    press(tab, "n")
    for choice in ("share", "loops", "deep", "wide", "cosine", "nats"):
        tab.select_option("#colour", choice)
        assert contrasts(colours(tab)).min() >= 4.5
    tab.select_option("#colour", "share")
    backgrounds = colours(tab, "[data-source=gsm8k] .token")[:, 0]
    redness = backgrounds[:, 0] - backgrounds[:, 2]
    share = SECOND.deep_share.astype(float).mean(1)
    assert redness.argmax() == share.argmax() == 5
    assert redness.argmin() == share.argmin() == 3
    assert (np.diff(redness[share.argsort()]) > -0.02).all()
    assert np.ptp(backgrounds[7]) < 0.05  # one half is neutral
    if scheme == "light":
        ends = [[round(255 * x) for x in backgrounds[i]] for i in (5, 3)]
        assert ends == [[0xC7, 0x73, 0x4C], [0x4C, 0x8C, 0xB8]]


def test_keys(visit):
    tab = visit()
    press(tab, "j", "j", "j", "k")
    assert place(tab) == "gsm8k · sequence 0 · position 1"
    press(tab, "k", "k", "k")
    assert place(tab).endswith("position 0")
    press(tab, "2", "j")
    assert place(tab) == "text · sequence 7 · position 0"
    press(tab, "1", "j", "n", "n")
    assert place(tab) == "Point at a token, or press j."  # its text went
    press(tab, "j")
    assert place(tab) == "gsm8k · sequence 3 · position 0"
    assert tab.inner_text("#tag") == "–"
    press(tab, "p", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert tokens_of(tab)[0] == "He"
    assert tab.inner_text("#where") == "Layer 1"
    press(tab, "m")
    assert tab.inner_text("#where") == "Mean of 3 layers"
    press(tab, "?", "j")
    assert tab.locator("#keys").is_visible()
    assert tab.eval_on_selector("#keys", "e => e.scrollHeight > e.clientHeight && !e.scrollTop")
    press(tab, "Escape")
    assert not tab.locator("#keys").is_visible()
    # In a select, letters and arrows are its own.
    before = place(tab)
    tab.focus("#colour")
    press(tab, "ArrowRight", "j", "m")
    assert (tab.inner_text("#where"), place(tab)) == ("Mean of 3 layers", before)


ENDS = """e => {
  const boxes = [...e.getClientRects()].filter(box => box.width);
  return [boxes[0].top, boxes.at(-1).bottom];
}"""


def test_a_token_reached_by_key_is_not_covered(visit):
    tab = visit(width=400)
    press(tab, "n")
    for _ in WORDS:
        press(tab, "j")
        top, bottom = tab.locator(".token.shown").evaluate(ENDS)
        assert bottom <= tab.locator("#panel").bounding_box()["y"]
        assert top >= sum(tab.locator(".bar").bounding_box()[key] for key in ("y", "height"))


# What is said early, and costs


def test_what_each_state_says_is_shown_with_its_flips(visit):
    tab = visit(whole=ALONE)
    marked = 0
    for row in range(len(LAYERS) + 1):
        for number in (0, 3, 11, len(TOLD.tokens) - 1):
            token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
            assert table(tab, "#early") == said_rows(TOLD, number, row)
            whole = "list => list.every(e => e.scrollWidth <= e.clientWidth)"
            assert tab.eval_on_selector_all("#early td:nth-of-type(1)", whole)
            marked += tab.locator("#early .flip").count()
            next_id = TOLD.next_ids[number]
            said = tab.inner_text("#early .note")
            if next_id < 0:
                assert said == "The text ends here."
            else:
                assert said.startswith(f"Actual next token: {word(next_id)} (loss ")
                came = tab.locator("#early td.came").all_inner_texts()
                assert all(word(next_id) in cell for cell in came)
        press(tab, "ArrowRight")
    assert marked > 10


def test_costs_are_those_of_the_layer_and_of_all(visit):
    tab = visit(whole=ALONE)
    for row in (1, 3):
        press(tab, *["ArrowRight"] * (row if row == 1 else 2))
        for number in (1, 7, len(TOLD.tokens) - 1):
            token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
            costs = TOLD.costs[number]
            assert table(tab, "#costs") == [
                [name, signed(costs[row, n]), signed(costs[0, n])] for n, name in enumerate(FORCED)
            ]
    press(tab, "m")
    assert [line[1] for line in table(tab, "#costs")] == ["–"] * len(FORCED)
    assert "in this layer or in all layers" in tab.inner_text("#costs")


def test_without_costs_or_a_lens_the_page_has_no_place_for_them(visit):
    tab = visit()
    press(tab, "j")
    assert not tab.locator("#early, #costs").first.is_visible()
    assert tab.locator("#density").is_visible()


# Links


def test_a_link_leads_back_to_layer_token_and_colour(visit):
    tab = visit(whole=ALONE)
    press(tab, "2", "ArrowRight", "ArrowRight")
    token(tab, 5, "text").click()
    tab.select_option("#colour", "deep")
    tab.wait_for_url(re.compile("colour=deep$"))
    fragment = tab.evaluate("location.hash")
    assert fragment == "#text:7/layer=4/token=5/colour=deep"
    again = visit(whole=ALONE, fragment=fragment)
    assert place(again) == "text · sequence 7 · position 5"
    assert again.inner_text("#where") == "Layer 4"
    assert again.input_value("#colour") == "deep"
    assert panel(again) == shown(OTHER, 5, 1)
    assert again.locator(".token.pinned").count() == 1
    # The same page goes where another link leads.
    again.evaluate("location.hash = '#gsm8k:3/layer=mean/token=2'")
    again.wait_for_selector("#place:has-text('position 2')")
    assert place(again) == "gsm8k · sequence 3 · position 2"
    assert again.inner_text("#where") == "Mean of 3 layers"


@pytest.mark.parametrize(
    ("fragment", "missing"),
    [
        ("#nowhere:1/layer=4/token=1", "sequence"),
        ("#gsm8k:99", "sequence"),
        ("#gsm8k:3/layer=77", "layer"),
        ("#gsm8k:3/layer=4/token=5000", "token"),
        ("#gsm8k:3/layer=4/token=x/colour=toString", "token"),
        ("#%E0%A4%A:1", "sequence"),
        ("#gsm8k:3/layer=4/token=__proto__/colour=constructor", "token"),
    ],
)
def test_a_link_that_leads_nowhere_says_so(visit, fragment, missing):
    tab = visit(whole=ALONE, fragment=fragment)
    assert place(tab) == f"The link names a {missing} that this page does not have."
    press(tab, "j")
    assert place(tab).endswith("position 0")


# The density plot


def inside(one, low: tuple[float, float], high: tuple[float, float], layer=None) -> np.ndarray:
    gates = [one.gate_deep.astype(float), one.gate_wide.astype(float)]
    gates = [g.mean(1) if layer is None else g[:, layer] for g in gates]
    gates = [np.rint(g * 1000) / 1000 for g in gates]
    return np.logical_and.reduce(
        [(a <= g) & (g <= b) for g, a, b in zip(gates, low, high, strict=True)]
    )


def picked(tab, source: str) -> np.ndarray:
    selector = f"[data-source={source}] .token"
    return np.array(tab.eval_on_selector_all(selector, "l => l.map(e => e.matches('.picked'))"))


def test_numbers_select_tokens_by_their_gates_and_escape_clears(visit):
    tab = visit(whole=ALONE)
    press(tab, "ArrowRight")
    for name, value in (("gate g_d from", "0.25"), ("gate g_d to", "0.8"), ("gate g_w to", "0.6")):
        tab.get_by_label(name).fill(value)
    expected = {"gsm8k": inside(TOLD, (0.25, 0), (0.8, 0.6), 0),
                "text": inside(FURTHER, (0.25, 0), (0.8, 0.6), 0)}  # fmt: skip
    marked = sum(each.sum() for each in expected.values())
    for source, each in expected.items():
        assert (picked(tab, source) == each).all()
    assert 5 < marked < 40
    count = len(TOLD.tokens) + len(FURTHER.tokens)
    assert tab.inner_text("#picked") == f"{marked} of {count} tokens selected"
    press(tab, "2")  # a digit in a number is its own
    assert tab.locator(".source.active").get_attribute("data-source") == "gsm8k"
    tab.get_by_label("gate g_w to").fill("0.6")
    tab.focus("#layer")
    press(tab, "ArrowRight")  # the same region of another layer's gates
    assert (picked(tab, "gsm8k") == inside(TOLD, (0.25, 0), (0.8, 0.6), 1)).all()
    tab.get_by_label("gate g_d to").focus()
    press(tab, "Escape")
    assert not picked(tab, "gsm8k").any()
    assert tab.inner_text("#picked") == f"{count} tokens"
    assert [each.input_value() for each in tab.locator("#range input").all()] == [""] * 4


def test_a_rectangle_that_is_drawn_selects_its_tokens(visit):
    tab = visit(whole=ALONE)
    tab.locator("#plot").scroll_into_view_if_needed()
    box = tab.locator("#plot").bounding_box()
    tab.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.9 * box["height"], steps=4)
    tab.mouse.up()
    ends = [float(each.input_value()) for each in tab.locator("#range input").all()]
    low, high = (ends[0], ends[2]), (ends[1], ends[3])
    assert (picked(tab, "gsm8k") == inside(TOLD, low, high)).all()
    assert picked(tab, "gsm8k").any()
    left, right, bottom, top = (float(tab.inner_text(f"#{name}"))
                                for name in ("left", "right", "bottom", "top"))  # fmt: skip
    drawn = [left + 0.2 * (right - left), left + 0.7 * (right - left),
             bottom + 0.1 * (top - bottom), bottom + 0.8 * (top - bottom)]  # fmt: skip
    assert ends == pytest.approx(drawn, abs=0.025)
    tab.click("#clear")
    assert not picked(tab, "gsm8k").any()


@pytest.mark.parametrize("width", [320, 720])
def test_the_page_fits_a_narrow_window(visit, width):
    tab = visit(width=width)
    assert tab.inner_text("#panel") == "Point at a token, or press j."
    assert tab.locator("#panel").bounding_box()["height"] < 50
    press(tab, "n", "p", "j", "ArrowRight")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.eval_on_selector("#panel", "e => e.scrollWidth <= e.clientWidth")
    assert tokens_of(tab)[0] == "He"
