"""Positions and masks of tokens that follow those in a cache, or are padded.

Shapes: B batch, T positions of a pass, S positions with those in a cache before, C positions that a
cache has room for, R some rows of the batch.
"""

import torch

from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.cache import Cache
from dualpath_cli.kernels.attention import Mask
from dualpath_cli.model.positions import Positions, Rope, rope_at


def positions_in_cache(
    config: ModelConfig,
    tokens: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache,
    like: torch.Tensor,
) -> Positions:
    """Adds tokens (B, T) to a cache and returns their positions.

    `attention_mask` (B, T) is False at padding.
    """
    count = tokens.shape[1]
    places_T = torch.arange(cache.length, cache.length + count, device=tokens.device)
    starts_BT = None if config.document_start is None else tokens == config.document_start
    documents_BT = documents_of(tokens, starts_BT, attention_mask, cache.documents_BS)
    documents_BS = cache.extend(count, documents_BT)
    if documents_BS is not None:
        places_BT = places_in_documents(documents_BS)[:, places_T]
        mask = mask_in_cache(documents_BS, places_T, documents_BS.shape[1])
        return Positions(rope_at(config, places_BT, like), mask)
    seen = None if cache.static is None else mask_in_cache(None, places_T, cache.capacity)
    return Positions(rope_at(config, places_T, like), seen)


def rows_of(positions: Positions, rows_R: torch.Tensor) -> Positions:
    """The positions of some sequences of the batch."""
    rope, mask = positions
    if rope.cos.dim() == 4:
        rope = Rope(*(table[rows_R] for table in rope))
    if mask is not None and mask.shape[0] > 1:
        mask = mask[rows_R]
    return Positions(rope, mask)


def documents_of(
    tokens: torch.Tensor,
    starts_BT: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    before_BS: torch.Tensor | None,
) -> torch.Tensor | None:
    """Numbers the documents of positions, (B, T): from 0 on, and -1 for padding.

    A document begins where `starts_BT` is True; `attention_mask` (B, T) is False at padding;
    `before_BS` are the numbers of earlier positions. None: one document, no padding.
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
    """Mask of tokens at `places_T` over S positions: each sees itself and its document's earlier
    ones; padding sees padding."""
    seen_TS = torch.arange(S, device=places_T.device) <= places_T[:, None]
    if documents_BS is None:
        return seen_TS[None, None]
    same_BTS = documents_BS[:, places_T, None] == documents_BS[:, None]
    return (seen_TS & same_BTS)[:, None]
