"""The sublayer Phi(x; s) that both paths are made of: attention, then feed-forward, scaled by s.

Shapes: B batch, T positions, R some rows of the batch, D model width, H heads, N head size.
"""

from collections.abc import Iterable

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.attention import Attention
from dualpath_cli.model.cache import KeysAndValues, KeyValueCache, RowsOfCache
from dualpath_cli.model.feed_forward import AuxiliaryLoss
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.precision import RMSNorm


class Sublayer(nn.Module):
    """Phi(x; s), Eq. 1: ``u = x + s Attn(RMSNorm(x))``, ``Phi = u + s FFN(RMSNorm(u))``."""

    def __init__(self, config: ModelConfig, ffn: nn.Module) -> None:
        """`ffn` is any feed-forward, as `feed_forward` describes them."""
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = ffn

    def forward(
        self,
        x_BTD: torch.Tensor,
        gain: torch.Tensor,
        positions: Positions,
        auxiliary: AuxiliaryLoss | None = None,
        cache: KeysAndValues | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x; `gain` is s > 0, a 0-d tensor.

        `auxiliary` goes to the feed-forward, `cache` to the attention.
        """
        # The branches may come out in bf16 under autocast. They are scaled in x's type: at
        # s = 9e-4 a bf16 residual would swallow the update (docs/paper.md).
        attn_BTD = self.attn(self.attn_norm(x_BTD), positions, cache)
        u_BTD = x_BTD + gain * attn_BTD.to(x_BTD.dtype)
        ffn_BTD = self.ffn(self.ffn_norm(u_BTD), auxiliary)
        return u_BTD + gain * ffn_BTD.to(x_BTD.dtype)

    def only_some(
        self,
        x_B1D: torch.Tensor,
        chosen_B: torch.Tensor,
        gain: torch.Tensor,
        positions: Positions,
        cache: KeyValueCache,
    ) -> torch.Tensor:
        """Maps the next tokens of a batch, (B, 1, D), where `chosen_B` is True.

        The others, of which nothing is computed or kept, come out as they are.
        """
        (rows_R,) = chosen_B.nonzero(as_tuple=True)
        if len(rows_R) == 0:
            return x_B1D
        if len(rows_R) == len(x_B1D):
            return self(x_B1D, gain, positions, cache=cache)
        part = RowsOfCache(cache, rows_R)
        y_R1D = self(x_B1D[rows_R], gain, positions.rows(rows_R), cache=part)
        return x_B1D.index_copy(0, rows_R, y_R1D)

    def keep(
        self,
        x_B1D: torch.Tensor,
        chosen_B: torch.Tensor,
        positions: Positions,
        caches: Iterable[KeysAndValues],
    ) -> None:
        """Writes what later tokens see of those chosen into all of `caches`, and no more."""
        (rows_R,) = chosen_B.nonzero(as_tuple=True)
        if len(rows_R) == 0:
            return
        x_R1D = self.attn_norm(x_B1D[rows_R])
        k_R1HN, v_R1HN = self.attn.keys_and_values(x_R1D, positions.rows(rows_R))
        for cache in caches:
            assert isinstance(cache, KeyValueCache)
            RowsOfCache(cache, rows_R).write(k_R1HN.to(v_R1HN.dtype), v_R1HN)
