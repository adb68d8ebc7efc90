"""The page of a model's routing, token by token: one HTML file, no network.

The file is `page.html` with its style, its scripts and its numbers: JSON, compressed,
in base64. Numbers are written to the digits that the page shows, so each digit is that
of the exact number, rounded.

Shapes: M tokens of all examples, L layers with gates, K loops, R rows, one more than L.
"""

import base64
import gzip
import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.base.files import write_text
from dualpath_cli.study.routing.tokens import Example, Floats, Model

MOST_BYTES = 5_000_000  # of a page, for mail and browsers
SCRIPTS = ("texts", "panel", "keys")
WHOLE, SHORT, LONG, COST = "%d", "%.3f", "%.3g", "%.2f"  # forms of numbers on the page


def numbers(values: npt.NDArray[Any], form: str) -> str:
    """All numbers of an array as a list of JSON: null for nan, 1e999 for infinity."""
    flat = values.ravel().tolist()
    text = (f"{form}," * len(flat))[:-1] % tuple(flat)
    return f"[{text.replace('nan', 'null').replace('inf', '1e999')}]"


def tokens_with_room(sequences: int, layers: int, loops: int, forced: int) -> int:
    """How many first tokens of each of some sequences a page of `MOST_BYTES` has room
    for.

    The passes of the page read no more. `forced` is the number of interventions. The
    bytes of a token were measured on real texts, and are the largest of these.
    """
    read_outs = (layers + 1) * (11.5 + 4.8 * loops)
    said = layers * (loops + 3) * 4.7
    return int(MOST_BYTES / (1.25 * sequences * (8 + read_outs + said + 1.1 * forced)))


def write(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[int],
    model: Model,
    token_values: Sequence[bytes],
) -> None:
    """Writes the page of a model's read-outs of some examples.

    `token_values` are the bytes of each id that an example names.
    """
    examples, first = model.examples, model.examples[0].values
    tags = sorted({tag for example in examples for tag in example.upos or ()})
    ids = _ids(examples)
    head = {
        "layers": list(layers),
        "reach": _reach(examples),
        "tags": tags,
        "examples": [
            {
                "source": e.source,
                "number": e.number,
                "length": e.length,
                "tokens": e.tokens,
                "means": _mean_shares(e),
            }
            for e in examples
        ],
        "model": {
            "steps": list(model.steps),
            "chosen": 0 if "experts" not in first else first["experts"].shape[-1],
            "said": "said" in first,
            "forced": list(model.forced),
            "experts": list(model.experts),
        },
        "words": [token_values[id].decode("utf-8", "replace") for id in ids.tolist()],
    }
    data = {name: json.dumps(value, allow_nan=False) for name, value in head.items()}
    data |= _numbers(examples, tags, ids)
    text = ",".join(f'"{name}":{value}' for name, value in data.items())
    here = Path(__file__).parent
    terms = (
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in facts
    )
    content = {
        "title": html.escape(title),
        "facts": "\n".join(terms),
        "style": (here / "style.css").read_text(encoding="utf-8"),
        "packed": base64.b64encode(
            gzip.compress(f"{{{text}}}".encode(), mtime=0)
        ).decode(),
        "script": "\n".join(
            (here / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS
        ),
    }
    template = (here / "page.html").read_text(encoding="utf-8")
    write_text(
        path, re.sub(r"\{\{(\w+)\}\}", lambda match: content[match[1]], template)
    )


def _numbers(
    examples: Sequence[Example], tags: Sequence[str], ids: npt.NDArray[np.int64]
) -> dict[str, str]:
    """The numbers of all tokens by the names that `texts.js` reads, token after token.

    (M,), (M, R) with the mean of all layers first, or (M, R, K); of experts (M, L,
    experts), of predictions (M, L, states, ranks). `ids` are those of the table of
    words.
    """

    def of(name: str) -> Any:
        return np.concatenate([example.values[name] for example in examples])

    short = {
        "deep": of("gate_deep"),
        "wide": of("gate_wide"),
        "cosine": of("cosine"),
        "share": of("deep_share"),
        "steps": of("step_weights"),
        "stepCosines": of("step_cosines"),
    }
    long = {
        "sizeDeep": of("update_deep"),
        "sizeWide": of("update_wide"),
        "loops": of("expected_loops"),
        "stepSizes": of("step_sizes"),
    }
    upos = [
        [1 + tags.index(tag) for tag in e.upos or ()] or [0] * len(e.tokens)
        for e in examples
    ]
    found = {
        "upos": numbers(
            np.concatenate([np.array(own, np.int64) for own in upos]), WHOLE
        ),
        # a loss may lie a rounding below
        "nats": numbers(np.maximum(of("nats"), 0), LONG),
        **{name: numbers(_with_mean(values), SHORT) for name, values in short.items()},
        **{name: numbers(_with_mean(values), LONG) for name, values in long.items()},
    }
    if "experts" in examples[0].values:
        found["experts"] = numbers(of("experts").astype(np.int64), WHOLE)
        found["expertWeights"] = numbers(of("expert_weights"), SHORT)
    if "said" in examples[0].values:
        # the last one is that of -1, no token
        place = np.full(2 + max(0, ids.max(initial=0)), -1)
        place[ids] = np.arange(len(ids))
        found["next"] = numbers(place[of("next_ids")], WHOLE)
        found["nextNats"] = numbers(np.maximum(of("next_nats"), 0), LONG)
        found["said"] = numbers(place[of("said")], WHOLE)
        found["percents"] = numbers(100 * of("shares").astype(np.float64), "%.0f")
    if "costs" in examples[0].values:
        found["costs"] = numbers(of("costs"), COST)
    return found


def _ids(examples: Sequence[Example]) -> npt.NDArray[np.int64]:
    """All ids that are predicted or come next, the most frequent first."""
    named = [
        np.ravel(values)
        for example in examples
        for name, values in example.values.items()
        if name in ("said", "next_ids")
    ]
    ids, counts = np.unique(
        np.concatenate([np.zeros(0, np.int64), *named]), return_counts=True
    )
    ordered = ids[np.argsort(-counts, kind="stable")]
    return ordered[ordered >= 0]


def _reach(examples: Sequence[Example]) -> float:
    """The distance from one half that 98 % of the shares have at most: the range of
    colours.

    From 0.05 to 0.5 in steps of 0.05; 0.5 where there is no share.
    """
    far = np.abs(
        np.concatenate([np.ravel(example.values["deep_share"]) for example in examples])
        - 0.5
    )
    if not np.isfinite(far).any():
        return 0.5
    return min(0.5, max(1, math.ceil(float(np.nanpercentile(far, 98)) * 20)) / 20)


def _mean_shares(example: Example) -> list[float | None]:
    """Mean deep share over tokens: of all layers, then of each, in thousandths."""
    means = _mean(_with_mean(example.values["deep_share"]), axis=0)
    return [None if np.isnan(mean) else round(float(mean), 3) for mean in means]


def _with_mean(values: Floats) -> Floats:
    """Puts the mean over layers before them: (M, L, ...) to (M, R, ...)."""
    return np.concatenate(
        [_mean(values, axis=1)[:, None], values], axis=1, dtype=np.float64
    )


def _mean(values: Floats, axis: int) -> Floats:
    """The mean over numbers without nan; nan where there are none."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis, dtype=np.float64) / count
