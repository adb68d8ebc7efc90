"""The page of a model's routing, token by token: one HTML file, no network.

The file is `page.html` with its style, its scripts and its numbers: JSON, compressed,
in base64. Numbers are rounded once, to the digits that the page shows.

Shapes: M tokens of all examples, L places of layers with gates, K loops, R rows, one
more than L, N repetitions of the core.
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
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.study.routing.page.examples import Example, PageData
from dualpath_cli.study.routing.readouts import Label

HERE = Path(__file__).parent
MOST_BYTES = 5_000_000  # of a page, for mail and browsers
SCRIPTS = ("texts", "panel", "keys")

# Forms of numbers on the page.
WHOLE = "%d"
SHORT = "%.3f"
LONG = "%.3g"
COST = "%.2f"
PERCENT = "%.0f"


def numbers(values: npt.NDArray[Any], form: str) -> str:
    """All numbers of an array as a list of JSON: null for nan, 1e999 for infinity."""
    flat = values.ravel().tolist()
    # One format of all numbers is faster than one for each.
    all_forms = ",".join([form] * len(flat))
    text = all_forms % tuple(flat)
    return f"[{text.replace('nan', 'null').replace('inf', '1e999')}]"


def tokens_with_room(
    sequences: int,
    layers: int,
    loops: int,
    forced: int,
    repetitions: int = 0,
    chosen: int = 0,
) -> int:
    """How many first tokens of each sequence a page of `MOST_BYTES` has room for.

    The passes of the page read no more. `forced` is the number of costs of a token,
    `chosen` that of its experts in a layer.
    """
    # Bytes of a token: measured on real texts, the largest of these.
    read_outs = (layers + 1) * (11.5 + 4.8 * loops) + 4.8 * repetitions
    predictions = layers * (loops + 3) * 4.7
    experts = 3.4 * layers * chosen  # on drawn choices of 8 of 256
    token = 8 + read_outs + predictions + 1.1 * forced + experts
    return int(MOST_BYTES / (1.25 * sequences * token))


def write_page(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[Label],
    data: PageData,
    token_values: Sequence[bytes],
) -> None:
    """Writes the page of a model's read-outs of some examples.

    `token_values` are the bytes of each id that an example names.
    """
    terms = [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in facts
    ]
    packed = gzip.compress(_page_json(layers, data, token_values).encode(), mtime=0)
    content = {
        "title": html.escape(title),
        "facts": "\n".join(terms),
        "style": _part("style.css"),
        "packed": base64.b64encode(packed).decode(),
        "script": "\n".join(_part(f"{name}.js") for name in SCRIPTS),
    }

    def filled(placeholder: re.Match[str]) -> str:
        return content[placeholder[1]]

    page = re.sub(r"\{\{(\w+)\}\}", filled, _part("page.html"))
    write_text(path, page)


def _part(name: str) -> str:
    """A file that becomes part of the page."""
    return (HERE / name).read_text(encoding="utf-8")


def _page_json(
    layers: Sequence[Label], data: PageData, token_values: Sequence[bytes]
) -> str:
    """The JSON that the page's scripts read: facts, then `_numbers`."""
    examples = data.examples
    first = examples[0].values
    tags = sorted({tag for example in examples for tag in example.upos or ()})
    ids = _ids(examples)

    facts = {
        "layers": list(layers),
        "reach": _reach(examples),
        "tags": tags,
        "examples": [
            {
                "source": example.source,
                "number": example.number,
                "length": example.length,
                "tokens": example.tokens,
                "means": _mean_shares(example),
            }
            for example in examples
        ],
        "model": {
            "steps": list(data.steps),
            "chosen": first["experts"].shape[-1] if "experts" in first else 0,
            "said": "said" in first,
            "forced": list(data.forced),
            "experts": list(data.experts),
            "repetitions": data.repetitions,
        },
        "words": [token_values[id].decode("utf-8", "replace") for id in ids.tolist()],
    }
    fields = {name: json.dumps(value, allow_nan=False) for name, value in facts.items()}
    fields |= _numbers(examples, tags, ids)
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _numbers(
    examples: Sequence[Example], tags: Sequence[str], ids: npt.NDArray[np.int64]
) -> dict[str, str]:
    """The numbers of all tokens by the names that `texts.js` reads, token after token.

    (M,), (M, R) with the mean of all layers first, or (M, R, K); of experts (M, L,
    experts), of predictions (M, L, states, ranks), of the core (M, N). `ids` are those
    of the table of words.
    """
    first = examples[0].values

    def joined(name: str) -> Any:
        return np.concatenate([example.values[name] for example in examples])

    def with_mean(name: str, form: str) -> str:
        return numbers(_with_mean(joined(name)), form)

    def nats(name: str) -> str:
        # A loss may lie a rounding below 0.
        return numbers(np.maximum(joined(name), 0), LONG)

    found = {
        "upos": numbers(_tag_numbers(examples, tags), WHOLE),
        "nats": nats("nats"),
        "deep": with_mean("gate_deep", SHORT),
        "wide": with_mean("gate_wide", SHORT),
        "cosine": with_mean("cosine", SHORT),
        "share": with_mean("deep_share", SHORT),
        "steps": with_mean("step_weights", SHORT),
        "stepCosines": with_mean("step_cosines", SHORT),
        "sizeDeep": with_mean("update_deep", LONG),
        "sizeWide": with_mean("update_wide", LONG),
        "loops": with_mean("expected_loops", LONG),
        "stepSizes": with_mean("step_sizes", LONG),
    }
    if "experts" in first:
        found["experts"] = numbers(joined("experts").astype(np.int64), WHOLE)
        found["expertWeights"] = numbers(joined("expert_weights"), SHORT)

    if "core_weights" in first:
        found |= _numbers_of_core(examples)

    if "said" in first:
        # The last place is that of id -1, no token.
        place_of_id = np.full(2 + ids.max(initial=0), -1)
        place_of_id[ids] = np.arange(len(ids))
        percents = 100 * joined("shares").astype(np.float64)
        found["next"] = numbers(place_of_id[joined("next_ids")], WHOLE)
        found["nextNats"] = nats("next_nats")
        found["said"] = numbers(place_of_id[joined("said")], WHOLE)
        found["percents"] = numbers(percents, PERCENT)

    if "costs" in first:
        found["costs"] = numbers(joined("costs"), COST)

    return found


