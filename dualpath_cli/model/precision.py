"""Operations in the precision of their weights, whatever comes in: RMSNorm, router and gate.

Under autocast, or with a bf16 residual stream, the projections give bf16. The statistics of a norm
and the decisions of a router are worth more.
"""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.RMSNorm):
    """``x / rms(x) * weight`` over the last dimension, computed and returned in the weight's type.

    torch's fused kernel wants one type, so a bf16 input is converted first.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., D) to (..., D)."""
        return super().forward(x.to(self.weight.dtype))


def linear_in_weight_type(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """``x W^T + b``, (..., D) to (..., outputs), in the weight's type also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(weight.dtype), weight, bias)
