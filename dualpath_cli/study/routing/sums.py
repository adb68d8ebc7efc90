"""RoutingSums: everything that is summed over a source's tokens, in memory that stays fixed.

Each sum is kept 1 + 1,000 times, first as it is, then resampled (`statistics/bootstrap.py`);
whatever is computed from sums is computed from all of them.

Shapes: B sequences, T positions, L layers with gates, C columns, R 1 + resamples, P parts of
speech, O offsets from an anchor, E experts.
"""

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics import Metric

from dualpath_cli.statistics.bootstrap import RESAMPLES
from dualpath_cli.study.classes import UPOS
from dualpath_cli.study.routing.readouts import READOUTS

Sums = dict[str, npt.NDArray[np.float64]]
"""The sums of `RoutingSums` by name."""

CORNERS = ("only_deep", "only_wide", "both_open", "both_closed")
DERIVED = ("gate_difference", *CORNERS)
"""|g_d - g_w|, and whether a token's gates are in a corner of the unit square."""
STEP_COLUMNS = ("step", "step_size", "step_cosine")
"""What the columns of `STEP_READOUTS` are called before the number of the step."""
CORNER = 0.1
"""A gate below this is closed, one above 1 - this is open."""

GATE_BINS = 64
CONTRIBUTION_BINS, CONTRIBUTION_END = 256, 8.0
"""Of log(1 + g |update|); what is larger counts in the last bin."""
SHARE_BINS = 400
BEFORE, AFTER = 16, 48
"""Offsets from the anchor that are kept: the tokens before it, and after it."""


def columns(loops: int) -> tuple[str, ...]:
    """Names of what is averaged: read-outs, what follows from the gates, those of each step.

    Of step k `step_k` is its weight, and what it does `step_size_k` and `step_cosine_k`.
    """
    steps = (f"{name}_{k}" for name in STEP_COLUMNS for k in range(1, loops + 1))
    return (*READOUTS, *DERIVED, *steps)


class RoutingSums(Metric):
    """Sums over the tokens of one source, reduced over ranks by addition."""

    full_state_update = False
    tokens: torch.Tensor
    sums: torch.Tensor
    gate_density: torch.Tensor
    contribution_density: torch.Tensor
    tag_tokens: torch.Tensor
    tag_sums: torch.Tensor
    tag_shares: torch.Tensor
    aligned_tokens: torch.Tensor
    aligned_sums: torch.Tensor
    expert_tokens: torch.Tensor
    expert_shares: torch.Tensor
    share_squares: torch.Tensor
    expert_tags: torch.Tensor

    def __init__(self, n_layers: int, loops: int, experts: int = 0) -> None:
        """`n_layers` counts the layers with gates; `experts` is the most that one has."""
        super().__init__()
        resamples, offsets = 1 + RESAMPLES, BEFORE + 1 + AFTER
        sums = {
            "tokens": (resamples,),
            "sums": (resamples, n_layers, len(columns(loops))),
            "gate_density": (n_layers, GATE_BINS, GATE_BINS),  # deep, wide
            "contribution_density": (n_layers, CONTRIBUTION_BINS, CONTRIBUTION_BINS),
            "tag_tokens": (resamples, len(UPOS)),
            "tag_sums": (resamples, len(UPOS), n_layers),  # of deep shares
            "tag_shares": (len(UPOS), SHARE_BINS),  # of all layers
            "aligned_tokens": (resamples, offsets),
            "aligned_sums": (resamples, offsets, n_layers),  # of deep shares
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
        anchors: torch.Tensor,
    ) -> None:
        """Adds a batch.

        `values` is of `dual_layers`, `chosen` of `experts_of`; `text` (B, T) is True at tokens that
        count; `weights` (B, R) are 0 for a sequence that only fills up the batch; `tags` (B, T) are
        places in UPOS, -1 without one; `anchors` (B,) are positions, -1 without one.
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
        self._add_tags(share, torch.where(text, tags, -1), weights)
        self._add_aligned(share, text, anchors, weights)
        self._add_experts(share, chosen, text, torch.where(text, tags, -1), weights)

    def compute(self) -> Sums:
        return {name: getattr(self, name).cpu().numpy() for name in self._defaults}

    def _add_tags(self, share: torch.Tensor, tags: torch.Tensor, weights: torch.Tensor) -> None:
        places = torch.arange(len(UPOS), device=tags.device)
        member = (tags[..., None] == places).double()  # (B, T, P)
        self.tag_tokens += weights.T @ member.sum(1)
        sums = torch.einsum("btp,btl->bpl", member, share)
        self.tag_sums += torch.einsum("br,bpl->rpl", weights, sums)
        tagged = tags >= 0
        bins = tags[tagged][:, None] * SHARE_BINS + _bin(share[tagged], SHARE_BINS, 1.0)
        self.tag_shares += _count(bins, self.tag_shares)

    def _add_aligned(
        self, share: torch.Tensor, text: torch.Tensor, anchors: torch.Tensor, weights: torch.Tensor
    ) -> None:
        offsets = torch.arange(-BEFORE, AFTER + 1, device=anchors.device)
        places = anchors[:, None] + offsets  # (B, O)
        inside = (anchors[:, None] >= 0) & (places >= 0) & (places < text.shape[1])
        places = places.clamp(0, text.shape[1] - 1)
        counted = (inside & text.gather(1, places)).double()
        shares = share.gather(1, places[..., None].expand(-1, -1, share.shape[-1]))
        self.aligned_tokens += weights.T @ counted
        self.aligned_sums += torch.einsum("br,bol->rol", weights, shares * counted[..., None])

    def _add_experts(
        self,
        share: torch.Tensor,
        chosen: torch.Tensor,
        text: torch.Tensor,
        tags: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        has_tag = (tags[..., None] == torch.arange(len(UPOS), device=tags.device)).double()
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
    return _count(numbers, torch.empty(len(layers), bins, bins, dtype=torch.float64))


def _count(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(numbers.flatten(), minlength=like.numel())
    return counts.reshape(like.shape).double()
