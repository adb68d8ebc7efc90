"""The dual-path block: a looped deep path beside a wide path, added up by per-token gates.

Shapes: B batch, T positions, D model width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import BlockKind, ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model.cache import KeyValueCache, LayerCache
from dualpath_cli.model.deep_path import DeepPath
from dualpath_cli.model.feed_forward import AuxiliaryLoss, SwiGLU
from dualpath_cli.model.gates import overridden, path_gate
from dualpath_cli.model.halting import Lens
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.model.sublayer import Sublayer


class WidePath(nn.Module):
    """h_wide: a sublayer with a bigger FFN, applied once (Eq. 4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ffn_wide is not None  # ModelConfig refuses wide blocks without it
        ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn_wide))
        self.sublayer = Sublayer(config, ffn)
        self.gain = nn.Parameter(torch.empty(1))  # not a scalar: FSDP2 shards dimension 0

    def forward(
        self,
        x_BTD: torch.Tensor,
        positions: Positions,
        auxiliary: AuxiliaryLoss | None = None,
        cache: LayerCache | None = None,
        awake_BT1: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); where `awake_BT1` is False, x comes out."""
        gain, kept = F.softplus(self.gain[0]), None if cache is None else cache.wide
        if (
            awake_BT1 is not None
            and cache is not None
            and cache.rows_can_part
            and x_BTD.shape[1] == 1
        ):
            assert isinstance(kept, KeyValueCache)
            awake_B = awake_BT1[:, 0, 0]
            self.sublayer.keep(x_BTD, ~awake_B, positions, [kept])
            return self.sublayer.only_some(x_BTD, awake_B, gain, positions, kept)
        h_BTD = self.sublayer(x_BTD, gain, positions, auxiliary, kept)
        return h_BTD if awake_BT1 is None else torch.where(awake_BT1, h_BTD, x_BTD)


class DualPathBlock(nn.Module):
    """One layer, Eq. 5: ``y = g_d h_deep + g_w h_wide``; `loop` and `wide` blocks keep one path."""

    def __init__(self, config: ModelConfig, kind: BlockKind) -> None:
        super().__init__()
        self.kind = kind
        if kind != "wide":
            self.deep = DeepPath(config)
        if kind != "loop":
            self.wide = WidePath(config)
        if kind == "dual":
            self.gate = path_gate(config)

    def forward(
        self,
        x_BTD: torch.Tensor,
        positions: Positions,
        trace: LayerTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
        order_B2T: torch.Tensor | None = None,
        auxiliary: AuxiliaryLoss | None = None,
        cache: LayerCache | None = None,
        lens: Lens | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x; writes what it did into `trace`.

        `intervention` is what applies to this layer, `token_mask` to which of its tokens (see
        `DualPathLM.forward`); `order_B2T` is this layer's of `gates.shuffled_positions`, `lens`
        what halting by entropy takes.
        """
        g_d = g_w = awake_deep = awake_wide = h_deep = h_wide = None
        if self.kind == "dual":
            # In the weights' own type also under autocast, as they are few and decide much.
            with torch.autocast(x_BTD.device.type, enabled=False):
                g_d, g_w = self.gate(x_BTD.to(self.wide.gain.dtype))
            if intervention is not None and intervention.gates is not None:
                g_d, g_w = overridden((g_d, g_w), intervention.gates, token_mask, order_B2T)
            if intervention is not None and intervention.skip is not None:
                awake_deep, awake_wide = g_d >= intervention.skip, g_w >= intervention.skip
        if self.kind != "wide":
            h_deep = self.deep(
                x_BTD, positions, trace, intervention, token_mask, auxiliary, cache, awake_deep,
                lens,
            )  # fmt: skip
        if self.kind != "loop":
            h_wide = self.wide(x_BTD, positions, auxiliary, cache, awake_wide)
            if trace is not None:
                trace.record_wide(x_BTD, awake_wide)
        if trace is not None:
            trace.record_updates(x_BTD, h_deep, h_wide)
        if g_d is not None and g_w is not None:
            if trace is not None:
                trace.gate_deep, trace.gate_wide = g_d.squeeze(-1), g_w.squeeze(-1)
            return (g_d * h_deep + g_w * h_wide).to(x_BTD.dtype)
        only = h_wide if h_deep is None else h_deep
        assert only is not None
        return only.to(x_BTD.dtype)
