"""The weight of each step's state in the output of the deep path (Eq. 3).

A combination maps the states h_1 .. h_K and their step indices to a weight for each
state; the weights of a token sum to 1. Weights are computed in the type of the
parameters, also under autocast. A custom combination is a class with the same
`forward`; if it also has `step_probability`, tokens can halt. The combinations without
parameters, `final` and `mean`, are in `DeepPath.step_weights`.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import nn

from dualpath_cli.kernels.linear import to_few
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_classes import own_class


class StepRouter(nn.Module):
    """Eq. 3, the paper's router: ``pi_k q_k``.

    ``q_k = sigmoid(w . [h_k, step index] + b)``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, config.d_model + 1))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(
        self, states: Sequence[torch.Tensor], step_indices: Sequence[float]
    ) -> list[torch.Tensor]:
        """``pi_k q_k`` for k < K, then ``pi_K``, where ``pi_k = prod_{j<k} (1 - q_j)``.

        Each is (B, T, 1). The last step takes the remaining mass, so q_K is not
        computed.
        """
        pi_BT1 = torch.ones_like(states[0][..., :1])
        weights = []
        steps = zip(states[:-1], step_indices[:-1], strict=True)

        for h_BTD, step_index in steps:
            q_BT1 = self.step_probability(h_BTD, step_index)
            weights.append(pi_BT1 * q_BT1)
            pi_BT1 = pi_BT1 * (1 - q_BT1)

        return [*weights, pi_BT1]

    def step_probability(self, h_BTD: torch.Tensor, step_index: float) -> torch.Tensor:
        """q_k of states (B, T, D), (B, T, 1)."""
        w_h = self.weight[:, :-1]
        w_index = self.weight[:, -1]

        # The index is the same for all tokens: it joins the bias instead of widening h.
        bias = self.bias + step_index * w_index
        return to_few(h_BTD, w_h, bias).sigmoid()


def routed_weights(
    router: nn.Module,
    states: Sequence[torch.Tensor],
    step_indices: Sequence[float],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """The weights of states (B, T, D), (B, T, 1) each, in `dtype` also under
    autocast."""
    with torch.autocast(states[0].device.type, enabled=False):
        precise = [h_BTD.to(dtype) for h_BTD in states]
        return list(router(precise, step_indices))


def with_held(
    step_weights: Callable[..., list[torch.Tensor]],
    states: list[torch.Tensor],
    step_indices: Sequence[float],
) -> list[torch.Tensor]:
    """The weights of the last states, (B, T, 1) each. The last state also gets the
    weights of the steps after it, which leave the state as it is."""
    held = len(step_indices) - len(states)
    weights = step_weights(states + states[-1:] * held, step_indices)
    if held == 0 or len(weights) == 1:
        return weights

    *before, last = weights[: len(states)]
    return [*before, reduce(torch.add, weights[len(states) :], last)]


def mixture(
    weights: Sequence[torch.Tensor], states: Sequence[torch.Tensor]
) -> torch.Tensor:
    """``sum_k w_k h_k`` over the last states that have a weight, (B, T, D)."""
    weighed = states[-len(weights) :]
    terms = (w_BT1 * h_BTD for w_BT1, h_BTD in zip(weights, weighed, strict=True))
    return reduce(torch.add, terms)


def learned_combination(config: ModelConfig) -> nn.Module:
    """The router, or the custom class that the configuration names."""
    if config.combination == "router":
        return StepRouter(config)

    module: nn.Module = own_class(config, "combination")(config)
    return module
