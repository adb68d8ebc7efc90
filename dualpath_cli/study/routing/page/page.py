"""The page on which the routing of a model is read token by token: one HTML file, no network.

It is `page.html` with its style, its scripts, a head of JSON and the columns of numbers
(`encoding.py`): the part of speech of every token, then what each model made of it. The script
`numbers.js` reads the columns in the order in which `_columns` writes them.

Shapes: N tokens, M of all examples, L layers with gates, K loops, R rows, one more than L.
"""

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualpath_cli.errors import UserError
from dualpath_cli.files import write_text
from dualpath_cli.study.routing.page import encoding
from dualpath_cli.study.routing.page.encoding import Codes
from dualpath_cli.study.routing.page.examples import Example, Floats, Model, share_reach
from dualpath_cli.study.routing.readouts import EXPERT_READOUTS

SCRIPTS = ("numbers", "texts", "panel", "early", "density", "link", "keys")
"""Files of the script, in their order; one module together."""


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
    first ones, all to the same number. Raises UserError where not even one token of each fits.
    """

    def page(kept: int) -> str:
        return _page(title, facts, layers, models, token_values, kept)

    least = len(page(1).encode())
    if least >= encoding.MOST_BYTES:
        raise UserError(
            f"{len(models[0].examples):,} sequences do not fit on a page of "
            f"{encoding.MOST_BYTES:,} bytes; choose fewer"
        )
    kept = max(len(example.tokens) for example in models[0].examples)
    while (size := len((text := page(kept)).encode())) >= encoding.MOST_BYTES:
        room = (encoding.MOST_BYTES - least) / (size - least)
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
        "head": _json(head),
        "packed": encoding.packed(columns, json.dumps(texts)),
        "script": "\n".join((here / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
    }
    template = (here / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: content[match[1]], template)


def _columns(read: Sequence[Sequence[Example]], tags: Sequence[str], ids: Codes) -> list[Codes]:
    """Returns the codes of all tokens, (M,) each; `ids` are those of the table of texts."""
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
            costs = np.concatenate([example.costs for example in examples])
            columns += list(encoding.hundredths(costs).reshape(len(costs), -1).T)
    return columns


def _read_outs(examples: Sequence[Example]) -> list[Codes]:
    """The loss, then each read-out for the mean of all layers and for each layer; last experts."""
    steps = np.concatenate([example.step_weights for example in examples])
    loops = (steps * np.arange(1, steps.shape[-1] + 1)).sum(-1)

    def all_of(name: str) -> Floats:
        return np.concatenate([getattr(example, name) for example in examples])

    def by_step(name: str) -> Floats:
        return np.moveaxis(all_of(name), -1, 0)

    short = [
        all_of("gate_deep"),
        all_of("gate_wide"),
        all_of("cosine") + 1.0,  # codes have no signs
        all_of("deep_share"),
        *by_step("step_weights"),
        *(by_step("step_cosines") + 1.0),
    ]
    long = [all_of("update_deep"), all_of("update_wide"), loops, *by_step("step_sizes")]
    columns = [encoding.digits(all_of("nats"))]
    for values in short:
        columns += list(encoding.thousandths(_with_mean(values)).T)
    for values in long:
        columns += list(encoding.digits(_with_mean(values)).T)
    if examples[0].experts is not None:
        experts, weights = (np.concatenate([getattr(example, name) for example in examples])
                            for name in EXPERT_READOUTS)  # fmt: skip
        none = np.where(experts < 0, encoding.NAN, experts).astype(np.int64)
        for codes in (none, encoding.thousandths(weights)):
            columns += list(codes.reshape(len(codes), -1).T)
    return columns


def _said(examples: Sequence[Example], ids: Codes) -> list[Codes]:
    """The next token and its loss, then the predictions of each state and their probabilities."""
    said, shares = (
        np.concatenate([getattr(example, name) for example in examples])
        for name in ("said", "shares")
    )
    next_ids = np.concatenate([example.next_ids for example in examples])
    place = np.zeros(1 + max(0, ids.max(initial=0)), np.int64)
    place[ids] = np.arange(len(ids))
    states = (len(said), -1, said.shape[-1])
    return [
        np.where(next_ids >= 0, 1 + place[next_ids], 0),
        encoding.digits(np.concatenate([example.next_nats for example in examples])),
        *encoding.said(place[said].reshape(states)).reshape(len(said), -1).T,
        *encoding.percents(shares.reshape(states)).reshape(len(said), -1).T,
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
    """Returns the mean of those that are numbers; nan where there are none."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis, dtype=np.float64) / count


def _json(value: object) -> str:
    """Returns ASCII that JSON reads, and that no HTML parser takes for the end of a script."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
