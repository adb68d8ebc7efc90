"""Linear maps of one input in fewer matrix products, where a training step is compiled.

Elsewhere weights would be joined anew for every token that is decoded, and sums would be slower
than the product that they replace. What each saves: docs/benchmarks/speed.md.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

SUMMED = ("cuda",)
"""Devices whose compiled kernels take a sum in, but no product."""


def together(x: torch.Tensor, maps: Sequence[nn.Module]) -> Sequence[torch.Tensor]:
    """What each of several linear maps without bias makes of x (..., D), by one product.

    Modules in their place, such as an adapter, are called.
    """
    training = torch.compiler.is_compiling() and torch.is_grad_enabled()
    if not training or any(type(one) is not nn.Linear for one in maps):
        return [one(x) for one in maps]
    weights: list[torch.Tensor] = [one.get_parameter("weight") for one in maps]
    return F.linear(x, torch.cat(weights)).split([len(weight) for weight in weights], dim=-1)


def to_few(x: torch.Tensor, weight_OD: torch.Tensor, bias_O: torch.Tensor) -> torch.Tensor:
    """``x W^T + b``, (..., O), of x (..., D), for one or two outputs.

    Compiled for a GPU as sums, which become part of the kernel that makes x.
    """
    if torch.compiler.is_compiling() and x.device.type in SUMMED:
        return torch.stack([(x * w).sum(-1) for w in weight_OD], dim=-1) + bias_O
    return F.linear(x, weight_OD, bias_O)


class ToFew(nn.Linear):
    """`to_few` with its parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (..., D) to (..., O)."""
        return to_few(x, self.weight, self.bias)
