"""Means and differences from a source's sums, and their intervals.

Shapes: R 1 + resamples, L layers with gates, C columns, P parts of speech, O offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath_cli.statistics.bootstrap import Floats, interval
from dualpath_cli.study.classes import UPOS, TokenClass, measured
from dualpath_cli.study.routing.experts import expert_means
from dualpath_cli.study.routing.sums import AFTER, BEFORE, SHARE_BINS, Sums, columns

LEAST_TOKENS = 10
"""A part of speech with fewer tokens in a source is left out, as in the paper."""
LEAST_ALIGNED = 10
"""An offset that fewer sequences reach is left out as well."""
MIDDLE = (2, 10)
"""The layers of sixteen, from and to, that the paper calls the middle of the network."""


@dataclass(frozen=True)
class Summary:
    """The sums of one source, or of several with equal weight, as means; nan where nothing is."""

    layers: tuple[int, ...]
    """Numbers of the layers with gates."""
    means: Mapping[str, Floats]
    """Of each column, and of experts where there are any: (R, L)."""
    tag_means: Floats
    """Deep share by part of speech, (R, P, L); nan where a source has too few tokens."""
    class_differences: Mapping[TokenClass, Floats]
    """Deep share of a class of tokens less that of all other tokens, (R, L)."""
    aligned: Floats
    """Deep share by offset from the anchor, (R, O, L); nan where too few sequences reach."""
    clusters: int
    """Documents, or else windows, of the source; the least of several."""
    n_layers: int
    """Layers of the model, those without gates included."""

    @classmethod
    def from_sums(cls, sums: Sums, layers: Sequence[int], loops: int, n_layers: int) -> "Summary":
        with np.errstate(divide="ignore", invalid="ignore"):
            means_RLC = sums["sums"] / sums["tokens"][:, None, None]
            tag_means = sums["tag_sums"] / sums["tag_tokens"][..., None]
            aligned = sums["aligned_sums"] / sums["aligned_tokens"][..., None]
            classes = {chosen: _difference(sums, chosen.upos) for chosen in measured()}
        tag_means[:, sums["tag_tokens"][0] < LEAST_TOKENS] = np.nan
        aligned[:, sums["aligned_tokens"][0] < LEAST_ALIGNED] = np.nan
        means = {name: means_RLC[..., number] for number, name in enumerate(columns(loops))}
        return cls(
            tuple(layers),
            means | expert_means(sums),
            tag_means, classes, aligned, int(sums["clusters"]), n_layers,
        )  # fmt: skip

    @classmethod
    def average(cls, several: Sequence["Summary"]) -> "Summary":
        """Averages sources, or runs of as many layers, each with the same weight."""
        first = several[0]
        return cls(
            first.layers,
            {
                name: np.mean([one.means[name] for one in several], 0)
                for name in first.means
                if all(name in one.means for one in several)
            },
            _mean_where_any([one.tag_means for one in several]),
            {
                chosen: _mean_where_any([one.class_differences[chosen] for one in several])
                for chosen in first.class_differences
            },
            _mean_where_any([one.aligned for one in several]),
            min(one.clusters for one in several),
            first.n_layers,
        )

    @property
    def loops(self) -> int:
        """The largest number of steps of a layer; of several, of the one with the least."""
        return sum(name.startswith("step_size_") for name in self.means)

    @cached_property
    def bands(self) -> dict[str, list[int]]:
        """Early, middle and late layers, as places in `layers`: thirds, the last one the largest.

        In the paper layers 0 to 4, 5 to 9 and 10 to 15. Two layers are early and late.
        """
        count = len(self.layers)
        ends = [count // 3, 2 * count // 3] if count >= 3 else [count // 2, count // 2]
        places = list(range(count))
        bands = {"early": places[: ends[0]], "middle": places[ends[0] : ends[1]],
                 "late": places[ends[1] :]}  # fmt: skip
        return {name: band for name, band in bands.items() if band}

    @property
    def layers_of_bands(self) -> dict[str, list[int]]:
        return {name: [self.layers[place] for place in band] for name, band in self.bands.items()}

    @property
    def middle(self) -> list[int]:
        """Places in `layers` of those that lie in the paper's middle by more than half."""
        first, end = (self.n_layers * sixteenth / 16 for sixteenth in MIDDLE)
        return [
            place
            for place, layer in enumerate(self.layers)
            if min(layer + 1, end) - max(layer, first) > 0.5
        ]

    @property
    def last(self) -> list[int]:
        """Places in `layers` of the model's last eighth, two of sixteen, one at least."""
        first = self.n_layers - max(1, self.n_layers // 8)
        return [place for place, layer in enumerate(self.layers) if layer >= first]

    def is_last(self, place: int) -> bool:
        """Whether it is the model's last layer, whose output the final norm takes the scale of."""
        return self.layers[place] == self.n_layers - 1

    def named(self, places: Sequence[int]) -> str:
        """Such as `layer 3` or `layers 2 to 9`."""
        first, last = self.layers[places[0]], self.layers[places[-1]]
        return f"layer {first}" if first == last else f"layers {first} to {last}"

    def interval(self, values: Floats) -> tuple[Floats, Floats]:
        """Returns the ends of the 95 % interval of values (R, ...), nan for what is not known."""
        return interval(values, self.clusters)

    def estimate(self, values: Floats) -> dict[str, Any]:
        """Mean and interval of values (R, ...), as JSON has them: None where nothing is known."""
        low, high = self.interval(values)
        return {"mean": plain(values[0]), "low": plain(low), "high": plain(high)}

    def report(self) -> dict[str, Any]:
        """Everything with its interval, as JSON has it: lists are over the layers with gates."""
        share = self.means["deep_share"]
        return {
            "mean_over_layers": {"deep_share": self.estimate(share.mean(1))},
            "layers": {name: self.estimate(values) for name, values in self.means.items()},
            "upos": {
                UPOS[place]: {
                    "deep_share": self.estimate(self.tag_means[:, place].mean(1)),
                    "layers": self.estimate(self.tag_means[:, place]),
                }
                for place in self.known_tags
            },
            "classes": {
                chosen.name: {
                    "difference": self.estimate(values.mean(1)),
                    "layers": self.estimate(values),
                }
                for chosen, values in self.class_differences.items()
                if np.isfinite(values[0]).all()
            },
        }

    @property
    def known_tags(self) -> list[int]:
        """Places in UPOS of the tags with enough tokens, by growing deep share."""
        mean = self.tag_means[0].mean(1)
        return [int(place) for place in np.argsort(mean) if np.isfinite(mean[place])]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Offsets from the anchor, (O,)."""
        return np.arange(-BEFORE, AFTER + 1)


def tag_box(shares: npt.NDArray[np.float64]) -> dict[str, float]:
    """Quantiles of a histogram of deep shares, (SHARE_BINS,), to half a bin: what a box shows."""
    reached = np.cumsum(shares) / shares.sum()
    middles = (np.arange(SHARE_BINS) + 0.5) / SHARE_BINS
    names = {"whislo": 0.05, "q1": 0.25, "med": 0.5, "q3": 0.75, "whishi": 0.95}
    return {name: float(middles[np.searchsorted(reached, share)]) for name, share in names.items()}


def _difference(sums: Sums, upos: Sequence[str]) -> Floats:
    """Mean deep share of the tags less that of all other tagged tokens, (R, L)."""
    member = np.isin(UPOS, upos)
    tokens, total = sums["tag_tokens"], sums["tag_sums"]
    if min(tokens[0, member].sum(), tokens[0, ~member].sum()) < LEAST_TOKENS:
        return np.full((len(tokens), total.shape[-1]), np.nan)
    inside, outside = (
        total[:, chosen].sum(1) / tokens[:, chosen].sum(1)[:, None] for chosen in (member, ~member)
    )
    return np.asarray(inside - outside)


def _mean_where_any(arrays: Sequence[Floats]) -> Floats:
    """Mean over those sources that have a value at all, as their first row says."""
    stacked = np.stack(arrays)
    known = np.isfinite(stacked[:, :1])
    with np.errstate(invalid="ignore"):
        total = np.where(known, stacked, 0).sum(0) / known.sum(0)
    return np.asarray(total)


def plain(values: npt.NDArray[np.floating]) -> Any:
    """A list or number, with None for what is no number."""
    objects = np.asarray(values, dtype=object)
    objects[~np.isfinite(values)] = None
    return objects.tolist()
