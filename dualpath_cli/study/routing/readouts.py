"""Read-outs of every token in every layer with gates, and their sums over a source.

A layer of the core has a place for each repetition, in the order of a forward pass.

Each sum is kept 1 + 1,000 times, first plain, then resampled (`report/bootstrap.py`).
Every statistic is computed from all of these (`summary.py`), so memory does not grow
with the text.

Shapes: B sequences, T positions, L places of layers with gates, K loops, N repetitions
of the core, C experts of a token, R 1 + resamples, P parts of speech, Q TAG_READOUTS,
E experts.
"""

import math
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import Strategy

from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.report.bootstrap import RESAMPLES, Floats
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.study.parts_of_speech import UPOS

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
TAG_READOUTS = ("deep_share", "gate_deep", "gate_wide", "expected_loops")
"""The `READOUTS` that are summed by part of speech, too."""
STEP_READOUTS = {"step_weights": 0.0, "step_sizes": math.nan, "step_cosines": math.nan}
"""Fields of LayerTrace, each K numbers; the value fills up layers of fewer steps."""
EXPERT_READOUTS = ("experts", "expert_weights")
"""Fields of LayerTrace, each C numbers, of layers whose wide path has experts."""
CORE_READOUTS = {
    "core_weights": "step_weights",
    "core_sizes": "step_sizes",
    "core_cosines": "step_cosines",
}
"""Read-outs of the core's repetitions, N numbers each: the fields of its LayerTrace."""

Label = int | str  # of a place, behind the word layer: 5, or `5, r 2` in a core


class GatedPlace(NamedTuple):
    """An application of a layer with gates."""

    layer: int  # from 0
    repetition: int | None  # of the core, from 1; None where no layers repeat

    @property
    def label(self) -> Label:
        if self.repetition is None:
            return self.layer
        return f"{self.layer}, r {self.repetition}"


def gated_places(config: ModelConfig) -> list[GatedPlace]:
    """The applications of layers with gates, in the order of a forward pass."""
    places = []
    for layer, repetition in config.applications():
        repeats = config.layers[layer].core_loops > 1
        if config.block_kinds[layer] == "dual":
            repetition_from_1 = repetition + 1 if repeats else None
            places.append(GatedPlace(layer, repetition_from_1))
    return places


def facts_of_places(config: ModelConfig) -> dict[str, list[int | None]]:
    """The layers of places; where layers repeat, also their repetitions."""
    places = gated_places(config)
    facts: dict[str, list[int | None]] = {"layers": [place.layer for place in places]}
    if core_repetitions(config):
        facts["repetitions"] = [place.repetition for place in places]
    return facts


def core_repetitions(config: ModelConfig) -> int:
    """R; 0 where no layers repeat."""
    return config.core_loops if config.core_loops > 1 else 0


def most_steps(config: ModelConfig) -> int:
    """The largest K of the layers with gates."""
    return max(layer.loops for layer in config.layers if layer.block == "dual")


def most_experts(config: ModelConfig) -> int:
    """C, the experts of a token in a layer with gates; 0 if all of them are dense."""
    return config.top_k if any(experts_by_place(config)) else 0


def _gated_layers(trace: RoutingTrace) -> list[LayerTrace]:
    """The traces of places."""
    return [layer for layer in trace.layers if layer.gate_deep is not None]


def dual_layers(trace: RoutingTrace, loops: int) -> torch.Tensor:
    """The read-outs of the layers with gates: (B, T, L, READOUTS and K STEP_READOUTS
    each); `loops` is K."""
    layers = []
    for layer in _gated_layers(trace):
        values = [getattr(layer, name) for name in READOUTS]
        columns = [torch.stack(values, -1)]
        for name, blank in STEP_READOUTS.items():
            own_BTK = getattr(layer, name)
            missing = loops - own_BTK.shape[-1]
            padded_BTK = F.pad(own_BTK, (0, missing), value=blank)
            columns.append(padded_BTK)
        layers.append(torch.cat(columns, -1))

    return torch.stack(layers, 2)


