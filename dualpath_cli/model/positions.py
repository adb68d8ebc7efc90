"""What attention knows about positions: their rotation, and which of them a token may look at.

Shapes: B batch, T positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from dualpath_cli.model.rope import Rope

Mask = torch.Tensor | BlockMask
"""Where a query may look: blocks for FlexAttention, or (B, 1, T, T) of bool."""


class Positions(NamedTuple):
    """Of the T positions of a sequence."""

    rope: Rope
    mask: Mask | None = None
    """None means: every token looks at itself and all before it."""

    def of_documents(self, starts_BT: torch.Tensor) -> "Positions":
        """Those of documents packed into sequences, each of which is as if it were alone.

        Where `starts_BT` is True a document begins: it counts its positions from there, and its
        tokens look at none before.
        """
        place_BT = torch.arange(starts_BT.shape[1], device=starts_BT.device).expand_as(starts_BT)
        begin_BT = torch.where(starts_BT, place_BT, 0).cummax(1).values
        rope = Rope(*(table[place_BT - begin_BT] for table in self.rope))
        return Positions(rope, document_mask(starts_BT.cumsum(1)))


def document_mask(documents_BT: torch.Tensor) -> Mask:
    """A token looks at itself and at those before it in its own document.

    `documents_BT` has a number for each document of a sequence. In training on a GPU the mask lists
    the blocks of 128 x 128 positions that hold anything, and attention costs what these cost.
    Without gradients it is dense: evaluation runs eagerly, and so would FlexAttention, which then
    holds all scores in float32.
    """
    blocks = documents_BT.device.type == "cuda" and torch.is_grad_enabled()
    create = create_block_mask if blocks else create_mask
    B, T = documents_BT.shape
    return create(in_document(documents_BT), B, None, T, T, device=documents_BT.device)


def in_document(documents_BT: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The rule of `document_mask`, as FlexAttention takes it."""

    def seen(b: torch.Tensor, _: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return (q >= s) & (documents_BT[b, q] == documents_BT[b, s])

    return seen
