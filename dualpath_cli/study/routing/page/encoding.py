"""Numbers of the page as text: columns of codes, compressed, in the letters of base64.

A column has a code from 0 to 2^24 - 1 for every token of the page. It is written as three planes of
bytes, the high ones first: planes of like bytes are what gzip takes out. Numbers are coded to the
digits that the page shows, so that every digit on it is the exact value's, rounded.

Shapes: M tokens of all sequences of a page.
"""

import base64
import gzip
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dualpath_cli.study.routing.page.examples import Floats

MOST_BYTES = 5_000_000
"""Of a page: what mail and browsers take without complaint."""

NAN, INFINITE = 2**24 - 1, 2**24 - 2
LEAST_EXPONENT = -145
"""Of a number with three digits."""
STEP_BYTES = 4.5
"""Of a token, layer and step: weight, size and cosine of its update, compressed."""
ZERO_COST = 2**15
"""Code of a cost of nothing; costs reach 320 nats up and down, far beyond any."""

Codes = npt.NDArray[np.int64]


def thousandths(values: Floats) -> Codes:
    """Returns codes of numbers from 0 to 4, rounded to thousandths."""
    rounded = np.rint(np.clip(values, 0, 4).astype(np.float64) * 1000)
    return np.where(np.isnan(values), NAN, rounded).astype(np.int64)


def digits(values: Floats) -> Codes:
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
    codes = np.where(np.isinf(values), INFINITE, codes)
    return np.where(np.isnan(values), NAN, codes).astype(np.int64)


def hundredths(values: Floats) -> Codes:
    """Returns codes of costs in nats, rounded to hundredths; nan has its own."""
    limit = ZERO_COST - 1
    rounded = np.rint(np.clip(values.astype(np.float64) * 100, -limit, limit))
    return np.where(np.isnan(values), NAN, rounded + ZERO_COST).astype(np.int64)


def said(ranked: Codes) -> Codes:
    """Returns codes of what successive states say, (M, states, ranks), places in a table.

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
    """Returns codes of probabilities of successive states, (M, states, ranks), in whole percent.

    Of each what it has more than the state before, modulo 128.
    """
    whole = np.rint(shares.astype(np.float64) * 100).astype(np.int64)
    return np.diff(whole, axis=1, prepend=0) % 128


def packed(columns: Sequence[Codes], text: str) -> str:
    """Returns columns of codes, (M,) each, and a text after them, compressed, in base64."""
    codes = np.stack(columns).astype(np.uint32)
    planes = np.stack([codes >> 16, codes >> 8, codes], axis=1).astype(np.uint8)
    data = gzip.compress(planes.tobytes() + text.encode("utf-8", "surrogatepass"), mtime=0)
    return base64.b64encode(data).decode("ascii")


def likely_tokens(sequences: int, layers: int, loops: Sequence[int], forced: int) -> int:
    """Returns how many first tokens of each sequence the page is likely to have room for.

    The passes of the page read no more of them. `loops` are those of each model on it, `forced` is
    the number of interventions. What a token takes was measured, and is
    a fifth more than is reckoned with: sequences that are shorter leave room for others.
    """
    read_outs = sum((layers + 1) * (7 + STEP_BYTES * steps) for steps in loops)
    states = sum(layers * (steps + 2) * 3.5 for steps in loops)
    return max(1, int(MOST_BYTES / (sequences * (6 + read_outs + states + forced))))