def experts_of(trace: RoutingTrace, chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in the layers with gates, and their weights: (B, T, L,
    C) each, -1 and nan in a dense layer; `chosen` is C."""
    dual = _gated_layers(trace)
    gate_BT = dual[0].gate_deep
    assert gate_BT is not None
    shape = (*gate_BT.shape, len(dual), chosen)
    chosen_BTLC = torch.full(shape, -1, device=gate_BT.device)
    weights_BTLC = torch.full(shape, math.nan, device=gate_BT.device)
    for place, layer in enumerate(dual):
        if layer.experts is not None and layer.expert_weights is not None:
            chosen_BTLC[..., place, :] = layer.experts
            weights_BTLC[..., place, :] = layer.expert_weights

    return chosen_BTLC, weights_BTLC


def core_steps(trace: RoutingTrace) -> torch.Tensor:
    """The read-outs of the core's repetitions, (B, T, CORE_READOUTS, N)."""
    values = [getattr(trace.core, field) for field in CORE_READOUTS.values()]
    return torch.stack(values, 2)


def experts_by_place(config: ModelConfig) -> list[int]:
    """The number of experts of each place, (L,); 0 is a dense wide path."""
    return [config.layers[place.layer].n_experts for place in gated_places(config)]


def by_name(values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The read-outs in an array of `dual_layers`, (..., columns), by name: (...) or
    (..., K)."""
    found = {name: values[..., column] for column, name in enumerate(READOUTS)}
    loops = (values.shape[-1] - len(READOUTS)) // len(STEP_READOUTS)
    for place, name in enumerate(STEP_READOUTS):
        start = len(READOUTS) + place * loops
        found[name] = values[..., start : start + loops]

    return found


def is_text(
    tokens: torch.Tensor, targets: torch.Tensor, bytes_of_token: torch.Tensor
) -> torch.Tensor:
    """Which tokens of a batch are text, (B, T): end-of-text is not.

    `bytes_of_token` is 0 for special tokens.
    """
    # A token that was not a target is padding, or the first of a window.
    is_target = targets[:, :-1] != IGNORE
    has_bytes = bytes_of_token[tokens[:, 1:]] > 0
    text_BT = torch.zeros_like(tokens, dtype=torch.bool)
    text_BT[:, 1:] = is_target & has_bytes
    return text_BT


Sums = dict[str, Floats]  # the sums of `RoutingSums` by name

GATE_BINS = 64
CONTRIBUTION_BINS, CONTRIBUTION_END = 256, 8.0
"""Of log(1 + g |update|); larger numbers count in the last bin."""


def columns(loops: int) -> tuple[str, ...]:
    """Names of the numbers of `dual_layers`: for step k `step_k` is the weight."""
    kinds = ("step", "step_size", "step_cosine")  # as in STEP_READOUTS
    steps = range(1, loops + 1)
    return (*READOUTS, *(f"{kind}_{k}" for kind in kinds for k in steps))


class RoutingSums:
    """Sums over the tokens of one source, on this rank."""

    def __init__(
        self,
        n_layers: int,
        loops: int,
        experts: int,
        device: torch.device,
        repetitions: int = 0,
    ) -> None:
        """`n_layers` counts the places of layers with gates; `experts` is the largest
        number in a layer, `repetitions` that of `core_repetitions`."""
        resamples = 1 + RESAMPLES
        shapes = {
            "tokens": (resamples,),
            "sums": (resamples, n_layers, len(columns(loops))),
            "gate_density": (n_layers, GATE_BINS, GATE_BINS),  # deep, wide
            "contribution_density": (n_layers, CONTRIBUTION_BINS, CONTRIBUTION_BINS),
            "tag_tokens": (resamples, len(UPOS)),
            # 9 MB with 16 layers
            "tag_sums": (resamples, len(UPOS), n_layers, len(TAG_READOUTS)),
            # A token counts once for each of its experts.
            "expert_tokens": (resamples, n_layers, experts),
        }
        if repetitions:
            shapes["core_sums"] = (resamples, len(CORE_READOUTS), repetitions)
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
        core: torch.Tensor | None = None,
    ) -> None:
        """Adds a batch.

        `values` is of `dual_layers`, `chosen` of `experts_of`, `core` of `core_steps`;
        `text` (B, T) is True at tokens that count; `weights` (B, R) are 0 for a
        sequence that only fills up the batch; `tags` (B, T) are places in UPOS, -1
        without one.
        """
        sums = self._sums
        # What is not text may be nan, which times 0 would stay nan.
        values = torch.where(text[..., None, None], values.double(), 0)
        tokens_B = text.double().sum(1)
        values_BLC = values.sum(1)
        sums["tokens"] += weights.T @ tokens_B
        sums["sums"] += torch.einsum("br,blc->rlc", weights, values_BLC)

        # Densities are drawn without intervals, and so are not resampled.
        g_d, g_w, norm_d, norm_w = values[..., :4].unbind(-1)
        wide = torch.log1p(g_w * norm_w)
        deep = torch.log1p(g_d * norm_d)
        sums["gate_density"] += _density(g_w[text], g_d[text], GATE_BINS, 1.0)
        sums["contribution_density"] += _density(
            wide[text], deep[text], CONTRIBUTION_BINS, CONTRIBUTION_END
        )

        places_P = torch.arange(len(UPOS), device=tags.device)
        text_tags_BT = torch.where(text, tags, -1)
        has_tag_BTP = (text_tags_BT[..., None] == places_P).double()
        columns_Q = [READOUTS.index(name) for name in TAG_READOUTS]
        values_BTLQ = values[..., columns_Q]
        tag_values_BPLQ = torch.einsum("btp,btlq->bplq", has_tag_BTP, values_BTLQ)
        sums["tag_tokens"] += weights.T @ has_tag_BTP.sum(1)
        sums["tag_sums"] += torch.einsum("br,bplq->rplq", weights, tag_values_BPLQ)

        if "core_sums" in sums:
            assert core is not None
            core_BTCN = torch.where(text[..., None, None], core.double(), 0)
            core_BCN = core_BTCN.sum(1)
            sums["core_sums"] += torch.einsum("br,bcn->rcn", weights, core_BCN)

        # One expert at a time: a dimension of experts would take much memory.
        for expert in range(sums["expert_tokens"].shape[-1]):
            takes_BTL = (chosen == expert).any(-1)
            counts_BL = (text[..., None] & takes_BTL).double().sum(1)
            sums["expert_tokens"][..., expert] += weights.T @ counts_BL

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
    n_layers = wide.shape[-1]
    layers = torch.arange(n_layers, device=wide.device)
    deep_bin = _bin(deep, bins, end)
    wide_bin = _bin(wide, bins, end)

    # One number for each layer and pair of bins, so that one call counts all.
    cells = (layers * bins + deep_bin) * bins + wide_bin
    n_cells = n_layers * bins**2
    counts = torch.bincount(cells.flatten(), minlength=n_cells)
    return counts.reshape(n_layers, bins, bins).double()
