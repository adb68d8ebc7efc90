"""Muon for hidden matrices, and PyTorch's AdamW for all other parameters, as one optimizer.

A matrix moves by its momentum made orthogonal: equally far in all of its directions. Muon is Keller
Jordan's (https://kellerjordan.github.io/posts/muon); decoupled decay and the factor
`match_rms_adamw` are those of arXiv 2502.16982. On one process the step is that of
torch.optim.Muon, but for the type of its products.

torch.optim.Muon makes each shard of a matrix orthogonal by itself, which is another optimizer for
each number of ranks. Here every rank gathers a sharded matrix whole, makes all of it orthogonal and
keeps its own shard, so that the numbers do not depend on the ranks. docs/scaling.md has what this
costs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import Kind
from dualpath_cli.training.parallel import sharded_as

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic, which they make steep at 0: after STEPS singular values from 0.002 of the norm on
are between 0.68 and 1.21. Keller Jordan's, as in torch.optim.Muon."""
STEPS = 5
HIDDEN: Kind = "hidden"  # the kind of parameters that Muon moves, and the name of their group
EPS = 1e-7  # the least norm that a matrix is divided by: one of zeros stays so


class Muon(torch.optim.Optimizer):
    """Muon for the group named HIDDEN, AdamW for the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        settings: OptimSettings,
        products: torch.dtype | None = None,
        stacked: Mapping[nn.Parameter, int] | None = None,
    ) -> None:
        """Makes orthogonal by products of the type `products`; None is that of the weights.

        `stacked` gives the number of matrices in a parameter of several, one below the other, such
        as those of experts: each is moved by itself.
        """
        self.settings, self.products, self.stacked = settings, products, stacked or {}
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["name"] != HIDDEN],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )
        super().__init__(groups, self.adamw.defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for matrix in group["params"] if group["name"] == HIDDEN else ():
                if matrix.grad is not None:
                    self._move(matrix, group["lr"], group["weight_decay"])
        # State and groups are ours, which a checkpoint replaces.
        self.adamw.state = self.state
        self.adamw.param_groups = [g for g in self.param_groups if g["name"] != HIDDEN]
        self.adamw.step()
        return loss

    def _move(self, matrix: nn.Parameter, rate: float, decay: float) -> None:
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        weight = self.settings.muon_momentum
        momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - weight)
        # Rounded before it travels: the same numbers, and half the bytes.
        ahead = matrix.grad.lerp(momentum, weight).to(self.products or matrix.dtype)
        whole = ahead.full_tensor() if isinstance(ahead, DTensor) else ahead
        parts = whole.chunk(self.stacked.get(matrix, 1))
        for part in parts:
            part.copy_(orthogonal(part))
        matrix.mul_(1 - rate * decay)
        factor = shape_factor(parts[0].shape, self.settings.muon_adjust)
        matrix.add_(sharded_as(matrix, whole), alpha=-rate * factor)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix of the same singular vectors, whose singular values are near 1.

    Each step of Newton and Schulz makes a s + b s^3 + c s^5 of each singular value s, in the type
    of `matrix`, beginning with shares of the Frobenius norm.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix  # the Gram matrix of the shorter side is smaller
    x = x / x.norm().clamp(min=EPS)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def shape_factor(shape: torch.Size, adjust: str) -> float:
    """The factor on the rate of a matrix of this shape, by `optim.muon_adjust`.

    An orthogonal matrix has entries of root mean square 1 / sqrt(max(rows, columns)), AdamW's
    updates usually 0.2 to 0.4 (arXiv 2502.16982, section 2.2).
    """
    rows, columns = shape
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
