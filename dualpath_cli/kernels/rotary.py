"""Rotary positions of queries and keys, with or without the RMSNorm of heads.

Half-split: channel i of a head rotates together with channel i + N/2. The halves are a
separate dimension, which torch.compile reads in place, without splitting and joining
them.

Shapes: B batch, T positions, H heads, N head size, M = N/2.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Rope(NamedTuple):
    """Cosine and sine of each position's angles; with B if sequences differ."""

    cos: torch.Tensor
    """(T, 1, 1, M) or (B, T, 1, 1, M)."""
    sin: torch.Tensor
    """Negative for the first half: (T, 1, 2, M) or (B, T, 1, 2, M)."""


def rope_of(angles: torch.Tensor, dtype: torch.dtype) -> Rope:
    """The tables of angles (..., T, M)."""
    cos = angles.cos().to(dtype)
    sin = angles.sin().to(dtype)
    sin_of_halves = torch.stack((-sin, sin), dim=-2)
    return Rope(cos[..., None, None, :], sin_of_halves[..., None, :, :])


def rotate(x_BTHN: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotates each head's channel pairs; returns the tables' type."""
    return _turn(_halves(x_BTHN), *rope).flatten(-2)


class RotatedNorm(nn.Module):
    """``RMSNorm(rotate(x)) * weight`` of each head, in the type of the weight."""

    def __init__(self, head_dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim))
        self.eps = eps

    def forward(self, x_BTHN: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Maps (B, T, H, N) to (B, T, H, N); without gradients in fewer operations."""
        weight_N = self.weight
        if not torch.is_grad_enabled():
            turned_BTHN = rotate(x_BTHN, rope).to(weight_N.dtype)
            return F.rms_norm(turned_BTHN, weight_N.shape, weight_N, self.eps)

        normed_BTHN: torch.Tensor
        normed_BTHN = _RotatedNorm.apply(x_BTHN, weight_N, *rope, self.eps)
        # Cast here: in the function, a cast to the same type gives zero gradients in
        # torch 2.11.
        return normed_BTHN.to(weight_N.dtype)


class _RotatedNorm(torch.autograd.Function):
    """A rotation does not change the mean square, so the norm is a scale of each head.

    The gradient computes the rotation again from x. PyTorch's gradient would share the
    rotation with the forward pass, and compiled kernels would write and read it in
    float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BTHN: torch.Tensor,
        weight_N: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x_BTHN, weight_N, cos, sin)
        ctx.eps = eps

        x_BTH2M = _halves(x_BTHN.to(cos.dtype))
        turned_BTH2M = _turn(x_BTH2M, cos, sin)
        scale_BTH11 = _scale(x_BTH2M, eps)
        # The norm is a scale of each head, as a rotation keeps the mean square.
        normed_BTH2M = turned_BTH2M * scale_BTH11 * _halves(weight_N)
        return normed_BTH2M.flatten(-2)

    @staticmethod
    def backward(ctx: Any, grad_BTHN: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_BTHN, weight_N, cos, sin = ctx.saved_tensors
        x_BTH2M = _halves(x_BTHN.to(cos.dtype))
        grad_BTH2M = _halves(grad_BTHN)
        scale_BTH11 = _scale(x_BTH2M, ctx.eps)
        turned_BTH2M = _turn(x_BTH2M, cos, sin)

        # The gradient of the normed values, turned back, minus its part along x.
        normed_BTH2M = grad_BTH2M * _halves(weight_N)
        along_BTH2M = normed_BTH2M * turned_BTH2M
        along_BTH11 = along_BTH2M.mean((-2, -1), keepdim=True)
        back_BTH2M = normed_BTH2M * cos + (normed_BTH2M * sin).flip(-2)
        factor_BTH11 = scale_BTH11**3 * along_BTH11
        grad_x_BTH2M = back_BTH2M * scale_BTH11 - x_BTH2M * factor_BTH11
        grad_x = grad_x_BTH2M.flatten(-2).to(x_BTHN.dtype)

        grad_weight_BTH2M = grad_BTH2M * scale_BTH11 * turned_BTH2M
        grad_weight_BTHN = grad_weight_BTH2M.flatten(-2)
        grad_weight_N = grad_weight_BTHN.flatten(0, -2).sum(0)
        return grad_x, grad_weight_N.to(weight_N.dtype), None, None, None


def _halves(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (2, -1))


def _turn(x_BTH2M: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return x_BTH2M * cos + x_BTH2M.flip(-2) * sin


def _scale(x_BTH2M: torch.Tensor, eps: float) -> torch.Tensor:
    """``1 / rms(x)`` of each head, (B, T, H, 1, 1)."""
    mean_square_BTH11 = x_BTH2M.square().mean((-2, -1), keepdim=True)
    return torch.rsqrt(mean_square_BTH11 + eps)