def _numbers_of_core(examples: Sequence[Example]) -> dict[str, str]:
    """The numbers of the core's repetitions, (M,) or (M, N)."""
    weights_MN, sizes_MN, cosines_MN = (
        np.concatenate([example.values[name] for example in examples])
        for name in ("core_weights", "core_sizes", "core_cosines")
    )
    repetitions_N = np.arange(1, weights_MN.shape[1] + 1)
    return {
        "repetitions": numbers(weights_MN @ repetitions_N, LONG),
        "coreWeights": numbers(weights_MN, SHORT),
        "coreSizes": numbers(sizes_MN, LONG),
        "coreCosines": numbers(cosines_MN, SHORT),
    }


def _tag_numbers(
    examples: Sequence[Example], tags: Sequence[str]
) -> npt.NDArray[np.int64]:
    """The place of each token's tag in `tags`, from 1; 0 without a tag, (M,)."""
    found = []
    for example in examples:
        if example.upos:
            found += [1 + tags.index(tag) for tag in example.upos]
        else:
            found += [0] * len(example.tokens)

    return np.array(found, np.int64)


def _ids(examples: Sequence[Example]) -> npt.NDArray[np.int64]:
    """All ids that are predicted or come next, the most frequent first."""
    named = [
        np.ravel(example.values[name])
        for example in examples
        for name in ("said", "next_ids")
        if name in example.values
    ]
    if not named:
        return np.zeros(0, np.int64)

    ids, counts = np.unique(np.concatenate(named), return_counts=True)
    ordered = ids[np.argsort(-counts, kind="stable")]
    return ordered[ordered >= 0]


def _reach(examples: Sequence[Example]) -> float:
    """The range of colours: how far from one half 98 % of the deep shares lie at most.

    From 0.05 to 0.5 in steps of 0.05; 0.5 where there is no share.
    """
    shares = [np.ravel(example.values["deep_share"]) for example in examples]
    distances = np.abs(np.concatenate(shares) - 0.5)
    if not np.isfinite(distances).any():
        return 0.5

    twentieths = math.ceil(float(np.nanpercentile(distances, 98)) * 20)
    return min(0.5, max(1, twentieths) / 20)


def _mean_shares(example: Example) -> list[float | None]:
    """Mean deep share over tokens: of all layers, then of each, in thousandths."""
    means = _mean(_with_mean(example.values["deep_share"]), axis=0)
    return [None if np.isnan(mean) else round(float(mean), 3) for mean in means]


def _with_mean(values: npt.NDArray[np.floating]) -> Floats:
    """Puts the mean over layers before them: (M, L, ...) to (M, R, ...)."""
    mean = _mean(values, axis=1)[:, None]
    return np.concatenate([mean, values], axis=1, dtype=np.float64)


def _mean(values: npt.NDArray[np.floating], axis: int) -> Floats:
    """The mean over numbers without nan; nan where there are none."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(values, axis, dtype=np.float64) / count)
