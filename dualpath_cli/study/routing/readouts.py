"""Read-outs of every token in every layer with gates, and their sums over a source's tokens.

Each sum is kept 1 + 1,000 times, first as it is, then resampled (`report/bootstrap.py`);
whatever is computed from sums is computed from all of them, in memory that stays fixed.

Shapes: B sequences, T positions, L layers with gates, K loops, C experts that a token takes, R 1 +
resamples, P parts of speech, E experts.
"""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torchmetrics import Metric

from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.report.bootstrap import RESAMPLES
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.study.parts_of_speech import UPOS

Values = TypeVar("Values", torch.Tensor, np.ndarray)

READOUTS = (
    "gate_deep", "gate_wide", "update_deep", "update_wide", "cosine", "deep_share",
    "expected_loops",
)  # fmt: skip
"""Fields of LayerTrace, each a number for every token and layer."""
STEP_READOUTS = {"step_weights": 0.0, "step_sizes": math.nan, "step_cosines": math.nan}
"""Fields of LayerTrace, each K numbers; the value stands for steps that a layer does not have."""
EXPERT_READOUTS = ("experts", "expert_weights")
"""Fields of LayerTrace, each C numbers, of layers whose wide path has experts."""
DEFINITION = "deep share = g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖) of a token, then averaged"
"""The caption of tables."""
STEP_DEFINITION = (
    "size = ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖, h_0 = x; cosine of h_k - h_{k-1} and h_{k-1} - h_{k-2}; "
    "of a token, then averaged"
)
"""The caption of tables of steps."""


def gated_layers(config: ModelConfig) -> tuple[int, ...]:
    return tuple(n for n, kind in enumerate(config.block_kinds) if kind == "dual")


def most_steps(config: ModelConfig) -> int:
    """The largest K of the layers with gates."""
    return max(layer.loops for layer in config.layers if layer.block == "dual")


def dual_layers(trace: RoutingTrace) -> torch.Tensor:
    """The read-outs of the layers with gates: (B, T, L, READOUTS and K STEP_READOUTS each).

    Where layers have different numbers of steps, K is the largest.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    loops = max(layer.step_weights.shape[-1] for layer in dual if layer.step_weights is not None)
    layers = []
    for layer in dual:
        values = [getattr(layer, name) for name in READOUTS]
        steps = ((getattr(layer, name), blank) for name, blank in STEP_READOUTS.items())
        padded = [F.pad(x, (0, loops - x.shape[-1]), value=blank) for x, blank in steps]
        layers.append(torch.cat([torch.stack(values, -1), *padded], -1))
    return torch.stack(layers, 2)


def experts_of(trace: RoutingTrace) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in the layers with gates, and their weights: (B, T, L, C) each.

    A layer without experts has -1 and nan; C is 0 where none has any.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    gates = [layer.gate_deep for layer in dual if layer.gate_deep is not None]
    most = max(0 if layer.experts is None else layer.experts.shape[-1] for layer in dual)
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


def by_name(values: Values) -> dict[str, Values]:
    """Takes the tensor or array of `dual_layers`, (..., columns), apart: (...) or (..., K)."""
    split, loops = len(READOUTS), (values.shape[-1] - len(READOUTS)) // len(STEP_READOUTS)
    found = {name: values[..., column] for column, name in enumerate(READOUTS)}
    for place, name in enumerate(STEP_READOUTS):
        found[name] = values[..., split + place * loops : split + (place + 1) * loops]
    return found


def two_digits(size: float) -> str:
    """Such as 0.30 or 0.00091."""
    return f"{size:#.2g}".rstrip(".")


def is_text(
    tokens: torch.Tensor, targets: torch.Tensor, bytes_of_token: torch.Tensor
) -> torch.Tensor:
    """Which tokens of a batch are read, (B, T); end-of-text, which windows begin with, is not.

    `bytes_of_token` is 0 for special tokens.
    """
    text_BT = torch.zeros_like(tokens, dtype=torch.bool)
    text_BT[:, 1:] = (targets[:, :-1] != IGNORE) & (bytes_of_token[tokens[:, 1:]] > 0)
    return text_BT


Sums = dict[str, npt.NDArray[np.float64]]  # the sums of `RoutingSums` by name

DERIVED = ("gate_difference", "only_deep", "only_wide", "both_open", "both_closed")
"""|g_d - g_w|, and whether a token's gates are in a corner of the unit square."""
CORNER = 0.1  # A gate below this is closed, one above 1 - this is open

GATE_BINS = 64
CONTRIBUTION_BINS, CONTRIBUTION_END = 256, 8.0
"""Of log(1 + g |update|); what is larger counts in the last bin."""


def columns(loops: int) -> tuple[str, ...]:
    """Names of what is averaged. Of step k `step_k` is the weight, `step_size_k` its update's."""
    kinds = ("step", "step_size", "step_cosine")  # as in STEP_READOUTS
    return (*READOUTS, *DERIVED, *(f"{kind}_{k}" for kind in kinds for k in range(1, loops + 1)))


