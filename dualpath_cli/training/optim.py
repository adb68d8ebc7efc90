"""AdamW with its groups of parameters, and the scheduler that sets its learning rate."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.schedule import learning_rate, weight_decay
from dualpath_cli.recipe.settings import OptimSettings, ParameterGroup


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]],
    settings: OptimSettings,
    total_steps: int,
    config: ModelConfig | None = None,
) -> torch.optim.AdamW:
    """Returns AdamW with its parameters in groups; those in `settings.decay` decay, others don't.

    An untied head is a matrix; a tied one is the embedding. `total_steps` are the run's. `config`
    is that of a model with custom classes; None means that it has none.

    Raises:
        ValueError: for a parameter that `model.parameters` does not know.
    """
    members: dict[ParameterGroup, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        members.setdefault(kind_of(name, config, parameter.ndim).group, []).append(parameter)
    decay = weight_decay(total_steps, settings)
    groups = [
        {
            "params": params,
            "name": group,
            "weight_decay": decay if group in settings.decay else 0.0,
        }
        for group, params in members.items()
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def build_scheduler(
    optimizer: torch.optim.Optimizer, total_steps: int, settings: OptimSettings
) -> LambdaLR:
    """Returns the schedule of `learning_rate`, stepped once an optimizer step."""
    return LambdaLR(
        optimizer, lambda step: learning_rate(step, total_steps, settings) / settings.lr
    )
