"""Positions: tables of the rotary embedding, and the mask of attention.

Shapes: B batch, T positions, S positions including cached ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from dualpath_cli.kernels.attention import Mask
from dualpath_cli.kernels.rotary import Rope, rope_of
from dualpath_cli.spec.config import ModelConfig


class Positions(NamedTuple):
    """Rotation and mask of the T positions of a pass."""

    rope: Rope
    mask: Mask | None = None
    """None: every token looks at itself and at all earlier tokens."""


def whole_sequences(
    config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor
) -> Positions:
    """The positions of tokens (B, T), the first of which is at 0, on the device of
    `like`.

    With a `document_start` in the configuration, each document packed into a sequence
    is on its own: positions count from its start, and its tokens look at no earlier
    document.
    """
    rope = rope_tables(config, tokens.shape[1], like)
    if config.document_start is None:
        return Positions(rope)
    starts_BT = tokens == config.document_start
    place_BT = torch.arange(starts_BT.shape[1], device=starts_BT.device).expand_as(
        starts_BT
    )
    begin_BT = torch.where(starts_BT, place_BT, 0).cummax(1).values
    in_documents = Rope(*(table[place_BT - begin_BT] for table in rope))
    return Positions(in_documents, document_mask(starts_BT.cumsum(1)))


def document_mask(documents_BT: torch.Tensor) -> Mask:
    """A token looks at itself and at earlier tokens of its own document.

    `documents_BT` numbers the documents of a sequence. In training on a GPU the mask
    lists the blocks of 128 x 128 positions that are not empty, and attention computes
    these alone. Without gradients the mask is dense: evaluation runs eagerly, and an
    eager FlexAttention would hold all scores in float32.
    """
    blocks = documents_BT.device.type == "cuda" and torch.is_grad_enabled()
    create = create_block_mask if blocks else create_mask
    B, T = documents_BT.shape
    return create(in_document(documents_BT), B, None, T, T, device=documents_BT.device)


def in_document(documents_BT: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The rule of `document_mask`, as FlexAttention takes it."""

    def seen(
        b: torch.Tensor, _: torch.Tensor, q: torch.Tensor, s: torch.Tensor
    ) -> torch.Tensor:
        return (q >= s) & (documents_BT[b, q] == documents_BT[b, s])

    return seen


def rope_tables(config: ModelConfig, n_positions: int, like: torch.Tensor) -> Rope:
    """Returns the tables for `n_positions` positions from 0 on, on the device of
    `like`."""
    return rope_at(config, torch.arange(n_positions, device=like.device), like)


def rope_at(config: ModelConfig, places: torch.Tensor, like: torch.Tensor) -> Rope:
    """Returns the tables for positions (T,) or (B, T), on the device of `like`.

    Angles are computed in float64 and the tables hold float32, or float64 beside a
    float64 model. Each forward pass computes the tables anew (64 numbers a position): a
    buffer would have to survive meta-device construction, sharding and checkpoints,
    without a gain.
    """
    exponents = torch.arange(
        0, config.head_dim, 2, dtype=torch.float64, device=like.device
    )
    frequencies = config.rope_base ** (-exponents / config.head_dim)
    if config.rope_dtype == "bfloat16":
        frequencies = frequencies.to(torch.bfloat16).double()
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return rope_of(places[..., None] * frequencies, dtype)
