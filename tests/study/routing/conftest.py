"""Pages for tests: examples with random read-outs, the page's texts of them, hands on a tab."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.study.routing.page import write
from dualpath_cli.study.routing.tokens import Example, Model

NASTY = (
    "He", " said", ",", " \"it's\"", "\n", "</script><!--", "<img src=x onerror=hit()>", "&lt;",
    "\u2028", "\ufffd", "\t", "  two", "\u202eleft", "\x00", "\r\n", "", "{{data}}", "é", "日本",
    "x" * 90, "`${hit()}`", "\\u003c",
)  # fmt: skip
LAYERS = (1, 4, 9)


def example(tokens: Sequence[str], source="gsm8k", number=0, layers=3, loops=4, upos=True):
    """Random read-outs, in float32 as models have them, of many sizes."""
    draw = np.random.default_rng([len(tokens), number, layers, loops])
    shape = (len(tokens), layers)
    deep, wide = draw.random((2, *shape), np.float32)
    updates = (10 ** draw.uniform(-5.5, 5.5, (2, *shape))).astype(np.float32)
    gated = np.array([deep, wide]) * updates
    weights = draw.dirichlet(np.ones(loops), shape).astype(np.float32)
    sizes = (10 ** draw.uniform(-4, 1, (*shape, loops))).astype(np.float32)
    cosines = draw.uniform(-1, 1, (*shape, loops)).astype(np.float32)
    cosines[..., 0] = np.nan  # the first step has none
    tags = draw.choice(["NOUN", "NUM", "", "X"], len(tokens)).tolist() if upos else None
    return Example(source, number, len(tokens), list(tokens), tags, {
        "nats": draw.exponential(3, len(tokens)).astype(np.float32),
        "gate_deep": deep, "gate_wide": wide, "update_deep": updates[0], "update_wide": updates[1],
        "cosine": draw.uniform(-1, 1, shape).astype(np.float32),
        "deep_share": gated[0] / gated.sum(0), "step_weights": weights, "step_sizes": sizes,
        "step_cosines": cosines,
        "expected_loops": (weights * np.arange(1, loops + 1)).sum(-1),
    })  # fmt: skip


VALUES = [b"never", *(f" w{n}".encode() for n in range(1, 40)), b"\xff", b"</script>", b" \n"]
"""The bytes of token ids that are named as next ones."""


def detailed(bare: Example, forced=5) -> Example:
    """An example with what each state says, which often is what the one before said, and costs."""
    draw = np.random.default_rng([len(bare.tokens), bare.number])
    tokens, layers, loops = bare.values["step_weights"].shape
    states = layers * (loops + 3)
    said = draw.random((tokens, states, len(VALUES) - 1)).argsort(-1)[..., :3] + 1
    for state in range(1, states):
        order = draw.permutation(3)
        as_before = draw.random(tokens) < 0.7
        said[as_before, state] = said[as_before, state - 1][:, order]
    shares = np.sort(draw.dirichlet([0.3] * 4, (tokens, states))[..., :3])[..., ::-1]
    shape = (tokens, layers, loops + 3, 3)
    next_ids = draw.choice(np.arange(1, len(VALUES)), tokens).astype(np.int32)
    next_nats = draw.exponential(3, tokens).astype(np.float32)
    costs = draw.normal(0, 2, (tokens, 1 + layers, forced)).astype(np.float32)
    next_ids[-1], next_nats[-1], costs[-1] = -1, 0, np.nan
    own = {
        "said": said.reshape(shape).astype(np.int32),
        "shares": shares.reshape(shape).astype(np.float32),
        "next_ids": next_ids, "next_nats": next_nats, "costs": costs,
    }  # fmt: skip
    return bare._replace(values=bare.values | own)


def model(examples: Sequence[Example], forced=()) -> Model:
    """A page's model of some examples."""
    layers, loops = examples[0].values["step_weights"].shape[1:]
    return Model([loops] * layers, examples, forced)


def data_of(path: Path) -> dict[str, Any]:
    """What is packed in a page."""
    packed = re.search(r'id="packed">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


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
        "weights": " ".join(f"{k}: {fixed(w)}" for k, w in zip(steps, weights, strict=True)),
        "updates": [
            f"{k} {three(size)} {fixed(cosine)}"
            for k, size, cosine in zip(steps, sizes, cosines, strict=True)
        ],
    }


WORDS = ("The", " quick", " brown", " fox", "\n", "jumps", " over", " 12", " dogs", ".") * 12
FIRST = example(NASTY)
SECOND = example(WORDS, number=3, upos=False)._replace(length=4096)
OTHER = example(WORDS[:40], source="text", number=7)
for _name, _at in (("deep_share", 0), ("nats", 0), ("cosine", (0, 1))):
    FIRST.values[_name][_at] = np.nan
FIRST.values["update_deep"][2, 0] = np.inf
SECOND.values["deep_share"][[3, 5, 7]] = [[0.0], [1.0], [0.5]]  # ends and middle of the colours


FORCED = ("K = 1", "K = 2", "deep only", "wide only", "both open")
TOLD = detailed(FIRST)
MORE = detailed(example(WORDS, number=3))
FURTHER = detailed(OTHER)
ALONE = model([TOLD, MORE, FURTHER], FORCED)


def word(id: int) -> str:
    text = VALUES[id].decode("utf-8", "replace")
    return text.replace(" ", "␣").replace("\n", "↵") or "∅"


def said_rows(one, token: int, row: int) -> list[list[str]]:
    """The table's texts: label, then token and percent of each rank; a mark at flips."""
    said, shares = one.values["said"][token], one.values["shares"][token]
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


def signed(value: float) -> str:
    if np.isnan(value):
        return "–"
    text = f"{value:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


@pytest.fixture
def visit(chromium, tmp_path: Path):
    """Opens a page of examples, and at the end asserts that it met no error and no network."""
    met, contexts = [], []

    def opened(
        width=1300, scheme="light", *, whole=None, fragment=""
    ):  # fmt: skip
        path = tmp_path / "page.html"
        shown = whole or model((FIRST, SECOND, OTHER))
        write(path, "small/mix", [("model", "x")], LAYERS, shown, VALUES)
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            offline=True,
        )
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
