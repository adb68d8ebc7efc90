"""Linear maps to one or two numbers, fastest on a GPU as sums.

A matrix product of few columns is a separate kernel. A sum becomes part of the compiled
kernel that computes the input: training steps took 0.985 of the time
(docs/benchmarks/speed.md).
"""

import torch
import torch.nn.functional as F
from torch import nn

SUMMED = ("cuda",)
"""Devices whose compiled kernels fuse a sum, but not a product. On a CPU the product is
faster."""


def to_few(
    x: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor
) -> torch.Tensor:
    """``x W^T + b``, (..., O), of x (..., D), for one or two outputs."""
    if torch.compiler.is_compiling() and x.device.type in SUMMED:
        outputs = [(x * w_D).sum(-1) for w_D in weight_OD]
        return torch.stack(outputs, dim=-1) + bias_O

    return F.linear(x, weight_OD, bias_O)


class ToFew(nn.Linear):
    """`to_few` with its parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., D) to (..., O)."""
        return to_few(x, self.weight, self.bias)
