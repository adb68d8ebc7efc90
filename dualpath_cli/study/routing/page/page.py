"""The page on which the routing of a model is read token by token: one HTML file, no network.

It is `page.html` with its style, its scripts, a head of JSON and the columns of numbers: the part
of speech of every token, then what each model made of it. The script `numbers.js` reads the columns
in the order in which `_columns` writes them.

A column has a code from 0 to 2^24 - 1 for every token of the page. It is written as three planes of
bytes, the high ones first: planes of like bytes are what gzip takes out. Numbers are coded to the
digits that the page shows, so that every digit on it is the exact value's, rounded.

Shapes: N tokens, M of all examples, L layers with gates, K loops, R rows, one more than L.
"""

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.errors import UserError
from dualpath_cli.files import write_text
from dualpath_cli.study.routing.readouts import EXPERT_READOUTS
from dualpath_cli.study.routing.tokens import Example, Floats, Model, share_reach

MOST_BYTES = 5_000_000  # of a page: what mail and browsers take without complaint

NAN, INFINITE = 2**24 - 1, 2**24 - 2
LEAST_EXPONENT = -145  # of a number with three digits
ZERO_COST = 2**15  # code of a cost of nothing; costs reach 320 nats up and down, far beyond any
SCRIPTS = ("numbers", "texts", "panel", "early", "density", "link", "keys")
"""Files of the script, in their order; one module together."""

Codes = npt.NDArray[np.int64]


def thousandths(values: Floats) -> Codes:
    """Codes of numbers from 0 to 4, rounded to thousandths."""
    rounded = np.rint(np.clip(values, 0, 4).astype(np.float64) * 1000)
    return np.where(np.isnan(values), NAN, rounded).astype(np.int64)


def digits(values: Floats) -> Codes:
    """Codes of numbers that are not negative, rounded to three digits; 0 is zero's."""
    values = np.maximum(values, 0).astype(np.float64)  # a loss may lie a rounding below
    ordinary = np.isfinite(values) & (values > 0)
    plain = np.where(ordinary, values, 1.0)
    exponent = np.floor(np.log10(plain))
    # A power of ten is exact only if it is not negative: multiply by one or divide by one.
    up, down = 10.0 ** np.maximum(2 - exponent, 0), 10.0 ** np.maximum(exponent - 2, 0)
    mantissa = np.rint(plain * up / down)
    # A mantissa rounded up to 1000 has the code of the next exponent's 100, as it should.
    codes = (exponent - LEAST_EXPONENT) * 900 + (mantissa - 100) + 1
    codes = np.where(ordinary, codes.clip(1), 0)
    codes = np.where(np.isinf(values), INFINITE, codes)
    return np.where(np.isnan(values), NAN, codes).astype(np.int64)


def hundredths(values: Floats) -> Codes:
    """Codes of costs in nats, rounded to hundredths; nan has its own."""
    limit = ZERO_COST - 1
    rounded = np.rint(np.clip(values.astype(np.float64) * 100, -limit, limit))
    return np.where(np.isnan(values), NAN, rounded + ZERO_COST).astype(np.int64)


def predictions(ranked: Codes) -> Codes:
    """Codes of what successive states say, (M, states, ranks), places in a table.

    0 stands for what the state before has at the same rank, 1 for its next rank and so on, round
    to the first; what it does not have is its place in the table, above these.
    """
    ranks = ranked.shape[-1]
    codes = ranked + ranks
    for rank in range(ranks):
        for turn in reversed(range(ranks)):
            before = ranked[:, :-1, (rank + turn) % ranks]
            codes[:, 1:, rank] = np.where(ranked[:, 1:, rank] == before, turn, codes[:, 1:, rank])
    return codes


def percents(shares: Floats) -> Codes:
    """Codes of probabilities of successive states, (M, states, ranks), in whole percent.

    Of each what it has more than the state before, modulo 128.
    """
    whole = np.rint(shares.astype(np.float64) * 100).astype(np.int64)
    return np.diff(whole, axis=1, prepend=0) % 128


