"""Causal attention by the fastest kernel there is for a device, a type and a mask.

Shapes: B batch, T positions, S positions with those seen before, H heads, N head size.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dualpath_cli.kernels.blockwise_attention import AMX, blockwise_attention

Mask = torch.Tensor | BlockMask
"""Where a query may look: blocks for FlexAttention, or (B, 1, T, S) of bool."""

BY_BLOCKS = range(64, 1536 if AMX else 2**31)
"""Positions with which attention by blocks is faster than PyTorch's kernel for the CPU."""

_flex_attention = torch.compile(flex_attention)  # uncompiled it would hold all scores


def attend(
    q_BTHN: torch.Tensor, k_BSHN: torch.Tensor, v_BSHN: torch.Tensor, mask: Mask | None = None
) -> torch.Tensor:
    """Causal attention of the last T of S positions, (B, T, H, N) in the type of the values.

    Keys and values may have fewer heads, each for as many neighbouring query heads. Without a
    `mask` every token looks at itself and all before it.
    """
    T, S = q_BTHN.shape[1], k_BSHN.shape[1]
    by_blocks = T == S and T in BY_BLOCKS and v_BSHN.dtype == torch.bfloat16
    if by_blocks and v_BSHN.device.type == "cpu":
        assert not isinstance(mask, BlockMask)
        return _attend_by_blocks(q_BTHN, k_BSHN, v_BSHN, mask)
    q_BHTN, k_BHSN, v_BHSN = (x.to(v_BSHN.dtype).transpose(1, 2) for x in (q_BTHN, k_BSHN, v_BSHN))
    shared = k_BSHN.shape[2] != q_BTHN.shape[2]
    if isinstance(mask, BlockMask):
        y_BHTN = _flex_attention(q_BHTN, k_BHSN, v_BHSN, block_mask=mask, enable_gqa=shared)
    else:
        causal = mask is None and T == S
        if mask is None and 1 < T < S:  # the kernel's own mask lets the first query see one key
            mask = torch.ones(T, S, dtype=torch.bool, device=q_BTHN.device).tril(S - T)
        y_BHTN = F.scaled_dot_product_attention(
            q_BHTN, k_BHSN, v_BHSN, attn_mask=mask, is_causal=causal, enable_gqa=shared
        )
    return y_BHTN.transpose(1, 2)


def _attend_by_blocks(
    q_BTHN: torch.Tensor, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    shared = q_BTHN.shape[2] // k_BTHN.shape[2]
    if shared > 1:
        k_BTHN, v_BTHN = (x.repeat_interleave(shared, dim=2) for x in (k_BTHN, v_BTHN))
    q_BTHN = q_BTHN * q_BTHN.shape[-1] ** -0.5  # before it is rounded
    q_BTHN, k_BTHN = q_BTHN.to(v_BTHN.dtype), k_BTHN.to(v_BTHN.dtype)
    return blockwise_attention(q_BTHN, k_BTHN, v_BTHN, None if mask is None else mask[:, 0])
