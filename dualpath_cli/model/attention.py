"""Causal attention, over a whole sequence or over the tokens that follow one.

Shapes: B batch, T positions, S positions with those seen before, H heads, N head size.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dualpath_cli.config import ModelConfig
from dualpath_cli.kernels.blockwise_attention import blockwise_attention
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.model.positions import Mask, Positions, Rope, rotate
from dualpath_cli.model.precision import RMSNorm

_flex_attention = torch.compile(flex_attention)  # uncompiled it would hold all scores

LEAST = 64
"""Positions from which on attention by blocks is faster than PyTorch's kernel for the CPU."""


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

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        rope, mask = here.positions
        q_BTHN = self.q_proj(x_BTD).view(*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BTHN = self._placed(q_BTHN, rope, "q_norm")
        k_BSHN, v_BSHN = here.seen(*self.keys_and_values(x_BTD, here.positions))
        return self.o_proj(attend(q_BTHN, k_BSHN, v_BSHN, mask).flatten(2))

    def keys_and_values(
        self, x_BTD: torch.Tensor, positions: Positions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of these tokens, for later ones to see, (B, T, H, N) each."""
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        k_BTHN, v_BTHN = self.k_proj(x_BTD).view(heads), self.v_proj(x_BTD).view(heads)
        return self._placed(k_BTHN, positions.rope, "k_norm"), v_BTHN

    def _placed(self, x_BTHN: torch.Tensor, rope: Rope, norm: str) -> torch.Tensor:
        """Queries or keys, turned and normalised; in float32, the type of tables and weights."""
        if self.config.qk_norm == "before_rope":
            return rotate(getattr(self, norm)(x_BTHN), rope)
        x_BTHN = rotate(x_BTHN, rope)
        return x_BTHN if self.config.qk_norm == "none" else getattr(self, norm)(x_BTHN)


def attend(
    q_BTHN: torch.Tensor, k_BSHN: torch.Tensor, v_BSHN: torch.Tensor, mask: Mask | None = None
) -> torch.Tensor:
    """Causal attention of the last T of S positions, (B, T, H, N) in the type of the values.

    Keys and values may have fewer heads, each for as many neighbouring query heads. Without a
    `mask` every token looks at itself and all before it.
    """
    T, S = q_BTHN.shape[1], k_BSHN.shape[1]
    by_blocks = T == S >= LEAST and v_BSHN.dtype == torch.bfloat16
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
