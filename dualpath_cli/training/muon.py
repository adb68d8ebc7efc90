"""Muon for hidden matrices and AdamW for other parameters, as one optimizer.

The update of a matrix is its orthogonalised momentum: equally large in all directions,
whatever the size of its gradient. Muon is by Keller Jordan
(https://kellerjordan.github.io/posts/muon); decoupled decay and the factor
`match_rms_adamw` are from arXiv 2502.16982. On one process the step equals
torch.optim.Muon's, except, outside bf16, for the type of its products, and for
gradients with a norm below 1e-7, for which PyTorch's step is smaller.

torch.optim.Muon makes each shard of a matrix orthogonal by itself: a different
optimizer for each number of ranks. Here every rank gathers a sharded matrix whole,
makes it orthogonal and keeps one shard, so that the numbers do not depend on the ranks.
docs/scaling.md has the cost.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.run.weights import whole
from dualpath_cli.spec.config import Kind
from dualpath_cli.training.parallel import sharded_as

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic, steep at 0: after STEPS, singular values from 0.002 of
the norm on are between 0.68 and 1.21. Keller Jordan's, as in torch.optim.Muon."""
STEPS = 5
# the kind of parameters that Muon moves, and the name of their group
HIDDEN: Kind = "hidden"


class Muon(torch.optim.Optimizer):
    """Muon for the group named HIDDEN, AdamW for the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        settings: OptimSettings,
        products: torch.dtype | None = None,
        stacked: Mapping[nn.Parameter, int] | None = None,
    ) -> None:
        """`products` is the type of the matrix products; None is the weights' type.

        `stacked` gives the number of matrices stacked in a parameter, such as those of
        experts: each matrix is updated by itself.
        """
        self.settings = settings
        self.products = products
        self.stacked = stacked or {}

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

        others = []
        for group in self.param_groups:
            if group["name"] != HIDDEN:
                others.append(group)
                continue
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, group["lr"], group["weight_decay"])

        # AdamW works on this optimizer's state and groups; a checkpoint replaces both.
        self.adamw.state = self.state
        self.adamw.param_groups = others
        self.adamw.step()
        return loss

    def _move(self, matrix: nn.Parameter, rate: float, decay: float) -> None:
        assert matrix.grad is not None
        gradient = matrix.grad
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)

        # Nesterov: the gradient moves once more towards the momentum.
        weight = self.settings.muon_momentum
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - weight)
        ahead = gradient.lerp(momentum, weight)

        # Rounded before it is sent: the same numbers, and half the bytes.
        ahead = ahead.to(self.products or matrix.dtype)
        update = whole(ahead)

        parts = update.chunk(self.stacked.get(matrix, 1))
        for part in parts:
            part.copy_(orthogonal(part))

        factor = shape_factor(parts[0].shape, self.settings.muon_adjust)
        matrix.mul_(1 - rate * decay)
        matrix.add_(sharded_as(matrix, update), alpha=-rate * factor)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix with the same singular vectors and with singular values near 1.

    Each Newton-Schulz step maps each singular value s to a s + b s^3 + c s^5, in the
    type of `matrix`, which is first divided by its Frobenius norm.
    """
    a, b, c = COEFFICIENTS
    # The Gram matrix of the shorter side is smaller.
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix

    # A matrix of zeros stays zero. The floor is the least number with an exact square:
    # a norm above is right, and one below is of entries so small that the quotient is
    # small as well.
    floor = torch.finfo(x.dtype).tiny ** 0.5
    x = x / x.norm().clamp(min=floor)

    # x = a x + (b G + c G^2) x, with the Gram matrix G = x x^T
    for _ in range(STEPS):
        gram = x @ x.mT
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)

    return x.mT if tall else x


def shape_factor(shape: torch.Size, adjust: str) -> float:
    """The factor on the rate of a matrix of this shape, by `optim.muon_adjust`.

    Entries of an orthogonal matrix have a root mean square of 1 / sqrt(max(rows,
    columns)), entries of AdamW's updates usually one of 0.2 to 0.4 (arXiv 2502.16982,
    section 2.2).
    """
    rows, columns = shape
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
