"""When a token has looped enough: by the router's own mass, or by what its state shows.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

from collections.abc import Callable

import torch

from dualpath_cli.intervention import Intervention

Lens = Callable[[torch.Tensor], torch.Tensor]
"""Maps a state (B, T, D) to the logits (B, T, V) of a model whose last layer ends with it."""

Enough = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Who stops after a step, (B, T, 1): by h_{k-1}, h_k and the mass pi_{k+1} that remains."""


def criterion(intervention: Intervention | None, lens: Lens | None) -> Enough:
    """What `Intervention.halting` says, or never; `lens` is for halting by entropy."""
    if intervention is None or intervention.halting is None:
        return lambda before_BTD, h_BTD, left_BT1: torch.zeros_like(left_BT1, dtype=torch.bool)
    threshold = intervention.halting
    if intervention.halting_by == "mass":
        return lambda before_BTD, h_BTD, left_BT1: left_BT1 <= threshold
    if intervention.halting_by == "change":
        return lambda before_BTD, h_BTD, left_BT1: (
            (h_BTD - before_BTD).norm(dim=-1, keepdim=True)
            <= threshold * before_BTD.norm(dim=-1, keepdim=True)
        )
    assert lens is not None
    return lambda before_BTD, h_BTD, left_BT1: entropy(lens(h_BTD)) <= threshold


def entropy(logits_BTV: torch.Tensor) -> torch.Tensor:
    """Of the distribution that logits give, in nats, (B, T, 1)."""
    logs_BTV = logits_BTV.log_softmax(-1)
    return -(logs_BTV.exp() * logs_BTV).sum(-1, keepdim=True)