class RoutingSums(Metric):
    """Sums over the tokens of one source, reduced over ranks by addition."""

    full_state_update = False
    tokens: torch.Tensor
    sums: torch.Tensor
    gate_density: torch.Tensor
    contribution_density: torch.Tensor
    tag_tokens: torch.Tensor
    tag_sums: torch.Tensor
    expert_tokens: torch.Tensor
    expert_shares: torch.Tensor
    share_squares: torch.Tensor
    expert_tags: torch.Tensor

    def __init__(self, n_layers: int, loops: int, experts: int = 0) -> None:
        """`n_layers` counts the layers with gates; `experts` is the most that one has."""
        super().__init__()
        resamples = 1 + RESAMPLES
        sums = {
            "tokens": (resamples,),
            "sums": (resamples, n_layers, len(columns(loops))),
            "gate_density": (n_layers, GATE_BINS, GATE_BINS),  # deep, wide
            "contribution_density": (n_layers, CONTRIBUTION_BINS, CONTRIBUTION_BINS),
            "tag_tokens": (resamples, len(UPOS)),
            "tag_sums": (resamples, len(UPOS), n_layers),  # of deep shares
            # Of choices: a token counts once for each of its experts.
            "expert_tokens": (resamples, n_layers, experts),
            "expert_shares": (resamples, n_layers, experts),  # of deep shares
            "share_squares": (resamples, n_layers),
            "expert_tags": (resamples, n_layers, experts, len(UPOS)),
        }
        for name, shape in sums.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        values: torch.Tensor,
        chosen: torch.Tensor,
        text: torch.Tensor,
        weights: torch.Tensor,
        tags: torch.Tensor,
    ) -> None:
        """Adds a batch.

        `values` is of `dual_layers`, `chosen` of `experts_of`; `text` (B, T) is True at tokens that
        count; `weights` (B, R) are 0 for a sequence that only fills up the batch; `tags` (B, T) are
        places in UPOS, -1 without one.
        """
        values = torch.where(text[..., None, None], values.double(), 0)
        g_d, g_w, norm_d, norm_w = values[..., :4].unbind(-1)
        share = values[..., READOUTS.index("deep_share")]
        open_d, open_w = 1 - g_d < CORNER, 1 - g_w < CORNER
        closed_d, closed_w = g_d < CORNER, g_w < CORNER
        both_closed = closed_d & closed_w & text[..., None]
        corners = (open_d & closed_w, open_w & closed_d, open_d & open_w, both_closed)
        derived = torch.stack([(g_d - g_w).abs(), *(corner.double() for corner in corners)], -1)
        split = len(READOUTS)
        averaged = torch.cat([values[..., :split], derived, values[..., split:]], -1)

        self.tokens += weights.T @ text.double().sum(1)
        self.sums += torch.einsum("br,blc->rlc", weights, averaged.sum(1))
        self.gate_density += _density(g_w[text], g_d[text], GATE_BINS, 1.0)
        self.contribution_density += _density(
            torch.log1p(g_w * norm_w)[text], torch.log1p(g_d * norm_d)[text],
            CONTRIBUTION_BINS, CONTRIBUTION_END,
        )  # fmt: skip
        tags = torch.where(text, tags, -1)
        places = torch.arange(len(UPOS), device=tags.device)
        member = (tags[..., None] == places).double()  # (B, T, P)
        self.tag_tokens += weights.T @ member.sum(1)
        of_tags = torch.einsum("btp,btl->bpl", member, share)
        self.tag_sums += torch.einsum("br,bpl->rpl", weights, of_tags)
        self._add_experts(share, chosen, text, member, weights)

    def compute(self) -> Sums:
        return {name: getattr(self, name).cpu().numpy() for name in self._defaults}

    def _add_experts(
        self,
        share: torch.Tensor,
        chosen: torch.Tensor,
        text: torch.Tensor,
        has_tag: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        choices = (text[..., None, None] & (chosen >= 0)).sum(-1)  # (B, T, L)
        self.share_squares += weights.T @ (choices * share**2).sum(1)
        for expert in range(self.expert_tokens.shape[-1]):
            takes = (text[..., None] & (chosen == expert).any(-1)).double()
            self.expert_tokens[..., expert] += weights.T @ takes.sum(1)
            self.expert_shares[..., expert] += weights.T @ (takes * share).sum(1)
            of_tags = torch.einsum("btl,btp->blp", takes, has_tag)
            self.expert_tags[..., expert, :] += torch.einsum("br,blp->rlp", weights, of_tags)


def _bin(values: torch.Tensor, bins: int, end: float) -> torch.Tensor:
    """The number of the bin between 0 and `end` that each value is in; 0 for what is no number."""
    inside = values.nan_to_num(nan=0.0, posinf=end).clamp(0, end)
    return (inside * (bins / end)).long().clamp(max=bins - 1)


def _density(wide: torch.Tensor, deep: torch.Tensor, bins: int, end: float) -> torch.Tensor:
    """Counts pairs (tokens, L) in a square of bins for each layer: (L, deep, wide)."""
    layers = torch.arange(wide.shape[-1], device=wide.device)
    numbers = (layers * bins + _bin(deep, bins, end)) * bins + _bin(wide, bins, end)
    counts = torch.bincount(numbers.flatten(), minlength=len(layers) * bins**2)
    return counts.reshape(len(layers), bins, bins).double()
