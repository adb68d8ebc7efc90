"""The page of routing: what the file holds, and what a reader sees of it in Chromium."""

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dualpath_cli.errors import UserError
from dualpath_cli.study.routing.page import page as page_module
from dualpath_cli.study.routing.page.examples import Example
from dualpath_cli.study.routing.page.page import ALPHABET, MOST_BYTES, write

NASTY = (
    "He", " said", ",", " \"it's\"", "\n", "</script><!--", "<img src=x onerror=hit()>", "&lt;",
    "\u2028", "\ufffd", "\t", "  two", "\u202eleft", "\x00", "\r\n", "", "{{data}}", "é", "日本",
    "x" * 90, "`${hit()}`", "\\u003c",
)  # fmt: skip
LAYERS = (1, 4, 9)


def example(
    tokens: Sequence[str], source="gsm8k", number=0, layers=3, loops=4, length=None, upos=True
):
    """Random read-outs, in float32 as models have them, of many sizes."""
    draw = np.random.default_rng([len(tokens), number, layers, loops])
    shape = (len(tokens), layers)
    deep, wide = draw.random((2, *shape), np.float32)
    updates = (10 ** draw.uniform(-5.5, 5.5, (2, *shape))).astype(np.float32)
    gated = np.array([deep, wide]) * updates
    weights = draw.dirichlet(np.ones(loops), shape).astype(np.float32)
    return Example(
        source,
        number,
        tuple(tokens),
        tuple(draw.choice(["NOUN", "NUM", "", "X"], len(tokens))) if upos else None,
        draw.exponential(3, len(tokens)).astype(np.float32),
        deep,
        wide,
        *updates,
        draw.uniform(-1, 1, shape).astype(np.float32),
        gated[0] / gated.sum(0),
        weights,
        length or len(tokens),
    )


def data_of(path: Path) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def codes(text: str, letters: int) -> np.ndarray:
    numbers = np.array([ALPHABET.index(letter) for letter in text]).reshape(-1, letters)
    return numbers @ 64 ** np.arange(letters)[::-1]


def fixed(value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{value:.3f}".replace("-0.000", "0.000").replace("-", "−")


def three(value: float) -> str:
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    digits, exponent = f"{value:.2e}".split("e")
    number = float(f"{digits}e{exponent}")
    if number == 0 or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.{2 - int(exponent)}f}"


def shown(example: Example, token: int, layer: int | None) -> dict[str, str]:
    """What the panel is to show, from the exact numbers; None is the mean over layers."""

    def value(array: np.ndarray) -> float:
        array = array[token].astype(np.float64)
        if layer is not None:
            return array[layer]
        numbers = array[~np.isnan(array)] if array.ndim == 1 else array
        return numbers.mean(axis=0) if len(numbers) else np.nan

    steps = np.arange(1, example.step_weights.shape[-1] + 1)
    weights = value(example.step_weights)
    return {
        "nats": three(example.nats[token]),
        "deep": fixed(value(example.gate_deep)),
        "wide": fixed(value(example.gate_wide)),
        "sizeDeep": three(value(example.update_deep)),
        "sizeWide": three(value(example.update_wide)),
        "cosine": fixed(value(example.cosine)),
        "share": fixed(value(example.deep_share)),
        "loops": three(value((example.step_weights * steps).sum(-1))),
        "weights": " ".join(f"{k}: {fixed(w)}" for k, w in zip(steps, weights, strict=True)),
    }


def test_fifty_long_examples_stay_below_the_limit_and_are_cut_alike(tmp_path: Path):
    tokens = ["</ugly>\n\u2028" if i % 7 == 0 else " token" for i in range(4096)]
    one = example(tokens, layers=16)
    many = [dataclasses.replace(one, source=f"s{i % 4}", number=i) for i in range(49)]
    path = write(tmp_path / "p.html", "t", [], range(16), [*many, example("ab", layers=16)])
    *long, short = data_of(path)["examples"]
    (kept,) = {len(each["tokens"]) for each in long}
    assert (kept > 200, len(short["tokens"])) == (True, 2)
    assert {each["length"] for each in long} == {4096}
    # Another token of each would not have fitted.
    assert MOST_BYTES - 49 * 500 < path.stat().st_size < MOST_BYTES


def test_what_cannot_fit_is_refused_with_a_way_out(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"1 sequences do not fit .* choose fewer"):
        write(tmp_path / "p.html", "t", [], LAYERS, [example("a")])
    assert not list(tmp_path.iterdir())


@given(arrays(np.float32, (2, 3), elements=st.floats(0, 4, width=32) | st.just(np.nan)))
def test_gates_are_written_to_the_digits_shown(values):
    written = page_module._thousandths(values).ravel()
    expected = ["–" if np.isnan(each) else f"{each:.3f}" for each in values.ravel()]
    assert ["–" if each == 4095 else f"{each / 1000:.3f}" for each in written] == expected


