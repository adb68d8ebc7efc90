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
    """The positions of tokens (B, T) from 0 on, on the device of `like`.

    With a `document_start` in the configuration, each document packed into a sequence
    is on its own: positions count from its start, and its tokens look at no earlier
    document.
    """
    T = tokens.shape[1]
    rope = rope_tables(config, T, like)
    if config.document_start is None:
        return Positions(rope)

    # The place in a document: the place in the sequence minus its document's start.
    starts_BT = tokens == config.document_start
    place_T = torch.arange(T, device=starts_BT.device)
    place_BT = place_T.expand_as(starts_BT)
    begin_BT = torch.where(starts_BT, place_BT, 0).cummax(1).values
    within_BT = place_BT - begin_BT

    in_documents = Rope(rope.cos[within_BT], rope.sin[within_BT])
    documents_BT = starts_BT.cumsum(1)
    return Positions(in_documents, document_mask(documents_BT))


def document_mask(documents_BT: torch.Tensor) -> Mask:
    """A token looks at itself and at earlier tokens of its own document.

    `documents_BT` numbers the documents of a sequence. In training on a GPU the mask
    lists the blocks of 128 x 128 positions that are not empty, and attention computes
    only these. Without gradients the mask is dense: evaluation is mostly eager, and an
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
        causal = q >= s
        same_document = documents_BT[b, q] == documents_BT[b, s]
        return causal & same_document

    return seen


def rope_tables(config: ModelConfig, n_positions: int, like: torch.Tensor) -> Rope:
    """Returns the tables of positions from 0 on, on the device of `like`."""
    places_T = torch.arange(n_positions, device=like.device)
    return rope_at(config, places_T, like)


def rope_at(config: ModelConfig, places: torch.Tensor, like: torch.Tensor) -> Rope:
    """Returns the tables for positions (T,) or (B, T), on the device of `like`.

    Angles are computed in float64 and the tables hold float32, or float64 beside a
    float64 model. Each forward pass computes the tables anew (1.5 N numbers a
    position): a buffer would have to survive meta-device construction, sharding and
    checkpoints, without a gain.
    """
    N = config.head_dim
    exponents_M = torch.arange(0, N, 2, dtype=torch.float64, device=like.device)
    frequencies_M = config.rope_base ** (-exponents_M / N)
    if config.rope_dtype == "bfloat16":
        frequencies_M = frequencies_M.to(torch.bfloat16).double()

    angles = places[..., None] * frequencies_M
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return rope_of(angles, dtype)
