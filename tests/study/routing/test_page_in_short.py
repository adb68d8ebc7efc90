"""The page: its file, how numbers are written in it, and in short its look in Chromium."""

import dataclasses
import html
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dualpath_cli.errors import UserError
from dualpath_cli.study.routing.page import page
from dualpath_cli.study.routing.page.page import write
from tests.study.routing.conftest import (
    FIRST,
    LAYERS,
    MORE,
    NASTY,
    SECOND,
    TWO,
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
    said_rows,
    shown,
    signed,
    table,
    three,
    token,
)  # fmt: skip


def test_fifty_long_examples_stay_below_the_limit_and_are_cut_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_BYTES", 1_000_000)
    tokens = ["</ugly>\n\u2028" if i % 7 == 0 else " token" for i in range(512)]
    many = [detailed(example(tokens, source=f"s{i % 4}", number=i, layers=4)) for i in range(9)]
    models = [model([*many, detailed(example("ab", layers=4))], forced="abcde")]
    path = write(tmp_path / "p.html", "t", [], range(4), models, VALUES)
    *long, short = data_of(path)["examples"]
    (kept,) = {each["count"] for each in long}
    assert (100 < kept < 512, short["count"]) == (True, 2)
    assert {each["length"] for each in long} == {512}
    # Little of the room is left.
    assert 900_000 < path.stat().st_size < 1_000_000


def test_what_cannot_fit_is_refused_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"1 sequences do not fit .* choose fewer"):
        write(tmp_path / "p.html", "t", [], LAYERS, [model([example("a")])])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("layers", "loops"), [(4, 4), (16, 4), (16, 2)])
def test_a_token_takes_about_what_is_reckoned_with(layers, loops, tmp_path):
    """Random numbers take more than real ones, of which the benchmarks' table tells."""
    one = detailed(example([f" {n}" for n in range(256)], layers=layers, loops=loops))
    models = [model([one], forced="abcde")]
    sizes = [len(write(tmp_path / "p.html", "t", [], range(layers), each, VALUES).read_bytes())
             for each in ([model([one.first(1)], forced="abcde")], models)]  # fmt: skip
    reckoned = page.MOST_BYTES / page.likely_tokens(1, layers, [loops], 5 * (layers + 1))
    assert 1 < (sizes[1] - sizes[0]) / 255 / reckoned < 2.5


@given(arrays(np.float32, (2, 3), elements=st.floats(0, 4, width=32) | st.just(np.nan)))
def test_gates_are_written_to_the_digits_shown(values):
    written = page.thousandths(values).ravel()
    expected = ["–" if np.isnan(each) else f"{each:.3f}" for each in values.ravel()]
    shown = ["–" if each == page.NAN else f"{each / 1000:.3f}" for each in written]
    assert shown == expected


@given(
    st.floats(np.float32(1e-30), np.float32(1e30), width=32)
    | st.sampled_from([0.0, np.nan, np.inf])
)
def test_norms_are_written_to_the_digits_shown(value):
    code = int(page.digits(np.array([value], np.float32))[0])
    special = {0: "0.00e+00", page.NAN: "nan", page.INFINITE: "inf"}
    exponent, mantissa = divmod(code - 1, 900)
    written = f"{(mantissa + 100) / 100:.2f}e{exponent - 145:+03d}"
    assert special.get(code, written) == f"{value:.2e}"


@given(st.floats(-300, 300, width=32) | st.just(np.nan))
def test_costs_are_written_in_hundredths(value):
    code = int(page.hundredths(np.array([value], np.float32))[0])
    shown = "nan" if code == page.NAN else f"{(code - page.ZERO_COST) / 100:.2f}"
    assert shown == "nan" if np.isnan(value) else float(shown) == float(f"{value:.2f}")


@given(arrays(np.int64, (2, 5, 3), elements=st.integers(0, 4)))
def test_what_states_say_is_told_by_the_state_before(ranked):
    codes, told = page.predictions(ranked), np.zeros_like(ranked)
    for state in range(5):
        for rank in range(3):
            for at, code in enumerate(codes[:, state, rank]):
                before = told[at, state - 1, (rank + code) % 3]
                told[at, state, rank] = before if state and code < 3 else code - 3
    assert (told == ranked).all()


@given(arrays(np.float32, (2, 5, 3), elements=st.floats(0, 1, width=32)))
def test_probabilities_are_told_in_whole_percent(shares):
    told = page.percents(shares).cumsum(1) % 128
    assert (told == np.rint(shares.astype(float) * 100)).all()


def test_the_file_is_alone_and_its_data_are_safe(tmp_path):
    facts = [("model", "<b>&"), ("tagger", "{{head}}")]
    title, one = "a</title><script>hit()", detailed(example(NASTY))
    models = [model([one], name="</script>", forced=["<b>"] * 5)]
    path = write(tmp_path / "p.html", title, facts, LAYERS, models, VALUES)
    text = path.read_text()
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(", text)
    assert (text.count("<script"), text.count("</script>"), text.count("<!--")) == (3, 3, 0)
    assert "<dt>model</dt><dd>&lt;b&gt;&amp;</dd>" in text
    assert html.escape(title) in text
    data = data_of(path)
    assert tuple(data["texts"]["tokens"][0]) == NASTY
    named = {VALUES[id].decode("utf-8", "replace") for id in np.unique(one.said)}
    assert named <= set(data["texts"]["said"])


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
