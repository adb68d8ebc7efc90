"""The optimizer of a run, with a group per kind of parameters; its schedule."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dualpath_cli.model.parameters import kind_of, matrices_in
from dualpath_cli.recipe.schedule import learning_rate, rate_factor, weight_decay
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import GROUP_OF, Kind, ModelConfig
from dualpath_cli.training.muon import Muon


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]],
    settings: OptimSettings,
    total_steps: int,
    config: ModelConfig,
    products: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Returns AdamW or Muon with a group for each kind of parameters.

    `total_steps` are the run's. `products` is the type of Muon's matrix products; None
    is the weights' type. Raises ValueError for a parameter that `model.parameters` does
    not know.
    """
    members: dict[Kind, list[nn.Parameter]] = {}
    stacked: dict[nn.Parameter, int] = {}
    for name, parameter in parameters:
        if not parameter.requires_grad:  # a bias that `training.balance` moves
            continue
        stacked[parameter] = matrices_in(name, config)
        kind = kind_of(name, config, parameter.ndim).kind
        members.setdefault(kind, []).append(parameter)

    decay = weight_decay(total_steps, settings)
    groups = []
    for kind, params in members.items():
        factor = rate_factor(kind, settings, config.d_model)
        own_decay = decay if GROUP_OF[kind] in settings.decay else 0.0
        if settings.decay_sum is not None:  # rate times decay is the same for all kinds
            own_decay = own_decay / factor if factor else 0.0
        group = {
            "params": params,
            "name": kind,
            "lr": settings.lr * factor,
            "weight_decay": own_decay,
        }
        groups.append(group)

    if settings.name == "muon":
        return Muon(groups, settings, products, stacked)

    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def build_scheduler(
    optimizer: torch.optim.Optimizer, total_steps: int, settings: OptimSettings
) -> LambdaLR:
    """The schedule `learning_rate` for all groups, stepped once an optimizer step."""

    def factor(step: int) -> float:
        return learning_rate(step, total_steps, settings) / settings.lr

    return LambdaLR(optimizer, factor)
