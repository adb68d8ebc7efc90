"""The page of routing: its file, and its look in Chromium."""

import dataclasses
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.study.routing import page
from dualpath_cli.study.routing.page import write_page
from dualpath_cli.study.routing.page.examples import Example, PageData
from tests.study.conftest import data_of

slow = pytest.mark.slow

NASTY = (
    "He",
    " said",
    ",",
    ' "it\'s"',
    "\n",
    "</script><!--",
    "<img src=x onerror=hit()>",
    "&lt;",
    "\u2028",
    "\ufffd",
    "\t",
    "  two",
    "\u202eleft",
    "\x00",
    "\r\n",
    "",
    "{{data}}",
    "é",
    "日本",
    "x" * 90,
    "`${hit()}`",
    "\\u003c",
)
LAYERS = (1, 4, 9)


VALUES = [
    b"never",
    *(f" w{n}".encode() for n in range(1, 40)),
    b"\xff",
    b"</script>",
    b" \n",
]
"""The bytes of token ids that are named as next ones."""


def example(
    tokens, source="gsm8k", number=0, layers=3, loops=4, upos=True, early=True
) -> Example:
    """Random read-outs, in float32 as models have them, of many sizes.

    If `early` also what each state says, which often is what the one before said, and
    costs.
    """
    draw = np.random.default_rng([len(tokens), number, layers, loops])
    shape = (len(tokens), layers)
    deep, wide = draw.random((2, *shape), np.float32)
    updates = (10 ** draw.uniform(-5.5, 5.5, (2, *shape))).astype(np.float32)
    gated = np.array([deep, wide]) * updates
    weights = draw.dirichlet(np.ones(loops), shape).astype(np.float32)
    cosines = draw.uniform(-1, 1, (*shape, loops)).astype(np.float32)
    cosines[..., 0] = np.nan  # the first step has none
    values = {
        "nats": draw.exponential(3, len(tokens)).astype(np.float32),
        "gate_deep": deep,
        "gate_wide": wide,
        "update_deep": updates[0],
        "update_wide": updates[1],
        "cosine": draw.uniform(-1, 1, shape).astype(np.float32),
        "deep_share": gated[0] / gated.sum(0),
        "step_weights": weights,
        "step_cosines": cosines,
        "step_sizes": (10 ** draw.uniform(-4, 1, (*shape, loops))).astype(np.float32),
        "expected_loops": (weights * np.arange(1, loops + 1)).sum(-1),
    }
    if early:
        said = (
            draw.random((len(tokens), layers * (loops + 3), len(VALUES) - 1)).argsort(
                -1
            )
            + 1
        )
        said = said[..., :3]
        for state in range(1, said.shape[1]):
            as_before = draw.random(len(tokens)) < 0.7
            said[as_before, state] = said[as_before, state - 1][:, draw.permutation(3)]
        shares = np.sort(draw.dirichlet([0.3] * 4, said.shape[:2])[..., :3])[..., ::-1]
        values |= {
            "said": said.reshape(*shape, loops + 3, 3).astype(np.int32),
            "shares": shares.reshape(*shape, loops + 3, 3).astype(np.float32),
            "next_ids": draw.choice(np.arange(1, len(VALUES)), len(tokens)).astype(
                np.int32
            ),
            "next_nats": draw.exponential(3, len(tokens)).astype(np.float32),
            "costs": draw.normal(0, 2, (len(tokens), 1 + layers, 5)).astype(np.float32),
        }
        values["next_ids"][-1], values["next_nats"][-1], values["costs"][-1] = (
            -1,
            0,
            np.nan,
        )
    tags = draw.choice(["NOUN", "NUM", "", "X"], len(tokens)).tolist() if upos else None
    return Example(source, number, len(tokens), list(tokens), tags, values)


