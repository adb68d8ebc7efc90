"""The page on which the routing of a model is read token by token: one HTML file, no network.

The numbers are written as the page shows them, so every digit on it is the exact value's, rounded:

- gates, cosines, shares and step weights in thousandths, two letters of a 64-letter alphabet each;
- norms, losses and expected loops with three digits and an exponent, three letters each.

A token has a row of numbers for the mean of all layers, then one for each layer.

Shapes: N tokens, L layers with gates, K loops, R rows, one more than L.
"""

import html
import json
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import write_text
from dualpath_cli.study.routing.page.examples import Example, Floats, share_reach

MOST_BYTES = 5_000_000
"""Of the file: what mail and browsers take without complaint."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
SHORT_NAN = 64**2 - 1
LONG_NAN, LONG_INFINITE = 64**3 - 1, 64**3 - 2
LEAST_EXPONENT = -145
"""Of a number with three digits; 64³ codes reach from here to 145."""

Codes = npt.NDArray[np.int64]


def write(
    path: Path,
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[int],
    examples: Sequence[Example],
) -> Path:
    """Writes the page of some examples, one column a source; returns its path.

    Where all tokens would make it too large, each example is cut to its first ones, all to the same
    number. Raises UserError where not even one token of each fits.
    """
    bare = _page(title, facts, layers, examples, 0)
    kept = _tokens_that_fit(examples, MOST_BYTES - 1 - len(bare.encode()))
    if kept == 0:
        raise UserError(
            f"{len(examples):,} sequences do not fit on a page of {MOST_BYTES:,} bytes; "
            "choose fewer"
        )
    write_text(path, _page(title, facts, layers, examples, kept))
    return path


def _page(
    title: str,
    facts: Sequence[tuple[str, str]],
    layers: Sequence[int],
    examples: Sequence[Example],
    kept: int,
) -> str:
    """Fills the template with the first tokens of each example, `kept` at most."""
    tags = sorted({tag for example in examples for tag in example.upos or ()})
    cut = [example.first(kept) for example in examples]
    data = {
        "layers": list(layers),
        "loops": examples[0].step_weights.shape[-1],
        "reach": share_reach([example.deep_share for example in cut]),
        "tags": tags,
        "examples": [_record(example, tags) for example in cut],
    }
    terms = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
    content = {
        "title": html.escape(title),
        "facts": "\n".join(terms),
        "data": _json(data),
        "alphabet": ALPHABET,
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: content[match[1]], template)


def _record(example: Example, tags: Sequence[str]) -> dict[str, Any]:
    upos = None
    if example.upos is not None:
        upos = _letters(_two(np.array([tags.index(tag) for tag in example.upos], np.int64)))
    share = _with_mean(example.deep_share)
    return {
        "source": example.source,
        "number": example.number,
        "length": example.length,
        "tokens": list(example.tokens),
        "upos": upos,
        "nats": _letters(_three(_digits(example.nats))),
        "rows": _letters(_rows(example)),
        "means": _letters(_two(_thousandths(_mean(share, axis=0)))),
    }


def _rows(example: Example) -> Codes:
    """Returns the letters' numbers of every token and row, (N, R, 17 + 2K)."""
    steps = example.step_weights
    loops = (steps * np.arange(1, steps.shape[-1] + 1)).sum(-1)
    short = [
        example.gate_deep,
        example.gate_wide,
        example.cosine + 1.0,  # no signs in the letters
        example.deep_share,
        *np.moveaxis(steps, -1, 0),
    ]
    long = [example.update_deep, example.update_wide, loops]
    letters = [_two(_thousandths(_with_mean(values))) for values in short]
    letters += [_three(_digits(_with_mean(values))) for values in long]
    return np.concatenate(letters, axis=-1)


def _with_mean(values: Floats) -> Floats:
    """Puts the mean over layers before them: (N, L) to (N, R)."""
    return np.concatenate([_mean(values, axis=1)[:, None], values], axis=1, dtype=np.float64)


def _mean(values: Floats, axis: int) -> Floats:
    """Returns the mean of those that are numbers; nan where there are none."""
    count = (~np.isnan(values)).sum(axis)
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis, dtype=np.float64) / count


def _thousandths(values: Floats) -> Codes:
    """Returns codes of numbers from 0 to 4, rounded to thousandths."""
    rounded = np.rint(np.clip(values, 0, 4).astype(np.float64) * 1000)
    return np.where(np.isnan(values), SHORT_NAN, rounded).astype(np.int64)


def _digits(values: Floats) -> Codes:
    """Returns codes of numbers that are not negative, rounded to three digits; 0 is zero's."""
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
    codes = np.where(np.isinf(values), LONG_INFINITE, codes)
    return np.where(np.isnan(values), LONG_NAN, codes).astype(np.int64)


def _two(codes: Codes) -> Codes:
    return np.stack([codes >> 6, codes & 63], axis=-1)


def _three(codes: Codes) -> Codes:
    return np.stack([codes >> 12, codes >> 6 & 63, codes & 63], axis=-1)


def _letters(numbers: Codes) -> str:
    return np.frombuffer(ALPHABET.encode(), np.uint8)[numbers].tobytes().decode("ascii")


def _tokens_that_fit(examples: Sequence[Example], room: int) -> int:
    """Returns to how many first tokens each example can be cut to have all in `room` bytes."""
    costs = [_bytes_of_first(example) for example in examples]
    fits, too_many = 0, max(map(len, costs))
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if sum(cost[min(middle, len(cost) - 1)] for cost in costs) <= room:
            fits = middle
        else:
            too_many = middle
    return fits


def _bytes_of_first(example: Example) -> list[int]:
    """Returns how many bytes the first n tokens take, for n from 0 to N."""
    layers, loops = example.step_weights.shape[1:]
    numbers = (layers + 1) * (17 + 2 * loops) + 3 + 2  # the loss and the part of speech
    texts = (len(_json(token)) + len(", ") for token in example.tokens)
    return list(accumulate((numbers + text for text in texts), initial=0))


def _json(value: object) -> str:
    """Returns ASCII that JSON reads, and that no HTML parser takes for the end of a script."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
