"""What attention knows about positions: their rotation, and which of them a token may look at.

Shapes: B batch, T positions, S positions with those in a cache before.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from dualpath_cli.model.rope import Rope

Mask = torch.Tensor | BlockMask
"""Where a query may look: blocks for FlexAttention, or (B, 1, T, S) of bool."""


class Positions(NamedTuple):
    """Of the T positions that a pass is about."""

    rope: Rope
    mask: Mask | None = None
    """None means: every token looks at itself and all before it."""

    def rows(self, rows_R: torch.Tensor) -> "Positions":
        """Those of some sequences of the batch."""
        rope, mask = self
        if rope.cos.dim() == 4:
            rope = Rope(*(table[rows_R] for table in rope))
        if mask is not None and mask.shape[0] > 1:
            mask = mask[rows_R]
        return Positions(rope, mask)

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


def documents_of(
    tokens: torch.Tensor,
    starts_BT: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    before_BS: torch.Tensor | None,
) -> torch.Tensor | None:
    """Numbers the documents of positions: (B, T), from 0 on, and -1 for padding.

    A document begins where `starts_BT` is True, padding is where `attention_mask` (B, T) is False;
    `before_BS` are the numbers of those before, which end in padding where a pass did. None means
    one document for all, unpadded.
    """
    if starts_BT is None and attention_mask is None and before_BS is None:
        return None
    documents_BT = torch.zeros_like(tokens)
    if starts_BT is not None:
        if attention_mask is not None:  # padding is often end-of-text, too
            starts_BT = starts_BT & attention_mask.bool()
        documents_BT = starts_BT.cumsum(1)
        if before_BS is not None:
            documents_BT = documents_BT + before_BS.amax(1, keepdim=True).clamp(min=0)
    if attention_mask is not None:
        documents_BT = documents_BT.masked_fill(~attention_mask.bool(), -1)
    return documents_BT


def places_in_documents(documents_BS: torch.Tensor) -> torch.Tensor:
    """How many of its document's tokens come before each position, (B, S).

    Documents are numbered as `documents_of` does.
    """
    before_BS = documents_BS.cummax(1).values.roll(1, dims=1)
    before_BS[:, 0] = -1
    seen_BS = (documents_BS >= 0).cumsum(1)
    first_BS = torch.where(documents_BS > before_BS, seen_BS, 0).cummax(1).values
    return seen_BS - first_BS


def mask_in_cache(documents_BS: torch.Tensor | None, places_T: torch.Tensor, S: int) -> Mask:
    """What the tokens at `places_T` see of S positions: themselves, and those of their document
    before; padding sees padding."""
    seen_TS = torch.arange(S, device=places_T.device) <= places_T[:, None]
    if documents_BS is None:
        return seen_TS[None, None]
    same_BTS = documents_BS[:, places_T, None] == documents_BS[:, None]
    return (seen_TS & same_BTS)[:, None]
