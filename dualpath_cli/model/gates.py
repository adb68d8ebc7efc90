"""The gates of a dual block, by which each token weighs its two paths (above Eq. 5).

Shapes: B batch, T positions, D model width.
"""

import torch
from torch import nn

from dualpath_cli.kernels.linear import ToFew
from dualpath_cli.spec.config import GATE_OUTPUTS, ModelConfig
from dualpath_cli.spec.own_classes import own_class

Gates = tuple[torch.Tensor, torch.Tensor]
"""g_d and g_w, each (B, T, 1)."""


class PathGate(nn.Module):
    """``g_d, g_w = sigmoid(x W_g + b_g)``, the paper's gate.

    The other kinds are variants of the authors' revision (docs/paper.md).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.gate
        n_outputs = GATE_OUTPUTS[self.kind]
        if n_outputs:
            self.proj = ToFew(config.d_model, n_outputs)

    def forward(self, x_BTD: torch.Tensor) -> Gates:
        """Returns (g_d, g_w) for the block's input x."""
        if self.kind == "fixed":
            half = torch.full_like(x_BTD[..., :1], 0.5)
            return half, half

        logits = self.proj(x_BTD)  # l_d, l_w; `convex` has one
        if self.kind == "convex":
            g_BT1 = logits.sigmoid()
            return g_BT1, 1 - g_BT1

        if self.kind == "two_gates":
            gates_BT2 = logits.sigmoid()
        elif self.kind == "softmax":
            gates_BT2 = logits.softmax(-1)
        else:
            raise NotImplementedError(f"gate '{self.kind}' has no equation")

        return gates_BT2[..., :1], gates_BT2[..., 1:]


def path_gate(config: ModelConfig) -> nn.Module:
    """The gate of a dual block, built-in or custom: maps x (B, T, D) to `Gates`."""
    if config.gate in GATE_OUTPUTS:
        return PathGate(config)

    module: nn.Module = own_class(config, "gate")(config)
    return module
