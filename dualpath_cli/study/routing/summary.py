"""Means and differences from a source's sums, with intervals; the load of experts.

Shapes: R 1 + resamples, L layers with gates, C columns, P parts of speech, E experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dualpath_cli.report.bootstrap import Floats, interval
from dualpath_cli.study.parts_of_speech import CLASSES, UPOS
from dualpath_cli.study.routing.readouts import Sums, columns


def expert_loads(sums: Sums) -> Floats:
    """Each expert's part of a layer's choices, (R, L, E): 0 beyond the layer's experts."""
    tokens = sums["expert_tokens"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(tokens / tokens.sum(-1, keepdims=True))


def expert_means(sums: Sums) -> dict[str, Floats]:
    """The load of experts by name, (R, L) each, as metrics.csv has it of training.

    nan in layers without experts; empty if no layer has any.
    """
    load, experts = expert_loads(sums), sums["experts"]
    if not experts.any():
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.where(experts > 1, entr(load).sum(-1) / np.log(experts), 1.0)
    idle = experts - (load > 0).sum(-1)
    means = {"load_max": load.max(-1) * experts, "load_entropy": entropy, "idle_experts": idle}
    return {name: np.where(experts > 0, values, np.nan) for name, values in means.items()}


LEAST_TOKENS = 10  # A part of speech with fewer tokens in a source is left out, as in the paper


@dataclass(frozen=True)
class Summary:
    """Means of one source, or of several with equal weight; nan where there are no tokens."""

    layers: tuple[int, ...]  # numbers of the layers with gates
    means: Mapping[str, Floats]  # of each read-out, and the load of experts, (R, L)
    tag_means: Floats  # deep share by part of speech, (R, P, L); nan where tokens are too few
    class_differences: Mapping[str, Floats]  # deep share less that of other tokens, (R, L)
    clusters: int  # documents or windows of the source; of several sources the least

    @classmethod
    def from_sums(cls, sums: Sums, layers: Sequence[int], loops: int) -> "Summary":
        with np.errstate(divide="ignore", invalid="ignore"):
            means_RLC = sums["sums"] / sums["tokens"][:, None, None]
            tag_means = sums["tag_sums"] / sums["tag_tokens"][..., None]
            classes = {name: _difference(sums, upos) for name, upos in CLASSES.items()}
        tag_means[:, sums["tag_tokens"][0] < LEAST_TOKENS] = np.nan
        means = {name: means_RLC[..., number] for number, name in enumerate(columns(loops))}
        return cls(
            tuple(layers), means | expert_means(sums), tag_means, classes, int(sums["clusters"])
        )

    @classmethod
    def average(cls, several: Sequence["Summary"]) -> "Summary":
        first = several[0]
        means = {name: np.mean([one.means[name] for one in several], 0) for name in first.means}
        classes = {
            name: _mean_where_any([one.class_differences[name] for one in several])
            for name in CLASSES
        }
        return cls(
            first.layers, means, _mean_where_any([one.tag_means for one in several]), classes,
            min(one.clusters for one in several),
        )  # fmt: skip

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

    def named(self, places: Sequence[int]) -> str:
        """Such as `layer 3` or `layers 2 to 9`."""
        first, last = self.layers[places[0]], self.layers[places[-1]]
        return f"layer {first}" if first == last else f"layers {first} to {last}"

    def interval(self, values: Floats) -> tuple[Floats, Floats]:
        """The ends of the 95 % interval of values (R, ...); nan where there is no interval."""
        return interval(values, self.clusters)

    def estimate(self, values: Floats) -> dict[str, Any]:
        """Mean and interval of values (R, ...) for JSON: None for nan."""
        low, high = self.interval(values)
        return {"mean": plain(values[0]), "low": plain(low), "high": plain(high)}

    def report(self) -> dict[str, Any]:
        """All means with intervals, for JSON: lists are over the layers with gates."""
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
                name: {
                    "difference": self.estimate(values.mean(1)),
                    "layers": self.estimate(values),
                }
                for name, values in self.class_differences.items()
                if np.isfinite(values[0]).all()
            },
        }

    @property
    def known_tags(self) -> list[int]:
        """Places in UPOS of the tags with enough tokens, by growing deep share."""
        mean = self.tag_means[0].mean(1)
        return [int(place) for place in np.argsort(mean) if np.isfinite(mean[place])]


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
    """Mean over the sources whose plain value, the first row, is a number."""
    stacked = np.stack(arrays)
    known = np.isfinite(stacked[:, :1])
    with np.errstate(invalid="ignore"):
        total = np.where(known, stacked, 0).sum(0) / known.sum(0)
    return np.asarray(total)


def plain(values: npt.NDArray[np.floating]) -> Any:
    """A list or number, with None for nan and infinities."""
    objects = np.asarray(values, dtype=object)
    objects[~np.isfinite(values)] = None
    return objects.tolist()
