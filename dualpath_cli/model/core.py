"""The core: a stretch of layers that is applied R times with shared weights.

    x_r = F(I(x_{r-1}, e); s_r),  x_0 = e      each repetition has its own gains s_r
    I(x, e) = x                                injection `none` (arXiv 2510.25741)
            = x + e                            `add`
            = x + W [x, e]                     `linear` (arXiv 2502.05171)
    y = x_R, or sum_r w_r x_r (Eq. 3)          core_combination `final` or `router`

F is the core's layers one after the other, and e the state before them. W is 0 at the
start of training. Nothing is injected before the first repetition, so that a core with
R = 1 is its layers. A core of one wide layer is the deep path of a loop block (Eq. 2).

Shapes: B batch, T positions, D model width, C = 2 D, R repetitions.
"""

from collections.abc import Sequence

import torch
from torch import nn

from dualpath_cli.model.combinations import (
    StepRouter,
    mixture,
    routed_weights,
    with_held,
)
from dualpath_cli.model.layer_pass import CorePass, Repeat
from dualpath_cli.spec.config import ModelConfig


class Core(nn.Module):
    """The loop around the core's layers, with the parameters that are not in them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.learns_injection:
            d_model = config.d_model
            self.injection = nn.Linear(2 * d_model, d_model, bias=False)
        if config.routes_core:
            self.router = StepRouter(config)

    def forward(
        self, e_BTD: torch.Tensor, repeat: Repeat, here: CorePass
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Maps the core's input to its output, (B, T, D), and to the states x_1 .. x_R.

        `repeat` is F.
        """
        step_indices = self.step_indices(here.loops)
        loops = len(step_indices)

        x_BTD = e_BTD  # x_0
        states = []
        for r in range(1, here.moving(loops) + 1):
            if r > 1:
                x_BTD = self.injected(x_BTD, e_BTD)
            x_BTD = repeat(x_BTD, r - 1, None)
            x_BTD = here.constant(x_BTD, r, loops)
            states.append(x_BTD)

        weights = with_held(self.step_weights, states, step_indices)
        if here.trace is not None:
            here.trace.record_steps(e_BTD, states, weights, loops)
        return mixture(weights, states).to(e_BTD.dtype), states

    def injected(self, x_BTD: torch.Tensor, e_BTD: torch.Tensor) -> torch.Tensor:
        """I(x, e), (B, T, D) in the type of x."""
        if self.config.injection == "none":
            return x_BTD
        if self.config.injection == "add":
            return x_BTD + e_BTD

        # Without autocast a bf16 stream has another type than the weights.
        both_BTC = torch.cat((x_BTD, e_BTD), dim=-1)
        joined_BTD = self.injection(both_BTC.to(self.injection.weight.dtype))
        return x_BTD + joined_BTD.to(x_BTD.dtype)

    def step_indices(self, forced: int | None = None) -> list[float]:
        """The router's input for each repetition, see `LayerConfig.step_indices`."""
        return self.config.indices_of(self.config.core_loops, forced)

    def step_weights(
        self, states: Sequence[torch.Tensor], step_indices: Sequence[float]
    ) -> list[torch.Tensor]:
        """The weights of the last states in the core's output, (B, T, 1) each."""
        if not self.config.routes_core or len(states) == 1:
            return [torch.ones_like(states[0][..., :1])]

        dtype = self.router.weight.dtype
        return routed_weights(self.router, states, step_indices, dtype)
