"""Read-outs: what is read of every token in every layer with gates, as one tensor; which tokens.

Shapes: B sequences, T positions, L layers with gates, K loops, C experts that a token takes.
"""

import math
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE

Values = TypeVar("Values", torch.Tensor, np.ndarray)

READOUTS = (
    "gate_deep", "gate_wide", "update_deep", "update_wide", "cosine", "deep_share",
    "expected_loops",
)  # fmt: skip
"""Fields of LayerTrace, each a number for every token and layer."""
STEP_READOUTS = {"step_weights": 0.0, "step_sizes": math.nan, "step_cosines": math.nan}
"""Fields of LayerTrace, each K numbers; what stands for a step that a layer of fewer does not have.
"""
EXPERT_READOUTS = ("experts", "expert_weights")
"""Fields of LayerTrace, each C numbers, of layers whose wide path has experts."""
DEFINITION = "deep share = g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖) of a token, then averaged"
"""The caption of tables."""
STEP_DEFINITION = (
    "size = ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖, h_0 = x; cosine of h_k - h_{k-1} and h_{k-1} - h_{k-2}; "
    "of a token, then averaged"
)
"""The caption of tables of steps."""


def most_steps(config: ModelConfig) -> int:
    """The largest K of the layers with gates."""
    return max(layer.loops for layer in config.layers if layer.block == "dual")


def dual_layers(trace: RoutingTrace) -> torch.Tensor:
    """Stacks the read-outs of the layers with gates: (B, T, L, READOUTS and K STEP_READOUTS each).

    Where layers have different numbers of steps, K is the largest.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    loops = max(layer.step_weights.shape[-1] for layer in dual if layer.step_weights is not None)
    layers = []
    for layer in dual:
        values = [getattr(layer, name) for name in READOUTS]
        steps = ((getattr(layer, name), blank) for name, blank in STEP_READOUTS.items())
        padded = [F.pad(x, (0, loops - x.shape[-1]), value=blank) for x, blank in steps]
        layers.append(torch.cat([torch.stack(values, -1), *padded], -1))
    return torch.stack(layers, 2)


def experts_of(trace: RoutingTrace) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token in the layers with gates, and their weights: (B, T, L, C) each.

    A layer without experts has -1 and nan; C is 0 where none has any.
    """
    dual = [layer for layer in trace.layers if layer.gate_deep is not None]
    gates = [layer.gate_deep for layer in dual if layer.gate_deep is not None]
    most = max(0 if layer.experts is None else layer.experts.shape[-1] for layer in dual)
    chosen = torch.full((*gates[0].shape, len(dual), most), -1, device=gates[0].device)
    weights = torch.full(chosen.shape, math.nan, device=chosen.device)
    for place, layer in enumerate(dual):
        if layer.experts is not None and layer.expert_weights is not None:
            own = layer.experts.shape[-1]  # fewer where an override takes fewer
            chosen[..., place, :own] = layer.experts
            weights[..., place, :own] = layer.expert_weights
    return chosen, weights


def experts_by_layer(config: ModelConfig) -> list[int]:
    """The number of experts of each layer with gates, (L,); 0 is a dense wide path."""
    return [layer.n_experts for layer in config.layers if layer.block == "dual"]


def by_name(values: Values) -> dict[str, Values]:
    """Takes the tensor or array of `dual_layers`, (..., columns), apart: (...) or (..., K)."""
    split, loops = len(READOUTS), (values.shape[-1] - len(READOUTS)) // len(STEP_READOUTS)
    found = {name: values[..., column] for column, name in enumerate(READOUTS)}
    for place, name in enumerate(STEP_READOUTS):
        found[name] = values[..., split + place * loops : split + (place + 1) * loops]
    return found


def two_digits(size: float) -> str:
    """A size as tables have it, such as 0.30 or 0.00091."""
    return f"{size:#.2g}".rstrip(".")


def is_text(
    tokens: torch.Tensor, targets: torch.Tensor, bytes_of_token: torch.Tensor
) -> torch.Tensor:
    """Returns which tokens of a batch are read, (B, T); end-of-text is context alone.

    So is what each window begins with. `bytes_of_token` is 0 for special tokens.
    """
    text_BT = torch.zeros_like(tokens, dtype=torch.bool)
    text_BT[:, 1:] = (targets[:, :-1] != IGNORE) & (bytes_of_token[tokens[:, 1:]] > 0)
    return text_BT
