"""The page in Chromium: what is said early, costs, two models, links, the density plot."""

import dataclasses
import re

import numpy as np
import pytest

from tests.study.routing.pages import (
    FIRST,
    LAYERS,
    OTHER,
    VALUES,
    WORDS,
    detailed,
    example,
    model,
    panel,
    place,
    press,
    shown,
    token,
    tokens_of,
)

pytestmark = pytest.mark.slow  # the smoke tests are in test_browser.py

FORCED = ("K = 1", "K = 2", "deep only", "wide only", "both open")
TOLD = detailed(FIRST)
MORE = detailed(example(WORDS, number=3))
FURTHER = detailed(OTHER)
TEXTS = [TOLD, MORE, FURTHER]


def other_model(examples, loops=2):
    """What a model of fewer loops makes of the same texts."""
    made = []
    for one in examples:
        new = detailed(example(one.tokens, one.source, one.number + 50, loops=loops))
        made.append(dataclasses.replace(new, number=one.number, length=one.length, upos=one.upos))
    return made


ALONE = [model(TEXTS, forced=FORCED)]
TWO = [model(TEXTS, "k4", FORCED), model(other_model(TEXTS), "k2", FORCED)]


def word(id: int) -> str:
    text = VALUES[id].decode("utf-8", "replace")
    return text.replace(" ", "␣").replace("\n", "↵") or "∅"


def said_rows(one, token: int, row: int) -> list[list[str]]:
    """What the table is to hold: label, then token and percent of each rank; a mark at flips."""
    said, shares = one.said[token], one.shares[token]
    loops = said.shape[1] - 3
    if row:
        labels = ["input", *(f"loop {k}" for k in range(1, loops + 1)), "wide", "output"]
        before = [None, *range(loops), 0, 0]
        states = [(row - 1, place) for place in range(loops + 3)]
        previous = [None if b is None else (row - 1, b) for b in before]
    else:
        labels = ["input", *(f"layer {n}" for n in LAYERS)]
        states = [(0, 0), *((layer, loops + 2) for layer in range(len(LAYERS)))]
        previous = [None, *((layer, 0) for layer in range(len(LAYERS)))]
    rows = []
    for label, state, earlier in zip(labels, states, previous, strict=True):
        flips = earlier is not None and said[state][0] != said[earlier][0]
        cells = []
        for rank in range(3):
            percent = round(float(shares[state][rank]) * 100)
            mark = "⇄" if flips and rank == 0 else ""
            cells.append(f"{mark}{word(said[state][rank])}{percent or '<1'} %")
        rows.append([label, *cells])
    return rows


def table(tab, selector: str, nth=0) -> list[list[str]]:
    rows = (
        "e => [...e.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    )
    return tab.locator(f"{selector} table").nth(nth).evaluate(rows)


def signed(value: float) -> str:
    if np.isnan(value):
        return "–"
    text = f"{value:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def test_what_each_state_says_is_shown_with_its_flips(visit):
    tab = visit(models=ALONE)
    marked = 0
    for row in range(len(LAYERS) + 1):
        for number in (0, 3, 11, len(TOLD.tokens) - 1):
            token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
            assert table(tab, "#early") == said_rows(TOLD, number, row)
            marked += tab.locator("#early .flip").count()
            next_id = TOLD.next_ids[number]
            said = tab.inner_text("#early .note")
            if next_id < 0:
                assert said == "The text ends here."
            else:
                assert said.startswith(f"Really comes: {word(next_id)} (loss ")
                came = tab.locator("#early td.came").all_inner_texts()
                assert all(word(next_id) in cell for cell in came)
        press(tab, "ArrowRight")
    assert marked > 10


def test_bars_are_dotted_where_the_answer_flips_in_a_layer(visit):
    tab = visit(models=ALONE)
    for number in range(6):
        token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
        dots = tab.eval_on_selector_all(".bars span", "l => l.map(e => e.matches('.flips'))")
        said = TOLD.said[number]
        assert dots == [bool(layer[0, 0] != layer[-1, 0]) for layer in said]


def test_costs_are_those_of_the_layer_and_of_all(visit):
    tab = visit(models=ALONE)
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
    tab = visit(models=ALONE)
    press(tab, "2", "ArrowRight", "ArrowRight")
    token(tab, 5, "text").click()
    tab.select_option("#colour", "deep")
    tab.wait_for_url(re.compile("colour=deep$"))
    fragment = tab.evaluate("location.hash")
    assert fragment == "#text:7/layer=4/token=5/colour=deep"
    again = visit(models=ALONE, fragment=fragment)
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


def test_a_link_opens_the_model_and_the_selection(visit):
    tab = visit(models=TWO, fragment="#text:7/layer=9/token=3/model=1/gates=0.2,0.9,0,0.8")
    assert tab.locator("[data-source=text][data-model='1'] .token.shown").count() == 1
    assert tab.is_checked("#names label:has-text('text') input")
    assert [i.input_value() for i in tab.locator("#range input").all()] == [
        "0.20", "0.90", "0.00", "0.80"
    ]  # fmt: skip
    tab.wait_for_url(re.compile("token=3/model=1/gates=0.2,0.9,0,0.8$"))


@pytest.mark.parametrize(
    ("fragment", "missing"),
    [
        ("#nowhere:1/layer=4/token=1", "sequence"),
        ("#gsm8k:99", "sequence"),
        ("#gsm8k:3/layer=77", "layer"),
        ("#gsm8k:3/layer=4/token=5000", "token"),
        ("#gsm8k:3/layer=4/token=x/colour=toString/model=7", "sequence"),
        ("#%E0%A4%A:1", "sequence"),
        ("#gsm8k:3/layer=4/token=__proto__/colour=constructor", "token"),
    ],
)
def test_a_link_that_leads_nowhere_says_so(visit, fragment, missing):
    tab = visit(models=ALONE, fragment=fragment)
    assert place(tab) == f"The link names a {missing} that this page does not have."
    press(tab, "j")
    assert place(tab).endswith("position 0")


def test_the_link_is_copied(visit):
    tab = visit(models=ALONE, granted=["clipboard-read", "clipboard-write"])
    press(tab, "j", "ArrowRight")
    tab.click("#copy")
    tab.wait_for_selector("#copy:has-text('Copied')")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("page.html#gsm8k:0/layer=1/token=0")


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
    tab = visit(models=ALONE)
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
    tab = visit(models=ALONE)
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


def test_the_plot_has_every_token_of_the_texts_shown_once(visit):
    tab = visit(models=ALONE)
    assert tab.inner_text("#picked") == f"{len(TOLD.tokens) + len(FURTHER.tokens)} tokens"
    tab.uncheck("#names label:has-text('text') input")
    assert tab.inner_text("#picked") == f"{len(TOLD.tokens)} tokens"
    filled = tab.locator("#bins rect").count()
    assert 5 < filled <= len(TOLD.tokens)
    press(tab, "n")
    assert tab.inner_text("#picked") == f"{len(WORDS)} tokens"


@pytest.mark.parametrize("models", [None, TWO], ids=["one", "two"])
@pytest.mark.parametrize("width", [320, 400, 720])
def test_one_model_or_two_fit_a_narrow_window(visit, width, models):
    tab = visit(models=models, width=width)
    press(tab, "n", "p", "j", "ArrowRight")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    panel_width = "e => e.scrollWidth <= e.clientWidth"
    assert tab.eval_on_selector("#panel", panel_width)
    assert tokens_of(tab)[0] == "He"
