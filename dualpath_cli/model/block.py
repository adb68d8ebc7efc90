"""The dual-path block: a looped deep path and a wide path, summed by per-token gates.

Eqs. 4 and 5. Overrides, read-outs and the entry for decoding are in `layer_pass.py`.

Shapes: B batch, T positions, D model width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.deep_path import DeepPath
from dualpath_cli.model.experts import Experts
from dualpath_cli.model.gates import Gates, path_gate
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.sublayer import Scales, Sublayer, SwiGLU
from dualpath_cli.spec.config import LayerConfig


class WidePath(nn.Module):
    """Eq. 4: ``h_wide = Phi_wide(x; s_w)``, ``s_w = softplus(beta)``.

    The FFN may be experts, which the paper names as its next step (`model/experts.py`).
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        # ModelConfig refuses wide blocks without a width
        assert config.d_ffn_wide is not None

        ffn: nn.Module
        if config.n_experts:
            ffn = Experts(config)
        else:
            ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn_wide))
        self.sublayer = Sublayer(config, ffn)

        # Beta, in a core of each repetition. Not a scalar: FSDP2 shards dimension 0.
        self.gain = nn.Parameter(torch.empty(config.core_loops))
        self.repetitions = config.core_loops

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        return self.sublayer(x_BTD, self.scales(layer), layer.wide())

    def scales(self, layer: LayerPass) -> Scales:
        """``s_w = softplus(beta)``, without FiLM."""
        gain_1 = layer.own_gains(self.gain, self.repetitions)
        return Scales(F.softplus(gain_1[0]))


class DualPathBlock(nn.Module):
    """One layer, Eq. 5: ``y = g_d h_deep + g_w h_wide``.

    `loop` and `wide` blocks have one path.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.kind = config.block

        if self.kind != "wide":
            self.deep = DeepPath(config)
        if self.kind != "loop":
            self.wide = WidePath(config)
        if self.kind == "dual":
            self.gate = path_gate(config)

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D) in the type of x."""
        h_deep = h_wide = None

        if self.kind == "dual":
            g_d, g_w = layer.gates(self.gates(x_BTD))
            h_deep = layer.run_deep(self.deep, x_BTD, g_d)
            h_wide = layer.run_wide(self.wide, x_BTD, g_w)
            y_BTD = g_d * h_deep + g_w * h_wide  # Eq. 5
        elif self.kind == "loop":
            y_BTD = h_deep = layer.run_deep(self.deep, x_BTD)
        else:
            y_BTD = h_wide = layer.run_wide(self.wide, x_BTD)

        layer.record_updates(x_BTD, h_deep, h_wide)
        return y_BTD.to(x_BTD.dtype)

    def gates(self, x_BTD: torch.Tensor) -> Gates:
        """The learned g_d and g_w, (B, T, 1) each, in the weights' type.

        Also under autocast.
        """
        with torch.autocast(x_BTD.device.type, enabled=False):
            gates: Gates = self.gate(x_BTD.to(self.wide.gain.dtype))
        return gates
