"""The sublayer Phi(x; s) of both paths: attention, feed-forward, scaled by s.

In a loop each step may also have a learned scale and shift after both norms: FiLM
(Perez et al. 2018, arXiv 1709.07871), which is not in the paper.

A feed-forward is a module whose ``forward(x_BTD, here)`` maps (B, T, D) to (B, T, D),
and may add to the `LayerAuxiliary` of its pass.

Shapes: B batch, T positions, D model width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.kernels.rms_norm import RMSNorm
from dualpath_cli.model.attention import Attention
from dualpath_cli.model.layer_pass import KeyValuePair, SublayerPass
from dualpath_cli.model.positions import Positions
from dualpath_cli.spec.config import ModelConfig


class Scales(NamedTuple):
    """The factors that each application of a shared sublayer has for itself."""

    gain: torch.Tensor
    """s > 0, a 0-d tensor (Eq. 1)."""
    film: torch.Tensor | None = None
    """gamma and beta after the attention's norm and after the feed-forward's, (2, 2,
    D)."""

    def attn_input(self, normed_BTD: torch.Tensor) -> torch.Tensor:
        """``(1 + gamma) x + beta`` of the attention's input x; x without FiLM."""
        return self._film(normed_BTD, 0)

    def ffn_input(self, normed_BTD: torch.Tensor) -> torch.Tensor:
        """``(1 + gamma) x + beta`` of the feed-forward's input x; x without FiLM."""
        return self._film(normed_BTD, 1)

    def _film(self, normed_BTD: torch.Tensor, norm: int) -> torch.Tensor:
        if self.film is None:
            return normed_BTD

        gamma_D, beta_D = self.film[norm]
        return (1 + gamma_D) * normed_BTD + beta_D


class Sublayer(nn.Module):
    """Eq. 1: ``u = x + s Attn(RMSNorm(x))``, ``Phi = u + s FFN(RMSNorm(u))``."""

    def __init__(
        self, config: ModelConfig, ffn: nn.Module | None, own_kv: bool = True
    ) -> None:
        """`ffn` is any feed-forward, such as SwiGLU; without one, Phi is u."""
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config, own_kv)
        if ffn is not None:
            self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = ffn

    def forward(
        self, x_BTD: torch.Tensor, scales: Scales, here: SublayerPass
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x."""
        # The branches may come out in bf16 under autocast. They are scaled in x's type:
        # at s = 9e-4 a bf16 residual would swallow the update (docs/paper.md).
        attn_BTD = self.attn(scales.attn_input(self.attn_norm(x_BTD)), here)
        u_BTD = x_BTD + scales.gain * attn_BTD.to(x_BTD.dtype)
        if self.ffn is None:
            return u_BTD

        ffn_BTD = self.ffn(scales.ffn_input(self.ffn_norm(u_BTD)), here)
        return u_BTD + scales.gain * ffn_BTD.to(x_BTD.dtype)

    def keys_and_values(
        self, x_BTD: torch.Tensor, scales: Scales, positions: Positions
    ) -> KeyValuePair:
        """Keys and values of these tokens, (B, T, H, N) each."""
        normed_BTD = scales.attn_input(self.attn_norm(x_BTD))
        return self.attn.keys_and_values(normed_BTD, positions)


class SwiGLU(nn.Module):
    """``W_2 (silu(W x) * V x)`` with `width` hidden units."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, width, bias=False)
        self.up_proj = nn.Linear(d_model, width, bias=False)
        self.down_proj = nn.Linear(width, d_model, bias=False)

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); has no auxiliary loss."""
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
