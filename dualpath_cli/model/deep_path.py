"""The deep path: one sublayer applied K times, its states mixed per token by a router.

Eqs. 2 and 3. Beyond the paper, steps may have sublayers of their own (`untied_steps`),
share the keys and values of the first step (`step_kv`), or have no feed-forward
(`deep_ffn`). Overrides, read-outs and the entry for decoding are in `layer_pass.py`.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.combinations import (
    learned_combination,
    mixture,
    routed_weights,
    with_held,
)
from dualpath_cli.model.layer_pass import KeyValuePair, LayerPass
from dualpath_cli.model.sublayer import Scales, Sublayer, SwiGLU
from dualpath_cli.spec.config import LayerConfig


class DeepPath(nn.Module):
    """``h_k = Phi_deep(h_{k-1}; s_k)`` (Eq. 2), ``h_deep = sum_k w_k h_k`` (Eq. 3)."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config

        if config.untied_steps:
            steps = range(1, config.loops + 1)
            self.sublayers = nn.ModuleList(_sublayer(config, k) for k in steps)
        else:
            self.sublayer = _sublayer(config)

        # alpha_1 .. alpha_K, in a core for each repetition
        self.gains = nn.Parameter(torch.empty(config.core_loops * config.loops))

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
        shared = self.shared_keys_and_values(x_BTD, layer)

        h_BTD = x_BTD  # h_0
        states = []
        for k in range(1, layer.moving(loops) + 1):
            h_BTD = self.next_state(h_BTD, k, layer, shared)  # Eq. 2
            h_BTD = layer.constant(h_BTD, k, loops)
            states.append(h_BTD)

        weights = with_held(self.step_weights, states, step_indices)
        layer.record_steps(x_BTD, states, weights, loops)
        return mixture(weights, states)  # Eq. 3

    def next_state(
        self,
        h_BTD: torch.Tensor,
        k: int,
        layer: LayerPass,
        shared: KeyValuePair | None = None,
    ) -> torch.Tensor:
        """``h_k = Phi_deep(h_{k-1}; s_k)``, (B, T, D), of h_{k-1} (Eq. 2)."""
        here = layer.step(k)
        here.shared = shared
        state_BTD: torch.Tensor = self.sublayer_of(k)(
            h_BTD, self.scales(k, layer), here
        )
        return state_BTD

    def sublayer_of(self, k: int) -> Sublayer:
        """The sublayer of step k; beyond K, that of K."""
        if not self.config.untied_steps:
            return self.sublayer

        sublayer = self.sublayers[min(k, self.config.loops) - 1]
        assert isinstance(sublayer, Sublayer)
        return sublayer

    def shared_keys_and_values(
        self, x_BTD: torch.Tensor, layer: LayerPass
    ) -> KeyValuePair | None:
        """The keys and values of the first step if they serve all steps, else None."""
        if self.config.step_kv == "own":
            return None

        first = layer.step(1)
        scales = self.scales(1, layer)
        own = self.sublayer_of(1).keys_and_values(x_BTD, scales, first.positions)
        return first.seen(*own)

    def scales(self, k: int, layer: LayerPass) -> Scales:
        """``s_k = softplus(alpha_k)`` and the FiLM of step k; beyond K, those of K."""
        last = min(k, self.config.loops) - 1
        gains_K = layer.own_gains(self.gains, self.config.core_loops)
        gain = F.softplus(gains_K[last])
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

        dtype = self.gains.dtype
        return routed_weights(self.router, states, step_indices, dtype)


def _sublayer(config: LayerConfig, k: int = 1) -> Sublayer:
    """The sublayer of all steps, or of step k."""
    ffn = None
    if config.deep_ffn:
        # ModelConfig refuses deep blocks without a width
        assert config.d_ffn is not None
        ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn))

    own_kv = k == 1 or config.step_kv == "own"
    return Sublayer(config, ffn, own_kv)