@given(
    st.floats(np.float32(1e-30), np.float32(1e30), width=32)
    | st.sampled_from([0.0, np.nan, np.inf])
)
def test_norms_are_written_to_the_digits_shown(value):
    code = int(page_module._digits(np.array([value], np.float32))[0])
    text = {0: "0.00e+00", 262143: "nan", 262142: "inf"}.get(code)
    exponent, mantissa = divmod(code - 1, 900)
    assert (text or f"{(mantissa + 100) / 100:.2f}e{exponent - 145:+03d}") == f"{value:.2e}"


def test_the_file_is_alone_and_its_data_are_safe(tmp_path: Path):
    facts = [("model", "<b>&"), ("tagger", "{{data}}")]
    path = write(tmp_path / "p.html", "a</title><script>hit()", facts, LAYERS, [example(NASTY)])
    text = path.read_text()
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(", text)
    assert (text.count("<script"), text.count("</script>"), text.count("<!--")) == (2, 2, 0)
    assert "<dt>model</dt><dd>&lt;b&gt;&amp;</dd>" in text
    assert html.escape("a</title><script>hit()") in text
    (record,) = data_of(path)["examples"]
    assert tuple(record["tokens"]) == NASTY


# Of what a reader sees: one browser, and a page of two sources for each test.

WORDS = ("The", " quick", " brown", " fox", "\n", "jumps", " over", " 12", " dogs", ".") * 12
FIRST = example(NASTY)
SECOND = dataclasses.replace(example(WORDS, number=3, upos=False), length=4096)
OTHER = example(WORDS[:40], source="text", number=7)
FIRST.deep_share[0] = FIRST.nats[0] = FIRST.cosine[0, 1] = np.nan
FIRST.update_deep[2, 0] = np.inf
SECOND.deep_share[3] = 0.0  # the ends and the middle of the colours
SECOND.deep_share[5] = 1.0
SECOND.deep_share[7] = 0.5


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the program chromium")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, tmp_path: Path):
    """Opens a page of examples, and at the end asserts that it met no error and no network."""
    met, contexts = [], []

    def opened(examples=(FIRST, SECOND, OTHER), layers=LAYERS, width=1300, scheme="light"):
        path = write(tmp_path / "page.html", "small/mix", [("model", "x")], layers, examples)
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: met.append(message.text))
        tab.on("pageerror", lambda error: met.append(str(error)))
        tab.on("dialog", lambda dialog: met.append(dialog.message))
        tab.on("request", lambda request: met.append(request.url))
        tab.goto(path.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert set(met) <= {(tmp_path / "page.html").as_uri(), "data:,"}


def panel(tab) -> dict[str, str]:
    fields = "list => Object.fromEntries(list.map(e => [e.dataset.field, e.textContent]))"
    weights = "list => list.map(e => e.textContent).join(' ')"
    return {
        **tab.eval_on_selector_all("#panel [data-field]", fields),
        "weights": tab.eval_on_selector_all("#weights span", weights),
    }


def tokens_of(tab, source="gsm8k") -> list[str]:
    selector = f"[data-source={source}] .token"
    return tab.eval_on_selector_all(selector, "list => list.map(e => e.textContent)")


def token(tab, number: int, source="gsm8k"):
    return tab.locator(f"[data-source={source}] .token").nth(number)


def press(tab, *keys: str) -> None:
    for key in keys:
        tab.keyboard.press(key)


def place(tab) -> str:
    return tab.inner_text("#place")


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


def test_a_token_pointed_at_shows_its_exact_numbers(visit):
    tab = visit()
    layout = tab.locator("#sources").bounding_box()
    for number in range(len(NASTY)):
        token(tab, number).dispatch_event("mouseover", {"clientX": number, "bubbles": True})
        assert panel(tab) == shown(FIRST, number, None)
    token(tab, 2).hover()
    assert place(tab) == "gsm8k · sequence 0 · position 2"
    assert tab.inner_text("[data-tag]") == (FIRST.upos[2] or "–")
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


def test_the_mean_of_a_sequence_is_that_of_its_layer(visit):
    tab = visit()
    share = np.nanmean(OTHER.deep_share.astype(float), axis=1).mean()
    assert f"mean deep share {share:.3f}" in tab.inner_text("[data-source=text] .note")
    press(tab, "ArrowRight")
    share = OTHER.deep_share[:, 0].mean(dtype=float)
    assert f"mean deep share {share:.3f}" in tab.inner_text("[data-source=text] .note")


def test_charts_have_a_segment_a_step_and_a_bar_a_layer(visit):
    tab = visit()
    token(tab, 5).hover()
    tab.locator("#bars span").nth(1).click()
    widths = tab.eval_on_selector_all("#steps li", "list => list.map(e => e.offsetWidth)")
    expected = FIRST.step_weights[5, 1] * sum(widths)
    assert np.abs(widths - expected).max() < 2
    bars = tab.eval_on_selector_all(
        "#bars span", "list => list.map(e => [e.title, e.className.includes('now')])"
    )
    assert bars == [
        [f"layer {layer}: {fixed(FIRST.deep_share[5, i])}", i == 1]
        for i, layer in enumerate(LAYERS)
    ]


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


def test_colours_follow_the_layer_and_the_choice(visit):
    tab = visit(examples=[SECOND])
    seen = [colours(tab)[:, 0]]
    for act in (lambda: press(tab, "ArrowRight"), lambda: tab.select_option("#colour", "deep")):
        act()
        seen.append(colours(tab)[:, 0])
    assert not np.allclose(seen[0], seen[1])
    share_order, gate_order = SECOND.deep_share[:, 0], SECOND.gate_deep[:, 0]
    assert np.corrcoef(seen[1][:, 0] - seen[1][:, 2], share_order)[0, 1] > 0.95
    assert np.corrcoef(seen[2][:, 0] - seen[2][:, 2], gate_order)[0, 1] > 0.95
    assert tab.inner_text("#legend").split() == ["0", "1"]


def test_colours_reach_as_far_as_the_shares_and_from_0_to_1_when_asked(visit):
    share = np.linspace(0.42, 0.58, 60, dtype=np.float32).reshape(20, 3)
    near = dataclasses.replace(
        example(["a "] * 20), gate_deep=share, gate_wide=1 - share, deep_share=share,
        update_deep=np.ones_like(share), update_wide=np.ones_like(share),
    )  # fmt: skip
    tab = visit(examples=[near])
    assert tab.inner_text("#legend").split("\n")[0].startswith("wide 0.4")
    fitted = colours(tab)[:, 0]
    tab.check("#full")
    assert tab.inner_text("#legend").split("\n")[0].startswith("wide 0")
    assert "wide 0.4" not in tab.inner_text("#legend")
    whole = colours(tab)[:, 0]
    assert np.ptp(fitted[:, 0] - fitted[:, 2]) > 3 * np.ptp(whole[:, 0] - whole[:, 2])


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
    assert tab.inner_text("[data-tag]") == "–"
    press(tab, "p", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert tokens_of(tab)[0] == "He"
    assert tab.inner_text("#where") == "Layer 1"
    press(tab, "m")
    assert tab.inner_text("#where") == "Mean of 3 layers"
    press(tab, "?", "j", "d")
    assert tab.locator("#keys").is_visible()
    press(tab, "Escape")
    assert not tab.locator("#keys").is_visible()
    # In a select, letters and arrows are its own.
    before = place(tab)
    tab.focus("#colour")
    press(tab, "ArrowRight", "j", "m")
    assert (tab.inner_text("#where"), place(tab)) == ("Mean of 3 layers", before)


def test_a_pinned_token_stays_until_let_go(visit):
    tab = visit()
    token(tab, 4, "text").click()
    token(tab, 1).hover()
    assert place(tab) == "text · sequence 7 · position 4"
    press(tab, "Escape")
    token(tab, 2).hover()
    assert place(tab).endswith("gsm8k · sequence 0 · position 2")
    press(tab, "j", "Enter")  # clicking made the other column active
    token(tab, 1).hover()
    assert place(tab) == "text · sequence 7 · position 5"
    token(tab, 5, "text").click()
    token(tab, 1).hover()
    assert place(tab).endswith("gsm8k · sequence 0 · position 1")


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


def test_dark_mode_is_toggled_and_remembered(visit):
    tab = visit()
    light = colours(tab, "body")[0, 0].mean()
    press(tab, "d")
    assert colours(tab, "body")[0, 0].mean() < 0.2 < 0.9 < light
    tab.reload()
    assert colours(tab, "body")[0, 0].mean() < 0.2
    assert tab.get_attribute("#dark", "aria-pressed") == "true"
    tab.click("#dark")
    assert colours(tab, "body")[0, 0].mean() == light


def test_sources_can_be_hidden(visit):
    tab = visit()
    tab.uncheck("#names label:has-text('gsm8k') input")
    assert not tab.locator("[data-source=gsm8k]").is_visible()
    press(tab, "1", "j")  # the hidden column cannot be active
    assert place(tab) == "text · sequence 7 · position 0"
    tab.check("#names label:has-text('gsm8k') input")
    assert tab.locator("[data-source=gsm8k]").is_visible()


@pytest.mark.parametrize("width", [320, 400, 720])
def test_narrow_windows_do_not_scroll_sideways(visit, width):
    tab = visit(width=width)
    press(tab, "n", "p", "j")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_smallest_page_works(visit):
    one = example(["a"], layers=1, loops=1, upos=False)
    tab = visit(examples=[one], layers=[5])
    press(tab, "j")
    assert panel(tab) == shown(one, 0, None)
    press(tab, "ArrowRight")
    assert panel(tab) == shown(one, 0, 0)
    assert tab.inner_text("#where") == "Layer 5"
    assert "1 token" in tab.inner_text(".source .note")


def test_paper_has_the_texts_with_their_colours_in_light(visit):
    tab = visit(scheme="dark")
    tab.emulate_media(media="print")
    assert not tab.locator("#panel").is_visible()
    assert token(tab, 0).evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    assert colours(tab, ".token")[:, 0].mean() > 0.5