def packed(columns: Sequence[Codes], text: str) -> str:
    """Columns of codes, (M,) each, and a text after them, compressed, in base64."""
    codes = np.stack(columns).astype(np.uint32)
    planes = np.stack([codes >> 16, codes >> 8, codes], axis=1).astype(np.uint8)
    data = gzip.compress(planes.tobytes() + text.encode("utf-8", "surrogatepass"), mtime=0)
    return base64.b64encode(data).decode("ascii")


def likely_tokens(sequences: int, layers: int, loops: Sequence[int], forced: int) -> int:
    """How many first tokens of each sequence the page is likely to have room for.

    The passes of the page read no more of them. `loops` are those of each model on it, `forced` is
    the number of interventions. The bytes of a token were measured, and are a fifth more than is
    reckoned with: sequences that are shorter leave room for others.
    """
    # 4.5 for weight, size and cosine of a step's update, compressed.
    read_outs = sum((layers + 1) * (7 + 4.5 * steps) for steps in loops)
    states = sum(layers * (steps + 2) * 3.5 for steps in loops)
    return max(1, int(MOST_BYTES / (sequences * (6 + read_outs + states + forced))))


def write(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[int],
    models: Sequence[Model],
    token_values: Sequence[bytes] = (),
) -> Path:
    """Writes the page of what models made of some examples; returns its path.

    Examples have a column for each source and model. `token_values` are the bytes of each id that
    an example names. Where all tokens would make the page too large, each example is cut to its
    first ones, all to the same number.
    """
    page = partial(_page, title, facts, layers, models, token_values)
    least = len(page(1).encode())
    if least >= MOST_BYTES:
        raise UserError(
            f"{len(models[0].examples):,} sequences do not fit on a page of "
            f"{MOST_BYTES:,} bytes; choose fewer"
        )
    kept = max(len(example.tokens) for example in models[0].examples)
    while (size := len((text := page(kept)).encode())) >= MOST_BYTES:
        room = (MOST_BYTES - least) / (size - least)
        kept = min(kept - 1, max(1, int(kept * room)))
    write_text(path, text)
    return path


def _page(
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[int],
    models: Sequence[Model],
    token_values: Sequence[bytes],
    kept: int,
) -> str:
    """Fills the template with the first tokens of each example, `kept` at most."""
    read = [[example.first(kept) for example in model.examples] for model in models]
    tags = sorted({tag for example in read[0] for tag in example.upos or ()})
    ids = _ids(read)
    columns = _columns(read, tags, ids)
    head = {
        "layers": list(layers),
        "reach": share_reach([example.deep_share for examples in read for example in examples]),
        "tags": tags,
        "columns": len(columns),
        "examples": [
            {"source": e.source, "number": e.number, "length": e.length, "count": len(e.tokens)}
            for e in read[0]
        ],
        "models": [
            {
                "name": model.name,
                "steps": list(model.steps),
                "chosen": 0 if examples[0].experts is None else examples[0].experts.shape[-1],
                "said": examples[0].said is not None,
                "forced": list(model.forced),
                "experts": list(model.experts),
                "means": [_mean_shares(example) for example in examples],
            }
            for model, examples in zip(models, read, strict=True)
        ],
    }
    texts = {
        "tokens": [example.tokens for example in read[0]],
        "said": [token_values[id].decode("utf-8", "replace") for id in ids.tolist()],
    }
    here = Path(__file__).parent
    terms = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
    content = {
        "title": html.escape(title),
        "facts": "\n".join(terms),
        "style": (here / "style.css").read_text(encoding="utf-8"),
        # ASCII that JSON reads, and that no HTML parser takes for the end of a script.
        "head": json.dumps(head, allow_nan=False)
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026"),
        "packed": packed(columns, json.dumps(texts)),
        "script": "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
    }
    template = (here / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: content[match[1]], template)


