"""Means over one source's tokens, with intervals: by layer, part of speech and class.

Every statistic is computed from all resamples of the sums (`readouts.py`).

Shapes: L places of layers with gates, R 1 + resamples, N repetitions of the core, P
parts of speech, Q TAG_READOUTS, E experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dualpath_cli.report.bootstrap import Floats, interval
from dualpath_cli.study.parts_of_speech import CLASSES, UPOS
from dualpath_cli.study.routing.readouts import (
    CORE_READOUTS,
    TAG_READOUTS,
    Label,
    Sums,
    columns,
)

# A part of speech with fewer tokens in a source is left out, as in the paper
LEAST_TOKENS = 10


@dataclass(frozen=True)
class Summary:
    """Means of one source, or of several with equal weight; nan where there are no
    tokens."""

    layers: tuple[Label, ...]  # names of the places
    means: Mapping[str, Floats]  # of each read-out, and the load of experts, (R, L)
    # of each of `TAG_READOUTS` by part of speech, (R, P, L); nan where tokens are too
    # few
    tag_means: Mapping[str, Floats]
    # deep share minus that of other tokens, (R, L)
    class_differences: Mapping[str, Floats]
    clusters: int  # documents or windows of the source; of several sources the least
    # of each of `CORE_READOUTS`, (R, N); empty where no layers repeat
    core: Mapping[str, Floats] = field(default_factory=dict)

    @classmethod
    def from_sums(cls, sums: Sums, layers: Sequence[Label], loops: int) -> "Summary":
        """The summary of one source; `loops` is the K of `columns`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means_RLC = sums["sums"] / sums["tokens"][:, None, None]
            tag_means_RPLQ = sums["tag_sums"] / sums["tag_tokens"][..., None, None]
            classes = {
                name: _class_difference(sums, upos) for name, upos in CLASSES.items()
            }

        too_few = sums["tag_tokens"][0] < LEAST_TOKENS
        tag_means_RPLQ[:, too_few] = np.nan
        tag_means = {
            name: tag_means_RPLQ[..., n] for n, name in enumerate(TAG_READOUTS)
        }
        means = {name: means_RLC[..., n] for n, name in enumerate(columns(loops))}
        return cls(
            layers=tuple(layers),
            means=means | expert_means(sums),
            tag_means=tag_means,
            class_differences=classes,
            clusters=int(sums["clusters"]),
            core=core_means(sums),
        )

    @classmethod
    def average(cls, summaries: Sequence["Summary"]) -> "Summary":
        """The mean over sources, each with equal weight."""
        first = summaries[0]
        means = {
            name: np.mean([summary.means[name] for summary in summaries], 0)
            for name in first.means
        }
        tag_means = {
            name: _mean_of_known([summary.tag_means[name] for summary in summaries])
            for name in first.tag_means
        }
        classes = {}
        for name in CLASSES:
            differences = [summary.class_differences[name] for summary in summaries]
            classes[name] = _mean_of_known(differences)

        core = {
            name: np.mean([summary.core[name] for summary in summaries], 0)
            for name in first.core
        }
        return cls(
            layers=first.layers,
            means=means,
            tag_means=tag_means,
            class_differences=classes,
            clusters=min(summary.clusters for summary in summaries),
            core=core,
        )

    @property
    def axis(self) -> list[int]:
        """The places on an axis: their layers, or 0, 1 .. where layers repeat."""
        numbers = [label for label in self.layers if isinstance(label, int)]
        if len(numbers) == len(self.layers):
            return numbers
        return list(range(len(self.layers)))

    @property
    def expected_core_loops(self) -> Floats:
        """The expected repetitions of the core, (R,)."""
        weights_RN = self.core["core_weights"]
        return np.asarray(weights_RN @ np.arange(1, weights_RN.shape[1] + 1))

    @cached_property
    def bands(self) -> dict[str, list[int]]:
        """Early, middle and late layers, as places in `layers`: thirds, the last one
        the largest.

        In the paper layers 0 to 4, 5 to 9 and 10 to 15. Two layers are early and late.
        """
        count = len(self.layers)
        first_end = count // 3
        second_end = 2 * count // 3
        if count < 3:
            first_end = second_end = count // 2

        places = list(range(count))
        bands = {
            "early": places[:first_end],
            "middle": places[first_end:second_end],
            "late": places[second_end:],
        }
        return {name: band for name, band in bands.items() if band}

    def layers_text(self, places: Sequence[int]) -> str:
        """Such as `layer 3`, `layers 2 to 9` or `layers 2 to 4, r 1`."""
        first = self.layers[places[0]]
        last = self.layers[places[-1]]
        return f"layer {first}" if first == last else f"layers {first} to {last}"

    def interval(self, values: Floats) -> tuple[Floats, Floats]:
        """The ends of the 95 % interval of values (R, ...); nan where there is no
        interval."""
        return interval(values, self.clusters)

    def estimate(self, values: Floats) -> dict[str, Any]:
        """Mean and interval of values (R, ...) for JSON: None for nan."""
        low, high = self.interval(values)
        return {
            "mean": for_json(values[0]),
            "low": for_json(low),
            "high": for_json(high),
        }

    def report(self) -> dict[str, Any]:
        """All means with intervals, for JSON: lists are over the places, those of the
        core over its repetitions."""
        tags = {UPOS[place]: self._report_of_tag(place) for place in self.known_tags}
        classes = {}
        for name, values in self.class_differences.items():
            if np.isfinite(values[0]).all():
                classes[name] = {
                    "difference": self.estimate(values.mean(1)),
                    "layers": self.estimate(values),
                }

        share = self.means["deep_share"]
        layers = {name: self.estimate(values) for name, values in self.means.items()}
        report = {
            "mean_over_layers": {"deep_share": self.estimate(share.mean(1))},
            "layers": layers,
            "upos": tags,
            "classes": classes,
        }
        if self.core:
            core = {name: self.estimate(values) for name, values in self.core.items()}
            core["expected_core_loops"] = self.estimate(self.expected_core_loops)
            report["core"] = core
        return report

    def _report_of_tag(self, place: int) -> dict[str, Any]:
        """Each of `TAG_READOUTS` of a place in UPOS: `NAME` is its mean over layers,
        `NAME_layers` by layer; the deep share is by layer in `layers`."""
        report = {}
        for name, means_RPL in self.tag_means.items():
            values_RL = means_RPL[:, place]
            by_layer = "layers" if name == "deep_share" else f"{name}_layers"
            report[name] = self.estimate(values_RL.mean(1))
            report[by_layer] = self.estimate(values_RL)
        return report

    @property
    def known_tags(self) -> list[int]:
        """Places in UPOS of the tags with enough tokens, by growing deep share."""
        means = self.tag_means["deep_share"][0].mean(1)
        return [int(place) for place in np.argsort(means) if np.isfinite(means[place])]


