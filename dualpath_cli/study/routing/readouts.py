"""Read-outs of every token in every layer with gates, their sums over a source's
tokens, and means.

Each sum is kept 1 + 1,000 times, first plain, then resampled (`report/bootstrap.py`).
Every statistic is computed from all of these, so memory does not grow with the text.

Shapes: B sequences, T positions, L layers with gates, K loops, C experts of a token, R
1 + resamples, P parts of speech, E experts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import Strategy
from scipy.special import entr

from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.report.bootstrap import RESAMPLES, Floats, interval
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.study.parts_of_speech import CLASSES, UPOS

READOUTS = (
    "gate_deep",
    "gate_wide",
    "update_deep",
    "update_wide",
    "cosine",
    "deep_share",
    "expected_loops",
)
"""Fields of LayerTrace, each a number for every token and layer."""
STEP_READOUTS = {"step_weights": 0.0, "step_sizes": math.nan, "step_cosines": math.nan}
"""Fields of LayerTrace, each K numbers; the value fills up layers of fewer steps."""
EXPERT_READOUTS = ("experts", "expert_weights")
"""Fields of LayerTrace, each C numbers, of layers whose wide path has experts."""


def gated_layers(config: ModelConfig) -> tuple[int, ...]:
    return tuple(n for n, kind in enumerate(config.block_kinds) if kind == "dual")


def most_steps(config: ModelConfig) -> int:
    """The largest K of the layers with gates."""
    return max(layer.loops for layer in config.layers if layer.block == "dual")


def dual_layers(trace: RoutingTrace) -> torch.Tensor:
    """The read-outs of the layers with gates: (B, T, L, READOUTS and K STEP_READOUTS
    each).

    K is the largest number of steps of a layer.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    loops = max(
        layer.step_weights.shape[-1] for layer in dual if layer.step_weights is not None
    )
    layers = []
    for layer in dual:
        values = [getattr(layer, name) for name in READOUTS]
        steps = ((getattr(layer, name), blank) for name, blank in STEP_READOUTS.items())
        padded = [F.pad(x, (0, loops - x.shape[-1]), value=blank) for x, blank in steps]
        layers.append(torch.cat([torch.stack(values, -1), *padded], -1))
    return torch.stack(layers, 2)


def experts_of(trace: RoutingTrace) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in the layers with gates, and their weights: (B, T, L,
    C) each.

    A dense layer has -1 and nan; C is 0 if all are dense.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    gates = [layer.gate_deep for layer in dual if layer.gate_deep is not None]
    most = max(
        0 if layer.experts is None else layer.experts.shape[-1] for layer in dual
    )
    chosen = torch.full((*gates[0].shape, len(dual), most), -1, device=gates[0].device)
    weights = torch.full(chosen.shape, math.nan, device=chosen.device)
    for place, layer in enumerate(dual):
        if layer.experts is not None and layer.expert_weights is not None:
            own = layer.experts.shape[-1]  # fewer where an override takes fewer
            chosen[..., place, :own] = layer.experts
            weights[..., place, :own] = layer.expert_weights
    return chosen, weights


def experts_by_layer(config: ModelConfig) -> list[int]:
    """The number of experts of each layer with gates, (L,); 0 is a dense wide path."""
    return [layer.n_experts for layer in config.layers if layer.block == "dual"]