def _columns(read: Sequence[Sequence[Example]], tags: Sequence[str], ids: Codes) -> list[Codes]:
    """The codes of all tokens, (M,) each; `ids` are those of the table of texts."""
    upos = [
        [1 + tags.index(tag) for tag in example.upos or ()] or [0] * len(example.tokens)
        for example in read[0]
    ]
    columns = [np.concatenate([np.array(numbers, np.int64) for numbers in upos])]
    for examples in read:
        columns += _read_outs(examples)
        if examples[0].said is not None:
            columns += _said(examples, ids)
        if examples[0].costs is not None:
            costs = _all_of(examples, "costs")
            columns += list(hundredths(costs).reshape(len(costs), -1).T)
    return columns


def _read_outs(examples: Sequence[Example]) -> list[Codes]:
    """The loss, then each read-out for the mean of all layers and for each layer; last experts."""
    steps = _all_of(examples, "step_weights")
    loops = (steps * np.arange(1, steps.shape[-1] + 1)).sum(-1)
    of = partial(_all_of, examples)

    def by_step(name: str) -> Floats:
        return np.moveaxis(of(name), -1, 0)

    short = [
        of("gate_deep"), of("gate_wide"), of("cosine") + 1.0,  # codes have no signs
        of("deep_share"), *by_step("step_weights"), *(by_step("step_cosines") + 1.0),
    ]  # fmt: skip
    long = [of("update_deep"), of("update_wide"), loops, *by_step("step_sizes")]
    columns = [digits(of("nats"))]
    for values in short:
        columns += list(thousandths(_with_mean(values)).T)
    for values in long:
        columns += list(digits(_with_mean(values)).T)
    if examples[0].experts is not None:
        experts, weights = map(of, EXPERT_READOUTS)
        none = np.where(experts < 0, NAN, experts).astype(np.int64)
        for codes in (none, thousandths(weights)):
            columns += list(codes.reshape(len(codes), -1).T)
    return columns


def _all_of(examples: Sequence[Example], name: str) -> Any:
    """A field of all examples, (M, ...)."""
    return np.concatenate([getattr(example, name) for example in examples])


def _said(examples: Sequence[Example], ids: Codes) -> list[Codes]:
    """The next token and its loss, then the predictions of each state and their probabilities."""
    said, shares, next_ids, next_nats = (
        _all_of(examples, name) for name in ("said", "shares", "next_ids", "next_nats")
    )
    place = np.zeros(1 + max(0, ids.max(initial=0)), np.int64)
    place[ids] = np.arange(len(ids))
    states = (len(said), -1, said.shape[-1])
    return [
        np.where(next_ids >= 0, 1 + place[next_ids], 0),
        digits(next_nats),
        *predictions(place[said].reshape(states)).reshape(len(said), -1).T,
        *percents(shares.reshape(states)).reshape(len(said), -1).T,
    ]


def _ids(read: Sequence[Sequence[Example]]) -> Codes:
    """All ids that are named, the most frequent first."""
    named = [
        np.ravel(values)
        for examples in read
        for example in examples
        for values in (example.said, example.next_ids)
        if values is not None
    ]
    ids, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *named]), return_counts=True)
    ordered = ids[np.argsort(-counts, kind="stable")]
    return ordered[ordered >= 0]


def _mean_shares(example: Example) -> list[float | None]:
    """Mean deep share of the mean of all layers and of each layer, in thousandths."""
    means = _mean(_with_mean(example.deep_share), axis=0)
    return [None if np.isnan(mean) else round(float(mean), 3) for mean in means]


def _with_mean(values: Floats) -> Floats:
    """Puts the mean over layers before them: (N, L) to (N, R)."""
    return np.concatenate([_mean(values, axis=1)[:, None], values], axis=1, dtype=np.float64)


def _mean(values: Floats, axis: int) -> Floats:
    """The mean of those that are numbers; nan where there are none."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis, dtype=np.float64) / count
