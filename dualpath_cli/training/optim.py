"""AdamW or Muon with its groups of parameters, and the scheduler that sets its learning rate."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.parameters import is_hidden, kind_of
from dualpath_cli.recipe.schedule import learning_rate, weight_decay
from dualpath_cli.recipe.settings import OptimSettings, ParameterGroup
from dualpath_cli.training.muon import HIDDEN, Muon


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]],
    settings: OptimSettings,
    total_steps: int,
    config: ModelConfig | None = None,
    products: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Returns the optimizer with its parameters in groups; those in `settings.decay` decay.

    An untied head is a matrix; a tied one is the embedding. `total_steps` are the run's. `config`
    is that of a model with custom classes; None means that it has none. `products` is the type of
    Muon's matrix products; None is that of the weights.

    Raises:
        ValueError: for a parameter that `model.parameters` does not know.
    """
    members: dict[tuple[ParameterGroup, bool], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        group = kind_of(name, config, parameter.ndim).group
        by_muon = settings.name == "muon" and is_hidden(name)
        members.setdefault((group, by_muon), []).append(parameter)
    groups = []
    for (group, by_muon), params in members.items():
        lr = settings.muon_lr or settings.lr if by_muon else settings.lr
        decay = weight_decay(total_steps, settings, lr / settings.lr)
        groups.append({
            "params": params,
            "name": HIDDEN if by_muon else group,
            "lr": lr,
            "weight_decay": decay if group in settings.decay else 0.0,
        })  # fmt: skip
    if settings.name == "muon":
        return Muon(groups, settings, products)
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
