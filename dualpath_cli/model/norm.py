"""RMSNorm in the precision of its weight, whatever comes in."""

import torch
from torch import nn


class RMSNorm(nn.RMSNorm):
    """``x / rms(x) * weight`` over the last dimension, computed and returned in the weight's type.

    A bf16 input (bf16 residual stream, projections under autocast) is widened first: torch's
    fused kernel takes one type only, and statistics of bf16 values deserve float32.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., D) to (..., D)."""
        return super().forward(x.to(self.weight.dtype))
