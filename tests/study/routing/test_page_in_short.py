"""The page: its file, how numbers are written in it, and in short its look in Chromium."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.page import write
from tests.study.routing.conftest import (
    FIRST,
    LAYERS,
    NASTY,
    SECOND,
    VALUES,
    WORDS,
    data_of,
    detailed,
    example,
    fixed,
    model,
    panel,
    place,
    press,
    shown,
    three,
    token,
)  # fmt: skip


@pytest.mark.parametrize(("layers", "loops"), [(4, 4), (16, 4), (16, 2)])
def test_a_token_takes_about_what_is_reckoned_with(layers, loops, tmp_path):
    """Random numbers take more than real ones."""
    one = detailed(example([f" {n}" for n in range(256)], layers=layers, loops=loops))
    path, sizes = tmp_path / "p.html", []
    for each in (one.first(1), one):
        write(path, "t", [], range(layers), model([each], "abcde"), VALUES)
        sizes.append(path.stat().st_size)
    reckoned = page.MOST_BYTES / page.tokens_with_room(1, layers, loops, 5 * (layers + 1))
    assert 0.8 < (sizes[1] - sizes[0]) / 255 / reckoned < 2


@given(st.floats(width=32), st.sampled_from([page.SHORT, page.LONG, page.COST]))
def test_numbers_are_written_to_the_digits_shown(value, form):
    (written,) = json.loads(page.numbers(np.array([[value]], np.float32), form))
    if np.isnan(value):
        assert written is None
    else:
        assert written == float(form % value)


def test_the_file_is_alone_and_its_data_are_safe(tmp_path):
    facts = [("model", "<b>&"), ("tagger", "{{head}}")]
    title, one = "a</title><script>hit()", detailed(example(NASTY))
    whole = model([one], ["</script>"] * 5)
    path = tmp_path / "p.html"
    write(path, title, facts, LAYERS, whole, VALUES)
    text = path.read_text()
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(", text)
    assert (text.count("<script"), text.count("</script>"), text.count("<!--")) == (2, 2, 0)
    assert "<dt>model</dt><dd>&lt;b&gt;&amp;</dd>" in text
    assert html.escape(title) in text
    data = data_of(path)
    assert tuple(data["examples"][0]["tokens"]) == NASTY
    named = {VALUES[id].decode("utf-8", "replace") for id in np.unique(one.said)}
    assert named <= set(data["words"])


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
    tab = visit(whole=dataclasses.replace(model([chosen]), experts=[6, 6, 0]))
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


def test_without_parts_of_speech_there_is_no_row_of_them(visit):
    assert visit(examples=[SECOND]).locator("#of-token dt").all_inner_texts() == ["loss, nats"]
