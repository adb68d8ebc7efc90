"""Read-outs: what is read of every token in every layer with gates, as one tensor; which tokens.

Shapes: B sequences, T positions, L layers with gates.
"""

import torch
import torch.nn.functional as F

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE

READOUTS = (
    "gate_deep", "gate_wide", "update_deep", "update_wide", "cosine", "deep_share",
    "expected_loops",
)  # fmt: skip
"""Fields of LayerTrace, each a number for every token and layer."""
DEFINITION = "deep share = g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖) of a token, then averaged"
"""The caption of tables."""


def most_steps(config: ModelConfig) -> int:
    """The largest K of the layers with gates."""
    return max(layer.loops for layer in config.layers if layer.block == "dual")


def dual_layers(trace: RoutingTrace) -> torch.Tensor:
    """Stacks the read-outs of the layers with gates: (B, T, L, READOUTS and a weight a step).

    A layer of fewer steps than another gives those that it has not a weight of 0.
    """
    gated = [layer for layer in trace.layers if layer.gate_deep is not None]
    most = max(layer.step_weights.shape[-1] for layer in gated if layer.step_weights is not None)
    layers = []
    for layer in gated:
        values = [getattr(layer, name) for name in READOUTS]
        assert layer.step_weights is not None
        weights = F.pad(layer.step_weights, (0, most - layer.step_weights.shape[-1]))
        layers.append(torch.cat([torch.stack(values, -1), weights], -1))
    return torch.stack(layers, 2)


def is_text(
    tokens: torch.Tensor, targets: torch.Tensor, bytes_of_token: torch.Tensor
) -> torch.Tensor:
    """Returns which tokens of a batch are read, (B, T); end-of-text is context alone.

    So is what each window begins with. `bytes_of_token` is 0 for special tokens.
    """
    text_BT = torch.zeros_like(tokens, dtype=torch.bool)
    text_BT[:, 1:] = (targets[:, :-1] != IGNORE) & (bytes_of_token[tokens[:, 1:]] > 0)
    return text_BT
