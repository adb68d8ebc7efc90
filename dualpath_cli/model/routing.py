"""RoutingTrace: what `DualPathLM.forward` writes down about its routing when asked."""

from dataclasses import dataclass, field

import torch


@dataclass
class LayerTrace:
    """One layer's routing; a field stays None where the layer's block has no such choice."""

    gate_deep: torch.Tensor | None = None
    """g_d of every token, (B, T) (Eq. 5)."""
    gate_wide: torch.Tensor | None = None
    """g_w of every token, (B, T) (Eq. 5)."""
    step_weights: torch.Tensor | None = None
    """Weight of each step in h_deep, pi_k q_k and pi_K, (B, T, K) (Eq. 3); sums to 1 over K."""
    loops_run: int | None = None
    """Steps that were really run: fewer than K where every token of the batch had halted."""

    @property
    def expected_loops(self) -> torch.Tensor | None:
        """Mean of the step number k under the step weights, (B, T), between 1 and K."""
        if self.step_weights is None:
            return None
        loops = self.step_weights.shape[-1]
        steps = torch.arange(1, loops + 1, device=self.step_weights.device)
        return (self.step_weights * steps).sum(-1)


@dataclass
class RoutingTrace:
    """Pass an empty one to ``forward(tokens, trace=trace)``: it gets one LayerTrace per layer."""

    layers: list[LayerTrace] = field(default_factory=list)

    def add_layer(self) -> LayerTrace:
        """Appends an empty LayerTrace, for the next block to fill, and returns it."""
        self.layers.append(LayerTrace())
        return self.layers[-1]
