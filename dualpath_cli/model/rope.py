"""Rotary position embedding, half-split: channel i turns together with channel i + N/2.

Shapes: B batch, T positions, H heads, N head size.
"""

from typing import NamedTuple

import torch

from dualpath_cli.config import ModelConfig


class Rope(NamedTuple):
    """Cosine and sine of every position's angles, each (T, 1, N/2) or (B, T, 1, N/2)."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope_tables(config: ModelConfig, n_positions: int, like: torch.Tensor, start: int = 0) -> Rope:
    """Returns the tables for `n_positions` positions from `start` on, on the device of `like`."""
    return rope_at(config, torch.arange(start, start + n_positions, device=like.device), like)


def rope_at(config: ModelConfig, places: torch.Tensor, like: torch.Tensor) -> Rope:
    """Returns the tables for positions (T,) or (B, T), on the device of `like`.

    Angles are computed in float64 and the tables hold float32, or float64 beside a float64 model.
    They are made anew in each forward pass (64 numbers a position): a buffer would have to survive
    meta-device construction, sharding and checkpoints for nothing.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=like.device)
    frequencies = config.rope_base ** (-exponents / config.head_dim)
    if config.rope_dtype == "bfloat16":
        frequencies = frequencies.to(torch.bfloat16).double()
    angles = (places[..., None] * frequencies)[..., None, :]
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x_BTHN: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Turns each head's channel pairs by their position's angles; float32 or float64 comes out."""
    first, second = x_BTHN.chunk(2, dim=-1)
    return torch.cat(
        (first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin), dim=-1
    )