def by_name(values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The read-outs in an array of `dual_layers`, (..., columns), by name: (...) or
    (..., K)."""
    split, loops = (
        len(READOUTS),
        (values.shape[-1] - len(READOUTS)) // len(STEP_READOUTS),
    )
    found = {name: values[..., column] for column, name in enumerate(READOUTS)}
    for place, name in enumerate(STEP_READOUTS):
        found[name] = values[..., split + place * loops : split + (place + 1) * loops]
    return found


def is_text(
    tokens: torch.Tensor, targets: torch.Tensor, bytes_of_token: torch.Tensor
) -> torch.Tensor:
    """Which tokens of a batch are text, (B, T): end-of-text is not.

    `bytes_of_token` is 0 for special tokens.
    """
    text_BT = torch.zeros_like(tokens, dtype=torch.bool)
    text_BT[:, 1:] = (targets[:, :-1] != IGNORE) & (bytes_of_token[tokens[:, 1:]] > 0)
    return text_BT


Sums = dict[str, npt.NDArray[np.float64]]  # the sums of `RoutingSums` by name

GATE_BINS = 64
CONTRIBUTION_BINS, CONTRIBUTION_END = 256, 8.0
"""Of log(1 + g |update|); larger numbers count in the last bin."""


def columns(loops: int) -> tuple[str, ...]:
    """Names of the numbers of `dual_layers`: for step k `step_k` is the weight."""
    kinds = ("step", "step_size", "step_cosine")  # as in STEP_READOUTS
    return (*READOUTS, *(f"{kind}_{k}" for kind in kinds for k in range(1, loops + 1)))


class RoutingSums:
    """Sums over the tokens of one source, on this rank."""

    def __init__(
        self, n_layers: int, loops: int, experts: int, device: torch.device
    ) -> None:
        """`n_layers` counts the layers with gates; `experts` is the largest number in a
        layer."""
        resamples = 1 + RESAMPLES
        shapes = {
            "tokens": (resamples,),
            "sums": (resamples, n_layers, len(columns(loops))),
            "gate_density": (n_layers, GATE_BINS, GATE_BINS),  # deep, wide
            "contribution_density": (n_layers, CONTRIBUTION_BINS, CONTRIBUTION_BINS),
            "tag_tokens": (resamples, len(UPOS)),
            "tag_sums": (resamples, len(UPOS), n_layers),  # of deep shares
            # A token counts once for each of its experts.
            "expert_tokens": (resamples, n_layers, experts),
        }
        self._sums = {
            name: torch.zeros(shape, dtype=torch.float64, device=device)
            for name, shape in shapes.items()
        }

    def update(
        self,
        values: torch.Tensor,
        chosen: torch.Tensor,
        text: torch.Tensor,
        weights: torch.Tensor,
        tags: torch.Tensor,
    ) -> None:
        """Adds a batch.

        `values` is of `dual_layers`, `chosen` of `experts_of`; `text` (B, T) is True at
        tokens that count; `weights` (B, R) are 0 for a sequence that only fills up the
        batch; `tags` (B, T) are places in UPOS, -1 without one.
        """
        sums = self._sums
        values = torch.where(text[..., None, None], values.double(), 0)
        g_d, g_w, norm_d, norm_w = values[..., :4].unbind(-1)
        sums["tokens"] += weights.T @ text.double().sum(1)
        sums["sums"] += torch.einsum("br,blc->rlc", weights, values.sum(1))
        sums["gate_density"] += _density(g_w[text], g_d[text], GATE_BINS, 1.0)
        sums["contribution_density"] += _density(
            torch.log1p(g_w * norm_w)[text],
            torch.log1p(g_d * norm_d)[text],
            CONTRIBUTION_BINS,
            CONTRIBUTION_END,
        )
        places = torch.arange(len(UPOS), device=tags.device)
        # (B, T, P)
        has_tag = (torch.where(text, tags, -1)[..., None] == places).double()
        sums["tag_tokens"] += weights.T @ has_tag.sum(1)
        share = values[..., READOUTS.index("deep_share")]
        of_tags = torch.einsum("btp,btl->bpl", has_tag, share)
        sums["tag_sums"] += torch.einsum("br,bpl->rpl", weights, of_tags)
        for expert in range(sums["expert_tokens"].shape[-1]):
            takes = (text[..., None] & (chosen == expert).any(-1)).double()
            sums["expert_tokens"][..., expert] += weights.T @ takes.sum(1)

    def compute(self, strategy: Strategy) -> Sums:
        """The sums over all ranks, by name."""
        return {
            name: strategy.reduce(values, reduce_op="sum").cpu().numpy()
            for name, values in self._sums.items()
        }


def _bin(values: torch.Tensor, bins: int, end: float) -> torch.Tensor:
    """The number of the bin between 0 and `end` that each value is in; 0 for nan."""
    inside = values.nan_to_num(nan=0.0, posinf=end).clamp(0, end)
    return (inside * (bins / end)).long().clamp(max=bins - 1)


def _density(
    wide: torch.Tensor, deep: torch.Tensor, bins: int, end: float
) -> torch.Tensor:
    """Counts pairs (tokens, L) in a square of bins for each layer: (L, deep, wide)."""
    layers = torch.arange(wide.shape[-1], device=wide.device)
    numbers = (layers * bins + _bin(deep, bins, end)) * bins + _bin(wide, bins, end)
    counts = torch.bincount(numbers.flatten(), minlength=len(layers) * bins**2)
    return counts.reshape(len(layers), bins, bins).double()


def expert_loads(sums: Sums) -> Floats:
    """Each expert's part of a layer's choices, (R, L, E): 0 beyond the layer's
    experts."""
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
    means = {
        "load_max": load.max(-1) * experts,
        "load_entropy": entropy,
        "idle_experts": idle,
    }
    return {
        name: np.where(experts > 0, values, np.nan) for name, values in means.items()
    }


# A part of speech with fewer tokens in a source is left out, as in the paper
LEAST_TOKENS = 10


@dataclass(frozen=True)
class Summary:
    """Means of one source, or of several with equal weight; nan where there are no
    tokens."""

    layers: tuple[int, ...]  # numbers of the layers with gates
    means: Mapping[str, Floats]  # of each read-out, and the load of experts, (R, L)
    # deep share by part of speech, (R, P, L); nan where tokens are too few
    tag_means: Floats
    # deep share less that of other tokens, (R, L)
    class_differences: Mapping[str, Floats]
    clusters: int  # documents or windows of the source; of several sources the least

    @classmethod
    def from_sums(cls, sums: Sums, layers: Sequence[int], loops: int) -> "Summary":
        with np.errstate(divide="ignore", invalid="ignore"):
            means_RLC = sums["sums"] / sums["tokens"][:, None, None]
            tag_means = sums["tag_sums"] / sums["tag_tokens"][..., None]
            classes = {name: _difference(sums, upos) for name, upos in CLASSES.items()}
        tag_means[:, sums["tag_tokens"][0] < LEAST_TOKENS] = np.nan
        means = {
            name: means_RLC[..., number] for number, name in enumerate(columns(loops))
        }
        return cls(
            tuple(layers),
            means | expert_means(sums),
            tag_means,
            classes,
            int(sums["clusters"]),
        )

    @classmethod
    def average(cls, several: Sequence["Summary"]) -> "Summary":
        first = several[0]
        means = {
            name: np.mean([one.means[name] for one in several], 0)
            for name in first.means
        }
        classes = {
            name: _mean_where_any([one.class_differences[name] for one in several])
            for name in CLASSES
        }
        return cls(
            first.layers,
            means,
            _mean_where_any([one.tag_means for one in several]),
            classes,
            min(one.clusters for one in several),
        )

    @cached_property
    def bands(self) -> dict[str, list[int]]:
        """Early, middle and late layers, as places in `layers`: thirds, the last one
        the largest.

        In the paper layers 0 to 4, 5 to 9 and 10 to 15. Two layers are early and late.
        """
        count = len(self.layers)
        ends = [count // 3, 2 * count // 3] if count >= 3 else [count // 2, count // 2]
        places = list(range(count))
        bands = {
            "early": places[: ends[0]],
            "middle": places[ends[0] : ends[1]],
            "late": places[ends[1] :],
        }
        return {name: band for name, band in bands.items() if band}

    def named(self, places: Sequence[int]) -> str:
        """Such as `layer 3` or `layers 2 to 9`."""
        first, last = self.layers[places[0]], self.layers[places[-1]]
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
        """All means with intervals, for JSON: lists are over the layers with gates."""
        share = self.means["deep_share"]
        return {
            "mean_over_layers": {"deep_share": self.estimate(share.mean(1))},
            "layers": {
                name: self.estimate(values) for name, values in self.means.items()
            },
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
        total[:, chosen].sum(1) / tokens[:, chosen].sum(1)[:, None]
        for chosen in (member, ~member)
    )
    return np.asarray(inside - outside)


def _mean_where_any(arrays: Sequence[Floats]) -> Floats:
    """Mean over the sources whose plain value, the first row, is a number."""
    stacked = np.stack(arrays)
    known = np.isfinite(stacked[:, :1])
    with np.errstate(invalid="ignore"):
        total = np.where(known, stacked, 0).sum(0) / known.sum(0)
    return np.asarray(total)


def for_json(values: npt.NDArray[np.floating]) -> Any:
    """A list or number, with None for nan and infinities."""
    objects = np.asarray(values, dtype=object)
    objects[~np.isfinite(values)] = None
    return objects.tolist()
