"""Causal attention, over a whole sequence or over tokens that follow cached ones.

Shapes: B batch, T positions, S positions including cached ones, H heads, N head size, D
model width.
"""

import torch
from torch import nn

from dualpath_cli.kernels.attention import attend
from dualpath_cli.kernels.rms_norm import RMSNorm
from dualpath_cli.kernels.rotary import Rope, RotatedNorm, rotate
from dualpath_cli.model.layer_pass import KeyValuePair, SublayerPass
from dualpath_cli.model.positions import Positions
from dualpath_cli.spec.config import ModelConfig


class Attention(nn.Module):
    """Causal attention with rotary positions, QK-norm and grouped keys."""

    def __init__(self, config: ModelConfig, own_kv: bool = True) -> None:
        """Without `own_kv`, keys and values are another attention's."""
        super().__init__()
        self.config = config
        self.own_kv = own_kv
        d_model = config.d_model
        q_width = config.n_heads * config.head_dim
        kv_width = config.n_kv_heads * config.head_dim

        self.q_proj = nn.Linear(d_model, q_width, bias=False)
        if own_kv:
            self.k_proj = nn.Linear(d_model, kv_width, bias=False)
            self.v_proj = nn.Linear(d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, d_model, bias=False)

        self.q_norm = _head_norm(config)
        if own_kv:
            self.k_norm = _head_norm(config)

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        positions = here.positions
        q_BTC = self.q_proj(x_BTD)
        q_BTHN = self._rotated_and_normed(q_BTC, self.q_norm, positions.rope)

        # With a cache, also the keys and values of earlier tokens.
        seen = here.shared
        if seen is None:
            seen = here.seen(*self.keys_and_values(x_BTD, positions))
        k_BSHN, v_BSHN = seen
        y_BTHN = attend(q_BTHN, k_BSHN, v_BSHN, positions.mask)
        return self.o_proj(y_BTHN.flatten(2))

    def keys_and_values(
        self, x_BTD: torch.Tensor, positions: Positions
    ) -> KeyValuePair:
        """Keys and values of these tokens, (B, T, H, N) each; H is `n_kv_heads`."""
        k_BTC = self.k_proj(x_BTD)
        k_BTHN = self._rotated_and_normed(k_BTC, self.k_norm, positions.rope)
        return k_BTHN, self._by_head(self.v_proj(x_BTD))

    def _by_head(self, x_BTC: torch.Tensor) -> torch.Tensor:
        return x_BTC.view(*x_BTC.shape[:2], -1, self.config.head_dim)

    def _rotated_and_normed(
        self, x_BTC: torch.Tensor, norm: nn.Module, rope: Rope
    ) -> torch.Tensor:
        """Queries or keys, rotated and normalised, (B, T, H, N).

        In float32, the type of tables and weights.
        """
        x_BTHN = self._by_head(x_BTC)
        if isinstance(norm, RotatedNorm):
            return norm(x_BTHN, rope)
        return rotate(norm(x_BTHN), rope)


def _head_norm(config: ModelConfig) -> nn.Module:
    """The norm of each head's queries or keys."""
    if config.qk_norm == "none":
        return nn.Identity()

    kind = RMSNorm if config.qk_norm == "before_rope" else RotatedNorm
    return kind(config.head_dim, eps=config.norm_eps)