def model(examples: Sequence[Example], forced=()) -> PageData:
    """A page's model of some examples."""
    layers, loops = examples[0].values["step_weights"].shape[1:]
    return PageData([loops] * layers, examples, forced)


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
    """The panel's texts, from the exact numbers; None is the mean over layers."""

    def value(name: str) -> float:
        array = example.values[name][token].astype(np.float64)
        if layer is not None:
            return array[layer]
        numbers = array[~np.isnan(array)] if array.ndim == 1 else array
        return numbers.mean(axis=0) if len(numbers) else np.nan

    weights, sizes, cosines = map(value, ("step_weights", "step_sizes", "step_cosines"))
    steps = range(1, len(weights) + 1)
    return {
        "nats": three(example.values["nats"][token]),
        "deep": fixed(value("gate_deep")),
        "wide": fixed(value("gate_wide")),
        "sizeDeep": three(value("update_deep")),
        "sizeWide": three(value("update_wide")),
        "cosine": fixed(value("cosine")),
        "share": fixed(value("deep_share")),
        "loops": three(value("expected_loops")),
        "weights": " ".join(
            f"{k}: {fixed(w)}" for k, w in zip(steps, weights, strict=True)
        ),
        "updates": [
            f"{k} {three(size)} {fixed(cosine)}"
            for k, size, cosine in zip(steps, sizes, cosines, strict=True)
        ],
    }


WORDS = (
    "The",
    " quick",
    " brown",
    " fox",
    "\n",
    "jumps",
    " over",
    " 12",
    " dogs",
    ".",
) * 12
FIRST = example(NASTY)
SECOND = example(WORDS, number=3, upos=False)._replace(length=4096)
OTHER = example(WORDS[:40], source="text", number=7)
for _name, _at in (("deep_share", 0), ("nats", 0), ("cosine", (0, 1))):
    FIRST.values[_name][_at] = np.nan
FIRST.values["update_deep"][2, 0] = np.inf
# ends and middle of the colours
SECOND.values["deep_share"][[3, 5, 7]] = [[0.0], [1.0], [0.5]]


FORCED = ("K = 1", "K = 2", "deep only", "wide only", "both open")


def word(id: int) -> str:
    text = VALUES[id].decode("utf-8", "replace")
    return text.replace(" ", "␣").replace("\n", "↵") or "∅"


def said_rows(one, token: int, row: int) -> list[list[str]]:
    """The table's texts: label, then token and percent of each rank; a mark at
    flips."""
    said, shares = one.values["said"][token], one.values["shares"][token]
    loops = said.shape[1] - 3
    if row:
        labels = [
            "input",
            *(f"loop {k}" for k in range(1, loops + 1)),
            "wide",
            "output",
        ]
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


def signed(value: float) -> str:
    if np.isnan(value):
        return "–"
    text = f"{value:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


@pytest.fixture
def visit(chromium, tmp_path: Path):
    """Opens a page of examples, and at the end asserts that it met no error and no
    network."""
    met, contexts = [], []

    def opened(
        width=1300,
        scheme="light",
        *,
        whole=None,
        fragment="",
        layers=LAYERS,
        values=VALUES,
    ):
        path = tmp_path / "page.html"
        shown = whole or model((FIRST, SECOND, OTHER), FORCED)
        write_page(path, "small/mix", [("model", "x")], layers, shown, values)
        size = {"width": width, "height": 800}
        context = chromium.new_context(viewport=size, color_scheme=scheme, offline=True)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: met.append(message.text))
        tab.on("pageerror", lambda error: met.append(str(error)))
        tab.on("dialog", lambda dialog: met.append(dialog.message))
        tab.on("request", lambda request: met.append(request.url))
        tab.goto(path.as_uri() + fragment)
        tab.wait_for_selector(".token")  # once the numbers are unpacked
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert {place.partition("#")[0] for place in met} <= {
        (tmp_path / "page.html").as_uri(),
        "data:,",
    }


