"""The paper's claims about routing as numbers with intervals, one by one, for any run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import rankdata

from dualpath_cli.study.bootstrap import Floats
from dualpath_cli.study.classes import LEANINGS
from dualpath_cli.study.routing.options import AVERAGE
from dualpath_cli.study.routing.summary import Summary
from dualpath_cli.study.routing.sums import CORNER

REASONING = "gsm8k"
"""The source that the paper calls a reasoning task; what it is compared with asks for knowledge."""


@dataclass(frozen=True)
class Claim:
    """One number, its interval over sequences, and what the claim says of it."""

    claim: str
    source: str
    number: str
    """What is measured."""
    value: float
    low: float
    high: float
    bound: float
    above: bool
    """Whether the claim wants the number above or below the bound."""

    @property
    def verdict(self) -> str:
        """`holds` or `fails` where the whole interval is on one side of the bound, else `open`."""
        if not np.isfinite([self.low, self.high]).all():
            return "open"
        if self.low > self.bound:
            return "holds" if self.above else "fails"
        if self.high < self.bound:
            return "fails" if self.above else "holds"
        return "open"


@dataclass(frozen=True)
class Pair:
    """Two sources, or two runs, that are compared."""

    one: str
    other: str
    first: Summary
    second: Summary

    def claim(self, text: str, number: str, values_R: Floats, bound: float) -> Claim:
        """A claim that a number of both is above a bound; it knows as much as the shorter one."""
        shorter = min(self.first, self.second, key=lambda summary: summary.sequences)
        names = f"{self.one}, {self.other}"
        return Claim(text, names, number, *_with_interval(shorter, values_R), bound, True)


def claims(sources: Mapping[str, Summary], average: Summary) -> list[Claim]:
    """Returns every claim for each source, or pair of sources, that can speak of it."""
    averaged = {AVERAGE: average} if len(sources) > 1 else {}
    statements = [
        claim
        for name, summary in (*sources.items(), *averaged.items())
        for claim in _single(name, summary)
    ]
    if REASONING in sources:
        for other in (name for name in sources if name != REASONING):
            statements += _aligned(Pair(REASONING, other, sources[REASONING], sources[other]))
    for one, other in combinations(sources, 2):
        statements += _same_order(Pair(one, other, sources[one], sources[other]))
    return statements


def same_profile(pair: Pair) -> Iterator[Claim]:
    """Whether two runs of as many layers have one profile of deep share over their layers."""
    profiles = [summary.means["deep_share"] for summary in (pair.first, pair.second)]
    count = len(pair.first.layers)
    if count >= 3:
        text = "runs share one profile of deep share over layers"
        yield pair.claim(text, f"correlation over {count} layers", _correlation(*profiles), 0.5)


def _single(source: str, summary: Summary) -> Iterator[Claim]:
    share, difference = summary.means["deep_share"], summary.means["gate_difference"]
    committed = summary.means["only_deep"] + summary.means["only_wide"]
    last = max(1, len(summary.layers) // 8)  # two of the paper's sixteen

    def claim(text: str, number: str, values: Floats, bound: float, above: bool) -> Claim:
        return Claim(text, source, number, *_with_interval(summary, values), bound, above)

    if {"middle", "late"} <= summary.bands.keys():
        text = "the middle layers are wide-dominated"
        yield claim(text, "deep share, middle band", summary.in_band(share, "middle"), 0.5, False)
        text = "the last layers are deep-dominated"
        number = f"deep share, last {last} of {len(summary.layers)} layers"
        yield claim(text, number, share[:, -last:].mean(1), 0.5, True)
        rise = summary.in_band(share, "late") - summary.in_band(share, "middle")
        yield claim("deep share rises to the end", "late - middle band", rise, 0, True)
        cosine = summary.in_band(summary.means["cosine"], "middle")
        yield claim("the paths do different things", "cosine, middle band", cosine, 0.5, False)
    if {"early", "late"} <= summary.bands.keys():
        text = "gates polarise with depth"
        rise = summary.in_band(difference, "late") - summary.in_band(difference, "early")
        yield claim(text, "|g_d - g_w|, late - early band", rise, 0, True)
        if committed[0].any():  # where no token is in a corner, corners say nothing
            rise = summary.in_band(committed, "late") - summary.in_band(committed, "early")
            number = f"tokens with gates above {1 - CORNER:g} and below {CORNER:g}"
            yield claim(text, f"{number}, late - early band", rise, 0, True)
    for leaning in LEANINGS:
        values = summary.class_differences[leaning.name]
        if np.isfinite(values[0]).all():
            number = "its deep share - that of other tokens"
            yield claim(leaning.claim, number, values.mean(1), 0, leaning.path == "deep")


def _aligned(pair: Pair) -> Iterator[Claim]:
    first, second = (
        summary.aligned[:, summary.offsets > 0] for summary in (pair.first, pair.second)
    )
    # Where both have enough sequences; the same tokens of both, counted from the anchor.
    known = np.isfinite(first[0, :, 0]) & np.isfinite(second[0, :, 0])
    if not known.any():
        return
    gap = np.nanmean(first[:, known] - second[:, known], axis=1)
    bands = {"late": pair.first.in_band(gap, "late"), "all": gap.mean(1)}
    for band, values in bands.items():
        text = f"{pair.one} is deeper than {pair.other} after the anchor, in {band} layers"
        number = f"mean of {known.sum()} positions' deep share, {pair.one} - {pair.other}"
        yield pair.claim(text, number, values, 0)


def _same_order(pair: Pair) -> Iterator[Claim]:
    common = sorted(set(pair.first.known_tags) & set(pair.second.known_tags))
    if len(common) >= 3:
        ranks = [
            rankdata(summary.tag_means[:, common].mean(2), axis=1, nan_policy="propagate")
            for summary in (pair.first, pair.second)
        ]
        text = "parts of speech have one order in all texts"
        yield pair.claim(text, "rank correlation", _correlation(*ranks), 0.5)


def _correlation(one: Floats, other: Floats) -> Floats:
    """Of each row with the same row of the other, (R,)."""
    one, other = (values - values.mean(1, keepdims=True) for values in (one, other))
    return np.asarray((one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1)))


def _with_interval(summary: Summary, values_R: Floats) -> tuple[float, float, float]:
    low, high = summary.interval(values_R)
    return float(values_R[0]), float(low), float(high)
