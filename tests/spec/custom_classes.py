"""Custom classes as users write them: copies of the built-in ones, and a deeper
gate."""

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.spec.config import ModelConfig


class TwoGates(nn.Module):
    """A copy of `two_gates`."""

    parameter_kinds = {"proj.weight": ("matrices", "zero")}  # noqa: RUF012

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.d_model, 2)

    def forward(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gates_BT2 = self.proj(x_BTD).sigmoid()
        return gates_BT2[..., :1], gates_BT2[..., 1:]

    @staticmethod
    def flops(config: ModelConfig) -> int:
        return 4 * config.d_model


class Router(nn.Module):
    """A copy of `router`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, config.d_model + 1))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(
        self, states: list[torch.Tensor], step_indices: list[float]
    ) -> list[torch.Tensor]:
        left_BT1 = torch.ones_like(states[0][..., :1])
        weights = []
        for h_BTD, step_index in zip(states[:-1], step_indices[:-1], strict=True):
            q_BT1 = self.step_probability(h_BTD, step_index)
            weights.append(left_BT1 * q_BT1)
            left_BT1 = left_BT1 * (1 - q_BT1)
        return [*weights, left_BT1]

    def step_probability(self, h_BTD: torch.Tensor, step_index: float) -> torch.Tensor:
        bias = self.bias + step_index * self.weight[:, -1]
        return F.linear(h_BTD, self.weight[:, :-1], bias).sigmoid()

    @staticmethod
    def flops(config: ModelConfig) -> int:
        return 2 * (config.d_model + 1) * (config.loops - 1)


class WithoutMass(nn.Module):
    """A copy of `router` that says no more than what all steps together weigh."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, config.d_model + 1))
        self.bias = nn.Parameter(torch.empty(1))

    def forward(
        self, states: list[torch.Tensor], step_indices: list[float]
    ) -> tuple[torch.Tensor, ...]:
        shares = []
        for h_BTD, step_index in zip(states, step_indices, strict=True):
            bias = self.bias + step_index * self.weight[:, -1]
            shares.append(F.linear(h_BTD, self.weight[:, :-1], bias).sigmoid())
        q_BTK = torch.cat([*shares[:-1], torch.ones_like(shares[0])], dim=-1)
        left_BTK = (1 - q_BTK).cumprod(-1).roll(1, -1)
        left_BTK = torch.cat([torch.ones_like(shares[0]), left_BTK[..., 1:]], dim=-1)
        return (left_BTK * q_BTK).split(1, dim=-1)

    @staticmethod
    def flops(config: ModelConfig) -> int:
        return 2 * (config.d_model + 1) * config.loops


class MlpGate(nn.Module):
    """A hidden layer and a norm: parameters of every default kind."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model)
        self.hidden = nn.Linear(config.d_model, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.out(self.hidden(self.norm(x_BTD)).relu()).sigmoid().split(1, dim=-1)

    @staticmethod
    def flops(config: ModelConfig) -> int:
        return 2 * 5 * (config.d_model + 2)
