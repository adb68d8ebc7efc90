"""Cross-entropy of next tokens without ever holding all logits at once."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

IGNORE = -100
"""Target of a position that is not scored."""

MAX_LOGITS = 2**28
"""Logits held at once; 1 GiB in float32."""

MAX_LOGITS_COMPILED = 2**30
"""The same limit when compiled for a GPU, whose kernels keep logits in bf16: 2 GiB."""


class NextTokenLoss(nn.Module):
    """Head and cross-entropy together, a module that compiles in place.

    One graph turns bf16 logits into losses and gradients without writing float32 ones.
    """

    def forward(
        self, x_BTD: torch.Tensor, head_VD: torch.Tensor, targets_BT: torch.Tensor
    ) -> torch.Tensor:
        """Returns the negative log-likelihood of every position in nats, (B, T).

        Positions whose target is IGNORE get 0. `x_BTD` is the normalised residual
        stream and `head_VD` the output matrix. The loss is float32 also where autocast
        makes the logits bf16. Above MAX_LOGITS logits the positions are split into
        parts of about equal size, and the backward pass computes the logits again.
        """
        x_ND = x_BTD.flatten(0, 1)
        targets_N = targets_BT.flatten()
        # No part has more logits than the limit, unless a single position has.
        most_positions = max(1, _most_logits(x_BTD) // len(head_VD))
        n_parts = -(-len(targets_N) // most_positions)  # rounded up

        if n_parts <= 1:
            nll_N = _nll(x_ND, head_VD, targets_N)
        else:
            xs = x_ND.tensor_split(n_parts)
            targets = targets_N.tensor_split(n_parts)
            parts = zip(xs, targets, strict=True)
            nll_N = torch.cat([_nll_again(x, head_VD, target) for x, target in parts])

        # a copy: hooks on an output take no views
        nll_BT = nll_N.view(targets_BT.shape)
        return nll_BT.clone()


def _most_logits(x: torch.Tensor) -> int:
    on_gpu = torch.compiler.is_compiling() and x.device.type == "cuda"
    return MAX_LOGITS_COMPILED if on_gpu else MAX_LOGITS


def _nll(
    x_ND: torch.Tensor, head_VD: torch.Tensor, targets_N: torch.Tensor
) -> torch.Tensor:
    logits_NV = F.linear(x_ND, head_VD)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    return F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORE, reduction="none")


def _nll_again(
    x_ND: torch.Tensor, head_VD: torch.Tensor, targets_N: torch.Tensor
) -> torch.Tensor:
    """`_nll`, whose logits the backward pass computes again."""
    nll_N: torch.Tensor = checkpoint(
        _nll,
        x_ND,
        head_VD,
        targets_N,
        use_reentrant=False,
        preserve_rng_state=False,
    )
    return nll_N
