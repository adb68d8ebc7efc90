"""The sublayer Phi(x; s) that both paths are made of: attention, then SwiGLU, each scaled by s.

Shapes: B batch, T positions, D model width, H heads, N head size, F effective FFN width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.norm import RMSNorm
from dualpath_cli.model.rope import Rope, rotate


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

    def forward(self, x_BTD: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        heads = (*x_BTD.shape[:2], -1, self.config.head_dim)
        q_BTHN = self.q_proj(x_BTD).view(heads)
        k_BTHN = self.k_proj(x_BTD).view(heads)
        v_BTHN = self.v_proj(x_BTD).view(heads)
        # Rotation and norm come out in float32, the type of their tables and weights; queries and
        # keys then follow the values into the type of the attention kernel.
        if self.config.qk_norm == "before_rope":
            q_BTHN = rotate(self.q_norm(q_BTHN), rope)
            k_BTHN = rotate(self.k_norm(k_BTHN), rope)
        else:
            q_BTHN, k_BTHN = rotate(q_BTHN, rope), rotate(k_BTHN, rope)
        if self.config.qk_norm == "after_rope":
            q_BTHN, k_BTHN = self.q_norm(q_BTHN), self.k_norm(k_BTHN)
        y_BHTN = F.scaled_dot_product_attention(
            q_BTHN.to(v_BTHN.dtype).transpose(1, 2),
            k_BTHN.to(v_BTHN.dtype).transpose(1, 2),
            v_BTHN.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.config.n_kv_heads != self.config.n_heads,
        )
        return self.o_proj(y_BHTN.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """``W_2 (silu(W x) * V x)`` with the effective width of a configured one."""

    def __init__(self, config: ModelConfig, d_ffn: int) -> None:
        super().__init__()
        width = config.effective_width(d_ffn)
        self.gate_proj = nn.Linear(config.d_model, width, bias=False)
        self.up_proj = nn.Linear(config.d_model, width, bias=False)
        self.down_proj = nn.Linear(width, config.d_model, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class Sublayer(nn.Module):
    """Phi(x; s), Eq. 1: ``u = x + s Attn(RMSNorm(x))``, ``Phi = u + s FFN(RMSNorm(u))``."""

    def __init__(self, config: ModelConfig, d_ffn: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = SwiGLU(config, d_ffn)

    def forward(self, x_BTD: torch.Tensor, gain: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x; `gain` is s > 0, a 0-d tensor."""
        # The branches may come out in bf16 under autocast. They are scaled in x's type: at
        # s = 9e-4 a bf16 residual would swallow the update (docs/paper.md).
        attn_BTD = self.attn(self.attn_norm(x_BTD), rope)
        u_BTD = x_BTD + gain * attn_BTD.to(x_BTD.dtype)
        ffn_BTD = self.ffn(self.ffn_norm(u_BTD))
        return u_BTD + gain * ffn_BTD.to(x_BTD.dtype)
