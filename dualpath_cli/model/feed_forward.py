"""Feed-forward networks, which a Sublayer is given, and what they may add to the training loss.

A feed-forward is a module whose ``forward(x_BTD, auxiliary)`` maps (B, T, D) to (B, T, D).

Shapes: B batch, T positions, D model width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class AuxiliaryLoss:
    """Pass an empty one to ``DualPathLM.forward``: feed-forwards add their own losses to it.

    Each application adds its term, so K loops add K of them. An object and not a list, because
    FSDP2 copies the lists among a module's arguments.
    """

    total: torch.Tensor | float = 0.0
    """Sum of all terms, a 0-d tensor in nats per token; 0.0 where no feed-forward has one."""


class SwiGLU(nn.Module):
    """``W_2 (silu(W x) * V x)`` with `width` hidden units."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, width, bias=False)
        self.up_proj = nn.Linear(d_model, width, bias=False)
        self.down_proj = nn.Linear(width, d_model, bias=False)

    def forward(self, x_BTD: torch.Tensor, auxiliary: AuxiliaryLoss | None = None) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); has no auxiliary loss."""
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