def _class_difference(sums: Sums, upos: Sequence[str]) -> Floats:
    """Mean deep share of the tags minus that of all other tagged tokens, (R, L)."""
    tokens_RP = sums["tag_tokens"]
    shares_RPL = sums["tag_sums"][..., TAG_READOUTS.index("deep_share")]
    inside_P = np.isin(UPOS, upos)
    outside_P = ~inside_P

    fewest = min(tokens_RP[0, inside_P].sum(), tokens_RP[0, outside_P].sum())
    if fewest < LEAST_TOKENS:
        return np.full((len(tokens_RP), shares_RPL.shape[-1]), np.nan)

    def mean(chosen_P: npt.NDArray[np.bool_]) -> Floats:
        tokens_R = tokens_RP[:, chosen_P].sum(1)
        return np.asarray(shares_RPL[:, chosen_P].sum(1) / tokens_R[:, None])

    return np.asarray(mean(inside_P) - mean(outside_P))


def _mean_of_known(arrays: Sequence[Floats]) -> Floats:
    """Mean over the sources whose plain value, the first row, is a number."""
    stacked = np.stack(arrays)
    known = np.isfinite(stacked[:, :1])
    with np.errstate(invalid="ignore"):
        means = np.where(known, stacked, 0).sum(0) / known.sum(0)
    return np.asarray(means)


def for_json(values: npt.NDArray[np.floating]) -> Any:
    """A list or number, with None for nan and infinities."""
    objects = np.asarray(values, dtype=object)
    objects[~np.isfinite(values)] = None
    return objects.tolist()


def core_means(sums: Sums) -> dict[str, Floats]:
    """The means of the core's repetitions by name, (R, N) each; empty where no layers
    repeat."""
    if "core_sums" not in sums:
        return {}

    with np.errstate(divide="ignore", invalid="ignore"):
        means_RCN = sums["core_sums"] / sums["tokens"][:, None, None]
    return {name: means_RCN[:, place] for place, name in enumerate(CORE_READOUTS)}


def expert_loads(sums: Sums) -> Floats:
    """Each expert's part of a layer's choices, (R, L, E): 0 beyond the layer's
    experts."""
    tokens_RLE = sums["expert_tokens"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(tokens_RLE / tokens_RLE.sum(-1, keepdims=True))


def expert_means(sums: Sums) -> dict[str, Floats]:
    """The load of experts by name, (R, L) each, as metrics.csv has it of training.

    nan in layers without experts; empty if no layer has any.
    """
    experts_L = sums["experts"]
    if not experts_L.any():
        return {}

    load_RLE = expert_loads(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy_RL = entr(load_RLE).sum(-1) / np.log(experts_L)
    means = {
        "load_max": load_RLE.max(-1) * experts_L,
        "load_entropy": np.where(experts_L > 1, entropy_RL, 1.0),
        "idle_experts": experts_L - (load_RLE > 0).sum(-1),
    }
    has_experts_L = experts_L > 0
    return {
        name: np.where(has_experts_L, values, np.nan) for name, values in means.items()
    }
