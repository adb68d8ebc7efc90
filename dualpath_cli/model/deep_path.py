"""The deep path: one sublayer applied K times, its states mixed per token by a router.

Eqs. 2 and 3. Overrides, read-outs and the entry for decoding are in `layer_pass.py`.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.combinations import learned_combination
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.sublayer import Scales, Sublayer, SwiGLU
from dualpath_cli.spec.config import LayerConfig


class DeepPath(nn.Module):
    """``h_k = Phi_deep(h_{k-1}; s_k)`` (Eq. 2), ``h_deep = sum_k w_k h_k`` (Eq. 3)."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        # ModelConfig refuses deep blocks without a width
        assert config.d_ffn is not None
        self.config = config

        ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn))
        self.sublayer = Sublayer(config, ffn)
        self.gains = nn.Parameter(torch.empty(config.loops))  # alpha_1 .. alpha_K

        # gamma and beta of each step, norm by norm
        if config.step_conditioning == "film":
            self.film = nn.Parameter(torch.empty(config.loops, 2, 2, config.d_model))

        # custom combinations have this name, too
        if config.routes_steps:
            self.router = learned_combination(config)

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        step_indices = self.config.step_indices(layer.loops)
        loops = len(step_indices)

        h_BTD = x_BTD  # h_0
        states = []
        for k in range(1, loops + 1):
            h_BTD = self.next_state(h_BTD, k, layer)  # Eq. 2
            states.append(h_BTD)

        weights = self.step_weights(states, step_indices)
        layer.record_steps(x_BTD, states, weights, loops)
        return mixture(weights, states)  # Eq. 3

    def next_state(self, h_BTD: torch.Tensor, k: int, layer: LayerPass) -> torch.Tensor:
        """``h_k = Phi_deep(h_{k-1}; s_k)``, (B, T, D), of h_{k-1} (Eq. 2)."""
        return self.sublayer(h_BTD, self.scales(k), layer.step(k))

    def scales(self, k: int) -> Scales:
        """``s_k = softplus(alpha_k)`` and the FiLM of step k; beyond K, those of K."""
        last = min(k, self.config.loops) - 1
        gain = F.softplus(self.gains[last])
        film = self.film[last] if self.config.step_conditioning == "film" else None
        return Scales(gain, film)

    def step_weights(
        self, states: Sequence[torch.Tensor], step_indices: Sequence[float]
    ) -> list[torch.Tensor]:
        """The weights of states (B, T, D) in h_deep, (B, T, 1) each (Eq. 3).

        Combination `mean` gives equal weights; `final` gives one weight, the last
        state's.
        """
        combination = self.config.combination
        if combination == "final" or len(states) == 1:
            return [torch.ones_like(states[0][..., :1])]

        if combination == "mean":
            whole_BT1 = torch.ones_like(states[0][..., :1])
            return [whole_BT1 / len(states)] * len(states)

        # In the parameters' type, also under autocast.
        with torch.autocast(states[0].device.type, enabled=False):
            precise = [h_BTD.to(self.gains.dtype) for h_BTD in states]
            return list(self.router(precise, step_indices))


def mixture(
    weights: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
) -> torch.Tensor:
    """``sum_k w_k h_k`` over the last states that have a weight, (B, T, D)."""
    weighed = states[-len(weights) :]
    terms = (w_BT1 * h_BTD for w_BT1, h_BTD in zip(weights, weighed, strict=True))
    return reduce(torch.add, terms)
