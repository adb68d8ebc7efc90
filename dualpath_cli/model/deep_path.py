"""The deep path: one sublayer applied K times, its states mixed per token by a router.

Eqs. 2 and 3. All that a pass does beside them is in `layer_pass.py`.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.combinations import learned_combination
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.sublayer import Sublayer, SwiGLU


class Step(NamedTuple):
    """One application of the deep sublayer, step k."""

    number: int
    """k - 1."""
    gain_number: int
    """Place of its gain among the K trained ones: k - 1."""
    step_index: float
    """The router's input about k: (k - 1) / (K - 1), or k / (K - 1) if it counts from one."""


def loop_steps(config: ModelConfig, forced: int | None = None) -> list[Step]:
    """The steps k = 1 .. K, or as many as are forced.

    With fewer than K steps the router's index still runs to 1 with the last of them. Beyond K the
    last gain repeats, and the index, which is that of K steps, stays 1.
    """
    indices = config.step_indices(forced)
    return [Step(k, min(k, config.loops - 1), index) for k, index in enumerate(indices)]


class DeepPath(nn.Module):
    """``h_k = Phi_deep(h_{k-1})`` (Eq. 2), ``h_deep = sum_k w_k h_k`` (Eq. 3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ffn is not None  # ModelConfig refuses deep blocks without it
        self.config = config
        ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn))
        self.sublayer = Sublayer(config, ffn)
        self.gains = nn.Parameter(torch.empty(config.loops))
        if config.routes_steps:
            self.router = learned_combination(config)

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        steps = loop_steps(self.config, layer.loops)
        h_BTD, states = x_BTD, []
        for step in steps:
            h_BTD = self.next_state(h_BTD, step, layer)  # Eq. 2
            states.append(h_BTD)
        weights = self.step_weights(states, steps)
        layer.record_steps(states, weights, len(steps))
        return mixture(weights, states)  # Eq. 3

    def next_state(self, h_BTD: torch.Tensor, step: Step, layer: LayerPass) -> torch.Tensor:
        """``h_k = Phi_deep(h_{k-1}; softplus(a_k))``, (B, T, D) (Eq. 2)."""
        return self.sublayer(h_BTD, self.gain(step), layer.step(step.number))

    def gain(self, step: Step) -> torch.Tensor:
        """``softplus(a_k)``, a 0-d tensor."""
        return F.softplus(self.gains[step.gain_number])

    def step_weights(
        self, states: Sequence[torch.Tensor], steps: Sequence[Step]
    ) -> list[torch.Tensor]:
        """The weight of each state (B, T, D) in h_deep, (B, T, 1): as the router says (Eq. 3).

        Combination `mean` weighs all alike; `final` gives one weight, that of the last state.
        """
        if self.config.combination == "final" or len(states) == 1:
            return [torch.ones_like(states[0][..., :1])]
        if self.config.combination == "mean":
            return [torch.ones_like(states[0][..., :1]) / len(states)] * len(states)
        with torch.autocast(states[0].device.type, enabled=False):
            precise = [h_BTD.to(self.gains.dtype) for h_BTD in states]
            return list(self.router(precise, [step.step_index for step in steps]))


def mixture(weights: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> torch.Tensor:
    """``sum_k w_k h_k``, (B, T, D); fewer weights than states are those of the last ones."""
    weighed = states[-len(weights) :]
    return reduce(torch.add, (w * h for w, h in zip(weights, weighed, strict=True)))