def panel(tab) -> dict[str, str]:
    fields = (
        "list => Object.fromEntries(list.map(e => [e.dataset.field, e.textContent]))"
    )
    weights = "list => list.map(e => e.textContent).join(' ')"
    rows = (
        "list => list.map(e => [...e.children].map(cell => cell.textContent).join(' '))"
    )
    return {
        **tab.eval_on_selector_all("#panel [data-field]", fields),
        "weights": tab.eval_on_selector_all(".weights span", weights),
        "updates": tab.eval_on_selector_all(".updates tbody tr", rows),
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


def table(tab, selector: str) -> list[list[str]]:
    rows = (
        "e => [...e.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => "
        "c.textContent))"
    )
    return tab.locator(f"{selector} table").evaluate(rows)


@pytest.mark.parametrize(
    ("layers", "loops", "chosen"), [(4, 4, 0), (16, 4, 0), (16, 2, 0), (16, 4, 8)]
)
def test_a_token_takes_about_what_is_reckoned_with(layers, loops, chosen, tmp_path):
    """Random numbers take more than real ones."""
    draw = np.random.default_rng(0)
    path, sizes = tmp_path / "p.html", []
    for tokens in (1, 256):
        each = example([f" {n}" for n in range(tokens)], layers=layers, loops=loops)
        if chosen:
            experts = draw.random((tokens, layers, 64)).argsort(-1)[..., :chosen]
            weights = draw.dirichlet(np.ones(chosen), (tokens, layers))
            own = {"experts": experts, "expert_weights": weights}
            each = each._replace(values=each.values | own)
        write_page(path, "t", [], range(layers), model([each], "abcde"), VALUES)
        sizes.append(path.stat().st_size)
    room = page.tokens_with_room(1, layers, loops, 5 * (layers + 1), chosen=chosen)
    reckoned = page.MOST_BYTES / room
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
    title, one = "a</title><script>hit()", example(NASTY)
    whole = model([one], ["</script>"] * 5)
    path = tmp_path / "p.html"
    write_page(path, title, facts, LAYERS, whole, VALUES)
    text = path.read_text()
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(", text)
    assert (text.count("<script"), text.count("</script>"), text.count("<!--")) == (
        2,
        2,
        0,
    )
    assert "<dt>model</dt><dd>&lt;b&gt;&amp;</dd>" in text
    assert html.escape(title) in text
    data = data_of(path)
    assert data["examples"][0]["tokens"] == list(NASTY)
    named = {
        VALUES[id].decode("utf-8", "replace") for id in np.unique(one.values["said"])
    }
    assert named <= set(data["words"])


def test_a_token_pointed_at_shows_its_exact_numbers(visit):
    tab = visit()
    for number in range(len(NASTY)):
        token(tab, number).dispatch_event(
            "mouseover", {"clientX": number, "bubbles": True}
        )
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


def test_a_token_shows_its_experts_and_their_load_in_the_sequence(visit):
    draw = np.random.default_rng(0)
    experts = draw.random((len(WORDS), 3, 6)).argsort(-1)[..., :2].astype(float)
    experts[:, 2] = -1
    weights = np.where(
        experts < 0, np.nan, draw.dirichlet(np.ones(2), experts.shape[:2])
    )
    own = {"experts": experts, "expert_weights": weights}
    chosen = SECOND._replace(values=SECOND.values | own)
    tab = visit(whole=dataclasses.replace(model([chosen]), experts=[6, 6, 0]))
    # no parts of speech
    assert tab.locator("#of-token dt").all_inner_texts() == ["loss, nats"]
    token(tab, 4).hover()
    assert panel(tab)["experts"] == "–"  # there is no mean of experts
    chart = tab.locator("figure:has(.loads)")
    assert not chart.is_visible()
    tab.focus("#layer")
    for layer in range(2):
        press(tab, "ArrowRight")
        order = (-weights[4, layer]).argsort()
        own = zip(experts[4, layer, order], weights[4, layer, order], strict=True)
        assert panel(tab)["experts"] == ", ".join(
            f"{n:.0f} ({fixed(w)})" for n, w in own
        )
        counts = np.bincount(experts[:, layer].astype(int).ravel(), minlength=6)
        assert chart.is_visible()
        titles = tab.eval_on_selector_all(
            ".loads span", "l => l.map(e => [e.title, e.className])"
        )
        assert titles == [
            [
                f"expert {n}: {three(load)} of an even load",
                "now" if n in experts[4, layer] else "",
            ]
            for n, load in enumerate(6 * counts / counts.sum())
        ]
    press(tab, "ArrowRight")
    assert panel(tab)["experts"] == "–"
    assert not chart.is_visible()


def test_a_token_shows_the_repetitions_of_the_core_in_every_layer(visit):
    draw = np.random.default_rng(0)
    shape = (len(FIRST.tokens), 2)
    weights = draw.dirichlet(np.ones(2), len(FIRST.tokens)).astype(np.float32)
    cosines = draw.uniform(-1, 1, shape).astype(np.float32)
    cosines[:, 0] = np.nan
    sizes = draw.random(shape, np.float32)
    core = {"core_weights": weights, "core_sizes": sizes, "core_cosines": cosines}
    one = FIRST._replace(values=FIRST.values | core)
    whole = dataclasses.replace(model([one], FORCED), repetitions=2)
    layers = (0, "3, r 1", "3, r 2")

    tab = visit(whole=whole, layers=layers, fragment="#gsm8k:0/layer=3,r2/token=5")
    assert tab.inner_text("#where") == "Layer 3, r 2"
    for layer in (2, 1):
        expected = shown(FIRST, 5, layer)
        found = panel(tab)
        mean = float(weights[5] @ [1.0, 2.0])
        assert found.pop("repetitions") == three(mean)
        own = [f"{r + 1}: {fixed(weights[5, r])}" for r in range(2)]
        assert found["weights"] == " ".join([expected["weights"], *own])
        updates = [
            f"{r + 1} {three(sizes[5, r])} {fixed(cosines[5, r])}" for r in range(2)
        ]
        assert found["updates"] == [*expected["updates"], *updates]
        names = ("deep", "wide", "share", "loops", "cosine")
        assert {name: found[name] for name in names} == {
            name: expected[name] for name in names
        }
        press(tab, "ArrowLeft")
    tab.wait_for_url(re.compile(r"layer=0/token=5$"))
    press(tab, "m")
    assert tab.inner_text("#where") == "Mean of 3 places"


# In full

COLOURS = """list => {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const rgb = (...layers) => {
    for (const colour of layers) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const page = getComputedStyle(document.body).backgroundColor;
  return list.map(e => rgb(page, getComputedStyle(e).backgroundColor));
}"""


def colours(tab, selector=".token") -> np.ndarray:
    """Of each token its background, as sRGB from 0 to 1, (N, 3)."""
    return np.array(tab.eval_on_selector_all(selector, COLOURS)) / 255


@slow
def test_every_token_stands_literally_and_in_order(visit):
    tab = visit()
    # A lone carriage return or NUL also stays in the page's text.
    assert tokens_of(tab) == list(NASTY)
    assert (
        tab.evaluate("document.querySelectorAll('.token img, .token script').length")
        == 0
    )
    marks = "list => list.map(e => getComputedStyle(e, '::before').content)"
    assert tab.eval_on_selector_all(".source:first-child .mark", marks) == [
        '"↵"',
        '"◌"',
        '"⇥"',
        '"◌"',
        '"␀"',
        '"␍"',
        '"↵"',
        '"∅"',
    ]
    press(tab, "n")
    assert tokens_of(tab) == list(WORDS)
    assert "first 120 of 4,096 tokens" in tab.inner_text("[data-source=gsm8k]")


@slow
def test_characters_without_a_shape_are_marked_except_joiners_in_emoji_and_words(visit):
    hidden = ["\u200b", "\ufeff", "\xad", "\u200e", "\u200f", "\u2060", "\x85"]
    lone = ["\u200d", "\u200c", "\ufe0f", " \u200d "]
    whole = ["👩\u200d🚀", "❤\ufe0f\u200d🔥", "می\u200cخواهم", "\u200cها"]
    tab = visit(whole=model([example([*hidden, *lone, *whole])], FORCED))
    assert tokens_of(tab) == [*hidden, *lone, *whole]
    marked = "list => list.map(e => e.querySelectorAll('.mark').length)"
    marks = tab.eval_on_selector_all(".token", marked)
    assert marks == [1] * len(hidden + lone) + [0] * len(whole)
    for number in range(len(hidden + lone)):
        token(tab, number).dispatch_event("mouseover", {"clientX": number})
        assert tab.inner_text("#word").strip("␣") == "◌"


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_deep_is_red_and_wide_is_blue(visit, scheme):
    tab = visit(scheme=scheme)
    press(tab, "n")
    backgrounds = colours(tab, "[data-source=gsm8k] .token")
    redness = backgrounds[:, 0] - backgrounds[:, 2]
    share = SECOND.values["deep_share"].astype(float).mean(1)
    assert redness.argmax() == share.argmax() == 5
    assert redness.argmin() == share.argmin() == 3
    assert (np.diff(redness[share.argsort()]) > -0.02).all()
    assert np.ptp(backgrounds[7]) < 0.05  # one half is neutral
    if scheme == "light":
        ends = [[round(255 * x) for x in backgrounds[i]] for i in (5, 3)]
        assert ends == [[0xC7, 0x73, 0x4C], [0x4C, 0x8C, 0xB8]]


@slow
def test_keys_move_from_token_to_token_and_between_sequences(visit):
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


@slow
def test_the_bars_of_64_layers_are_wide_enough_to_see(visit):
    deep = model([example(WORDS[:3], layers=64, early=False)])
    tab = visit(whole=deep, layers=range(64))
    press(tab, "j")
    widths = "list => list.map(bar => bar.getBoundingClientRect().width)"
    bars = tab.eval_on_selector_all(".bars i", widths)
    assert len(bars) == 64
    assert min(bars) > 1.5


@slow
def test_paper_names_what_is_shown_and_has_no_buttons(visit):
    tab = visit(fragment="#gsm8k:3/layer=4")
    tab.emulate_media(media="print")
    for selector in ("#colour", "#layer-name", ".source select"):
        assert tab.locator(selector).first.is_visible()
    hidden = tab.locator("button, #layer, #names, #panel, #full")
    assert not any(each.is_visible() for each in hidden.all())


# What is said early, and costs


@slow
def test_what_each_state_says_is_shown_with_its_flips(visit):
    tab = visit()
    marked = 0
    for row in range(len(LAYERS) + 1):
        for number in (0, 3, 11, len(FIRST.tokens) - 1):
            token(tab, number).dispatch_event(
                "mouseover", {"clientX": number, "bubbles": True}
            )
            assert table(tab, "#early") == said_rows(FIRST, number, row)
            marked += tab.locator("#early .flip").count()
            next_id = FIRST.values["next_ids"][number]
            said = tab.inner_text("#early .note")
            if next_id < 0:
                assert said == "The sequence ends here."
            else:
                assert said.startswith(f"Actual next token: {word(next_id)} (loss ")
                came = tab.locator("#early td.came").all_inner_texts()
                assert all(word(next_id) in cell for cell in came)
        press(tab, "ArrowRight")
    assert marked > 10


@slow
def test_parts_of_characters_that_read_alike_are_told_apart(visit):
    one = example(WORDS[:2])
    said = one.values["said"]
    said[0, 0, :, 0] = VALUES.index(b"\xff")
    said[0, 0, -1, 0] = one.values["next_ids"][0] = len(VALUES)
    tab = visit(whole=model([one], FORCED), values=[*VALUES, b"\xfe"])
    press(tab, "j", "ArrowRight")
    heads = "list => list.map(row => row.children[1].className)"
    came = tab.eval_on_selector_all("#early tbody tr", heads)
    assert came == [*[""] * 6, "came"]
    flips = [label for label, first, *_ in table(tab, "#early") if "⇄" in first]
    assert flips == ["output"]


@slow
def test_costs_are_those_of_the_layer_and_of_all(visit):
    tab = visit()
    for row in (1, 3):
        press(tab, *["ArrowRight"] * (row if row == 1 else 2))
        for number in (1, 7, len(FIRST.tokens) - 1):
            token(tab, number).dispatch_event(
                "mouseover", {"clientX": number, "bubbles": True}
            )
            costs = FIRST.values["costs"][number]
            assert table(tab, "#costs") == [
                [name, signed(costs[row, n]), signed(costs[0, n])]
                for n, name in enumerate(FORCED)
            ]
    press(tab, "m")
    assert [line[1] for line in table(tab, "#costs")] == ["–"] * len(FORCED)


# Links


@slow
def test_a_link_leads_back_to_layer_token_and_colour(visit):
    tab = visit()
    press(tab, "2", "ArrowRight", "ArrowRight")
    token(tab, 5, "text").click()
    tab.select_option("#colour", "deep")
    tab.wait_for_url(re.compile("colour=deep$"))
    fragment = tab.evaluate("location.hash")
    assert fragment == "#text:7/layer=4/token=5/colour=deep"
    again = visit(fragment=fragment)
    assert place(again) == "text · sequence 7 · position 5"
    assert again.inner_text("#where") == "Layer 4"
    assert again.input_value("#colour") == "deep"
    assert panel(again) == shown(OTHER, 5, 1)
    assert again.locator(".token.pinned").count() == 1


@slow
def test_a_link_in_an_open_page_leaves_nothing_of_the_view_before(visit):
    tab = visit(fragment="#gsm8k:3/layer=4/token=5/colour=deep/gates=0,1,0,1")
    assert tab.locator(".token.pinned").count() == 1
    assert picked(tab, "gsm8k").all()
    tab.evaluate("location.hash = 'gsm8k:3/layer=1'")
    tab.wait_for_selector(":root[data-colour=share]", state="attached")
    assert tab.input_value("#layer") == "1"
    assert tab.input_value("#colour") == "share"
    assert place(tab) == "Point at a token, or press j."
    assert not tab.locator(".token.pinned").count()
    assert not picked(tab, "gsm8k").any()
    assert not any(each.input_value() for each in tab.locator("#range input").all())


@slow
def test_a_link_that_leads_nowhere_says_so(visit):
    tab = visit()
    for fragment, missing in {
        "nowhere:1/layer=4/token=1": "sequence",
        "%E0%A4%A:1": "sequence",
        "gsm8k:3/layer=77": "layer",
        "gsm8k:3/layer=4/token=__proto__/colour=constructor": "token",
    }.items():
        tab.goto((tab.url.partition("#")[0]) + "#" + fragment)
        tab.reload()
        tab.wait_for_selector(".token")
        assert place(tab) == f"The link names a {missing} that this page does not have."


# The density plot


def inside(
    one, low: tuple[float, float], high: tuple[float, float], layer=None
) -> np.ndarray:
    gates = [
        one.values["gate_deep"].astype(float),
        one.values["gate_wide"].astype(float),
    ]
    gates = [g.mean(1) if layer is None else g[:, layer] for g in gates]
    gates = [np.rint(g * 1000) / 1000 for g in gates]
    return np.logical_and.reduce(
        [(a <= g) & (g <= b) for g, a, b in zip(gates, low, high, strict=True)]
    )


def picked(tab, source: str) -> np.ndarray:
    selector = f"[data-source={source}] .token"
    return np.array(
        tab.eval_on_selector_all(selector, "l => l.map(e => e.matches('.picked'))")
    )


@slow
def test_numbers_select_tokens_by_their_gates_and_escape_clears(visit):
    tab = visit()
    press(tab, "ArrowRight")
    for name, value in (
        ("gate g_d from", "0.25"),
        ("gate g_d to", "0.8"),
        ("gate g_w to", "0.6"),
    ):
        tab.get_by_label(name).fill(value)
    expected = {
        "gsm8k": inside(FIRST, (0.25, 0), (0.8, 0.6), 0),
        "text": inside(OTHER, (0.25, 0), (0.8, 0.6), 0),
    }
    marked = sum(each.sum() for each in expected.values())
    for source, each in expected.items():
        assert (picked(tab, source) == each).all()
    count = len(FIRST.tokens) + len(OTHER.tokens)
    assert tab.inner_text("#picked") == f"{marked} of {count} tokens selected"
    tab.focus("#layer")
    press(tab, "ArrowRight")  # the same region of another layer's gates
    assert (picked(tab, "gsm8k") == inside(FIRST, (0.25, 0), (0.8, 0.6), 1)).all()
    tab.get_by_label("gate g_d to").focus()
    press(tab, "Escape")
    assert not picked(tab, "gsm8k").any()
    assert tab.inner_text("#picked") == f"{count} tokens"


@slow
def test_a_rectangle_that_is_drawn_selects_its_tokens(visit):
    tab = visit()
    tab.locator("#plot").scroll_into_view_if_needed()
    box = tab.locator("#plot").bounding_box()
    tab.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    tab.mouse.down()
    tab.mouse.move(
        box["x"] + 0.7 * box["width"], box["y"] + 0.9 * box["height"], steps=4
    )
    tab.mouse.up()
    ends = [float(each.input_value()) for each in tab.locator("#range input").all()]
    low, high = (ends[0], ends[2]), (ends[1], ends[3])
    assert (picked(tab, "gsm8k") == inside(FIRST, low, high)).all()
    assert picked(tab, "gsm8k").any()
    tab.click("#clear")
    assert not picked(tab, "gsm8k").any()


@slow
@pytest.mark.parametrize("width", [320, 720])
def test_the_page_fits_a_narrow_window(visit, width):
    bare = [example(WORDS, source=f"text {n}", early=False) for n in range(2)]
    bare.append(example(WORDS, "text 0", 1, early=False))
    tab = visit(width=width, whole=model(bare))
    assert tab.inner_text("#panel") == "Point at a token, or press j."
    assert tab.locator("#panel").bounding_box()["height"] < 50
    press(tab, "n", "p", "j", "ArrowRight")
    assert not tab.locator("#early, #costs").first.is_visible()  # it has neither
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.eval_on_selector("#panel", "e => e.scrollWidth <= e.clientWidth")
