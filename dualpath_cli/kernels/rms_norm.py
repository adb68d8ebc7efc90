"""RMSNorm in the precision of its weights, also of bf16 inputs under autocast."""

import torch
from torch import nn


class RMSNorm(nn.RMSNorm):
    """``x / rms(x) * weight`` over the last dimension, in the weight's type.

    torch's fused kernel needs one type, so a bf16 input is converted first.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., D) to (..., D)."""
        return super().forward(x.to(self.weight.dtype))
