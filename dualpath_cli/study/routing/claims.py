"""The paper's claims about routing as numbers with intervals, one by one, for any run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from dualpath_cli.study.routing.options import AVERAGE
from dualpath_cli.study.routing.statistics import CORNER
from dualpath_cli.study.routing.summary import Statistics

Floats = npt.NDArray[np.float64]

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


def claims(sources: Mapping[str, Statistics], average: Statistics) -> list[Claim]:
    """Returns every claim for each source, or pair of sources, that can speak of it."""
    every = dict(sources) | ({AVERAGE: average} if len(sources) > 1 else {})
    found = [claim for name, each in every.items() for claim in _of_source(name, each)]
    anchored = [name for name, each in sources.items() if _after_anchor(each) is not None]
    if REASONING in anchored:
        for other in anchored:
            if other != REASONING:
                found += _aligned(REASONING, other, sources[REASONING], sources[other])
    for one, other in combinations(sources, 2):
        found += _same_order(one, other, sources[one], sources[other])
    return found


def same_profile(one: str, other: str, of_one: Statistics, of_other: Statistics) -> Iterator[Claim]:
    """Whether two runs of as many layers have one profile of deep share over their layers."""
    profiles = [each.means["deep_share"] for each in (of_one, of_other)]
    if len(of_one.layers) < 3:
        return
    text = "runs share one profile of deep share over layers"
    number = f"correlation over {len(of_one.layers)} layers"
    few = min(of_one, of_other, key=lambda each: each.sequences)
    yield Claim(
        text, f"{one}, {other}", number, *_ends(few, _correlation(*profiles)), 0.5, True
    )  # fmt: skip


def _of_source(source: str, of: Statistics) -> Iterator[Claim]:
    share, difference = of.means["deep_share"], of.means["gate_difference"]
    committed = of.means["only_deep"] + of.means["only_wide"]
    last = max(1, len(of.layers) // 8)  # two of the paper's sixteen

    def claim(text: str, number: str, values: Floats, bound: float, above: bool) -> Claim:
        return Claim(text, source, number, *_ends(of, values), bound, above)

    if {"middle", "late"} <= of.bands.keys():
        text = "the middle layers are wide-dominated"
        yield claim(text, "deep share, middle band", of.in_band(share, "middle"), 0.5, False)
        text = "the last layers are deep-dominated"
        number = f"deep share, last {last} of {len(of.layers)} layers"
        yield claim(text, number, share[:, -last:].mean(1), 0.5, True)
        rise = of.in_band(share, "late") - of.in_band(share, "middle")
        yield claim("deep share rises to the end", "late - middle band", rise, 0, True)
        cosine = of.in_band(of.means["cosine"], "middle")
        yield claim("the paths do different things", "cosine, middle band", cosine, 0.5, False)
    if {"early", "late"} <= of.bands.keys():
        text = "gates polarise with depth"
        rise = of.in_band(difference, "late") - of.in_band(difference, "early")
        yield claim(text, "|g_d - g_w|, late - early band", rise, 0, True)
        if committed[0].any():  # where no token is in a corner, corners say nothing
            rise = of.in_band(committed, "late") - of.in_band(committed, "early")
            number = f"tokens with gates above {1 - CORNER:g} and below {CORNER:g}"
            yield claim(text, f"{number}, late - early band", rise, 0, True)
    leanings = {
        "arithmetic": ("arithmetic (NUM, SYM) leans deep", True),
        "structure": ("SPACE, PUNCT, SYM lean deep", True),
        "function": ("ADJ, ADV, PART, PRON, VERB lean wide", False),
        "closed-class": ("function words (closed classes) lean wide", False),
    }
    for name, (text, above) in leanings.items():
        values = of.class_differences[name]
        if np.isfinite(values[0]).all():
            number = "its deep share - that of other tokens"
            yield claim(text, number, values.mean(1), 0, above)


def _aligned(one: str, other: str, of_one: Statistics, of_other: Statistics) -> Iterator[Claim]:
    first, second = _after_anchor(of_one), _after_anchor(of_other)
    assert first is not None
    assert second is not None
    # Where both have enough sequences; the same tokens of both, counted from the anchor.
    known = np.isfinite(first[0, :, 0]) & np.isfinite(second[0, :, 0])
    if not known.any():
        return
    gap = np.nanmean(first[:, known] - second[:, known], axis=1)
    few = min(of_one, of_other, key=lambda each: each.sequences)
    bands = {"late": of_one.in_band(gap, "late"), "all": gap.mean(1)}
    for which, values in bands.items():
        text = f"{one} is deeper than {other} after the anchor, in {which} layers"
        number = f"mean of {known.sum()} positions' deep share, {one} - {other}"
        yield Claim(text, f"{one}, {other}", number, *_ends(few, values), 0, True)


def _same_order(one: str, other: str, of_one: Statistics, of_other: Statistics) -> Iterator[Claim]:
    common = sorted(set(of_one.known_tags) & set(of_other.known_tags))
    if len(common) < 3:
        return
    ranks = [
        rankdata(each.tag_means[:, common].mean(2), axis=1, nan_policy="propagate")
        for each in (of_one, of_other)
    ]
    few = min(of_one, of_other, key=lambda each: each.sequences)
    number = "rank correlation"
    text = "parts of speech have one order in all texts"
    yield Claim(text, f"{one}, {other}", number, *_ends(few, _correlation(*ranks)), 0.5, True)


def _correlation(one: Floats, other: Floats) -> Floats:
    """Of each row with the same row of the other, (R,)."""
    one, other = (each - each.mean(1, keepdims=True) for each in (one, other))
    return np.asarray((one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1)))


def _after_anchor(of: Statistics) -> Floats | None:
    """Deep share at the offsets after the anchor, (R, O, L); None where no sequence has one."""
    after = of.aligned[:, of.offsets > 0]
    return after if np.isfinite(after[0]).any() else None


def _ends(of: Statistics, values: Floats) -> tuple[float, float, float]:
    found = of.estimate(values)
    return tuple(  # type: ignore[return-value]
        float("nan") if found[name] is None else found[name] for name in ("mean", "low", "high")
    )
