"""The page in Chromium, in short: a token shows its numbers, and two models of one text theirs."""

import dataclasses

import numpy as np

from tests.study.routing.pages import (
    FIRST,
    LAYERS,
    MORE,
    NASTY,
    SECOND,
    TWO,
    WORDS,
    fixed,
    model,
    panel,
    place,
    press,
    said_rows,
    shown,
    signed,
    table,
    three,
    token,
)  # fmt: skip


def test_a_token_pointed_at_shows_its_exact_numbers(visit):
    tab = visit()
    layout = tab.locator("#sources").bounding_box()
    for number in range(len(NASTY)):
        token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
        assert panel(tab) == shown(FIRST, number, None)
    token(tab, 2).hover()
    assert place(tab) == "gsm8k · sequence 0 · position 2"
    assert tab.inner_text("#tag") == (FIRST.upos[2] or "–")
    token(tab, 11).hover()
    assert tab.inner_text("#word") == "␣␣two"
    tab.focus("#layer")
    for layer in range(3):
        press(tab, "ArrowRight")
        assert tab.inner_text("#layer-name") == f"layer {LAYERS[layer]}"
        assert panel(tab) == shown(FIRST, 11, layer)
    press(tab, "ArrowRight")
    assert panel(tab) == shown(FIRST, 11, 2)
    assert tab.locator("#sources").bounding_box() == layout


def test_a_token_shows_its_experts_and_their_load_in_the_sequence(visit):
    draw = np.random.default_rng(0)
    experts = draw.random((len(WORDS), 3, 6)).argsort(-1)[..., :2].astype(float)
    experts[:, 2] = -1
    weights = np.where(experts < 0, np.nan, draw.dirichlet(np.ones(2), experts.shape[:2]))
    chosen = dataclasses.replace(SECOND, experts=experts, expert_weights=weights)
    tab = visit(models=[dataclasses.replace(model([chosen]), experts=[6, 6, 0])])
    token(tab, 4).hover()
    assert panel(tab)["experts"] == "–"  # there is no mean of experts
    tab.focus("#layer")
    for layer in range(2):
        press(tab, "ArrowRight")
        order = (-weights[4, layer]).argsort()
        own = zip(experts[4, layer, order], weights[4, layer, order], strict=True)
        assert panel(tab)["experts"] == ", ".join(f"{n:.0f} ({fixed(w)})" for n, w in own)
        counts = np.bincount(experts[:, layer].astype(int).ravel(), minlength=6)
        titles = tab.eval_on_selector_all(".loads span", "l => l.map(e => [e.title, e.className])")
        assert titles == [
            [f"expert {n}: {three(load)} of an even load", "now" if n in experts[4, layer] else ""]
            for n, load in enumerate(6 * counts / counts.sum())
        ]
    press(tab, "ArrowRight")
    assert panel(tab)["experts"] == "–"
    assert tab.locator(".loads span:visible").count() == 0


def test_two_models_are_side_by_side_and_point_at_the_same_token(visit):
    tab = visit(models=TWO, width=1300)
    assert tab.locator(".source:visible").count() == 2  # of the first source alone
    assert tab.locator("h2:has-text('gsm8k · k4'), h2:has-text('gsm8k · k2')").count() == 2
    press(tab, "n")
    left, right = (tab.locator(f"[data-source=gsm8k][data-model='{m}'] .token") for m in (0, 1))
    assert left.count() == right.count() == len(WORDS)
    right.nth(4).hover()
    assert "shown" in right.nth(4).get_attribute("class")
    assert "echo" in left.nth(4).get_attribute("class")
    press(tab, "ArrowRight")
    for m, one in enumerate((MORE, TWO[1].examples[1])):
        fields = "l => Object.fromEntries(l.map(e => [e.dataset.field, e.textContent]))"
        read = tab.eval_on_selector_all(f"#panel [data-field][data-model='{m}']", fields)
        expected = shown(one, 4, 0)
        del expected["weights"], expected["updates"]
        assert read == expected
        assert table(tab, "#early", m) == said_rows(one, 4, 1)
        assert table(tab, "#costs", m)[0][1] == signed(one.costs[4, 1, 0])
    press(tab, "2", "j")
    assert place(tab).endswith("position 5")
    assert "echo" in left.nth(5).get_attribute("class")
    assert "echo" not in left.nth(4).get_attribute("class")
    tab.locator("#names input").nth(1).check()
    places = "l => l.map(e => [e.dataset.source, e.getBoundingClientRect().top])"
    tops = tab.eval_on_selector_all(".source:not([hidden])", places)
    assert len(tops) == 4
    assert len(set(map(tuple, tops))) == 2


def test_without_parts_of_speech_there_is_no_row_of_them(visit):
    assert visit(examples=[SECOND]).locator("#of-token dt").all_inner_texts() == ["loss, nats"]
