"""Causal attention, over a whole sequence or, with a cache, over the tokens that follow one.

Shapes: B batch, T positions, S positions with those cached before, H heads, N head size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.blockwise_attention import blockwise_attention
from dualpath_cli.model.positions import Mask, Positions
from dualpath_cli.model.precision import RMSNorm
from dualpath_cli.model.rope import rotate

_flex_attention = torch.compile(flex_attention)  # uncompiled it would hold all scores

LEAST = 64
"""Positions from which on attention by blocks is faster than PyTorch's kernel for the CPU."""


@dataclass
class KeyValueCache:
    """Keys and values of all tokens that an attention has seen, rotated and normalised.

    Empty at the start of a sequence. The deep path's loop needs one cache a step: its steps share
    weights, not states.
    """

    keys: torch.Tensor | None = None
    """(B, S, H, N), one head for each of `ModelConfig.n_kv_heads`."""
    values: torch.Tensor | None = None
    """(B, S, H, N)."""

    def append(
        self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the keys and values of T tokens and returns those of all S so far."""
        if self.keys is None or self.values is None:
            self.keys, self.values = k_BTHN, v_BTHN
        else:
            self.keys = torch.cat((self.keys, k_BTHN), dim=1)
            self.values = torch.cat((self.values, v_BTHN), dim=1)
        return self.keys, self.values


class Attention(nn.Module):
    """Causal attention with rotary positions, QK-norm per head and grouped keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        q_width = config.n_heads * config.head_dim
        kv_width = config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.d_model, q_width, bias=False)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, config.d_model, bias=False)
        if config.qk_norm != "none":
            self.q_norm = RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.norm_eps)

    def forward(
        self, x_BTD: torch.Tensor, positions: Positions, cache: KeyValueCache | None = None
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D).

        With a `cache` the T tokens follow those in it, and are added to it; the rotation is then
        that of their positions (`rope_tables` with a `start`), and a mask has no meaning.
        """
        rope, mask = positions
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BTHN = self.q_proj(x_BTD).view(heads)
        k_BTHN = self.k_proj(x_BTD).view(heads)
        v_BTHN = self.v_proj(x_BTD).view(heads)
        # Rotation and norm come out in float32, the type of their tables and weights.
        if self.config.qk_norm == "before_rope":
            q_BTHN = rotate(self.q_norm(q_BTHN), rope)
            k_BTHN = rotate(self.k_norm(k_BTHN), rope)
        else:
            q_BTHN, k_BTHN = rotate(q_BTHN, rope), rotate(k_BTHN, rope)
        if self.config.qk_norm == "after_rope":
            q_BTHN, k_BTHN = self.q_norm(q_BTHN), self.k_norm(k_BTHN)
        if cache is not None:
            y_BTHN = attend_to_cache(q_BTHN, k_BTHN, v_BTHN, cache)
        else:
            y_BTHN = attend(q_BTHN, k_BTHN, v_BTHN, mask)
        return self.o_proj(y_BTHN.flatten(2))


def attend(
    q_BTHN: torch.Tensor, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor, mask: Mask | None = None
) -> torch.Tensor:
    """Causal attention over a whole sequence, (B, T, H, N) in the type of the values.

    Keys and values may have fewer heads, each for as many neighbouring query heads. Without a
    `mask` every token looks at itself and all before it.
    """
    long = v_BTHN.shape[1] >= LEAST
    if long and v_BTHN.device.type == "cpu" and v_BTHN.dtype == torch.bfloat16:
        assert not isinstance(mask, BlockMask)
        return _attend_by_blocks(q_BTHN, k_BTHN, v_BTHN, mask)
    q_BHTN, k_BHTN, v_BHTN = (
        x_BTHN.to(v_BTHN.dtype).transpose(1, 2) for x_BTHN in (q_BTHN, k_BTHN, v_BTHN)
    )
    shared = k_BTHN.shape[2] != q_BTHN.shape[2]
    if isinstance(mask, BlockMask):
        y_BHTN = _flex_attention(q_BHTN, k_BHTN, v_BHTN, block_mask=mask, enable_gqa=shared)
    else:
        y_BHTN = F.scaled_dot_product_attention(
            q_BHTN, k_BHTN, v_BHTN, attn_mask=mask, is_causal=mask is None, enable_gqa=shared
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


def attend_to_cache(
    q_BTHN: torch.Tensor, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor, cache: KeyValueCache
) -> torch.Tensor:
    """Attention of T tokens to themselves and to those in the cache, to which they are added."""
    k_BSHN, v_BSHN = cache.append(k_BTHN.to(v_BTHN.dtype), v_BTHN)
    T, S = q_BTHN.shape[1], k_BSHN.shape[1]
    # The kernel's own causal mask lets the first query see the first key alone.
    mask_TS = torch.ones(T, S, dtype=torch.bool, device=q_BTHN.device).tril(S - T)
    y_BHTN = F.scaled_dot_product_attention(
        q_BTHN.to(v_BTHN.dtype).transpose(1, 2),
        k_BSHN.transpose(1, 2),
        v_BSHN.transpose(1, 2),
        attn_mask=mask_TS,
        enable_gqa=k_BSHN.shape[2] != q_BTHN.shape[2],
    )
    return y_BHTN.transpose(1, 2)
