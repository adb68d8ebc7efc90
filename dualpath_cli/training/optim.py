"""AdamW with its groups of parameters, and the learning rate: linear warm-up, then a cosine."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dualpath_cli.model.parameters import kind_of
from dualpath_cli.settings import OptimSettings, ParameterGroup


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], settings: OptimSettings
) -> torch.optim.AdamW:
    """Returns AdamW with its parameters in groups; those in `settings.decay` decay, others don't.

    An untied head is a matrix; a tied one is the embedding.

    Raises:
        ValueError: for a parameter that `model.parameters` does not know.
    """
    members: dict[ParameterGroup, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        members.setdefault(kind_of(name).group, []).append(parameter)
    groups = [
        {
            "params": params,
            "name": group,
            "weight_decay": settings.weight_decay if group in settings.decay else 0.0,
        }
        for group, params in members.items()
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def learning_rate(step: int, total_steps: int, settings: OptimSettings) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Linear from `lr_start` to `lr` over `warmup_steps`, then a half cosine that arrives at `lr_end`
    after the last step (appendix A of the paper).
    """
    if step < settings.warmup_steps:
        return settings.lr_start + (settings.lr - settings.lr_start) * step / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.lr_end + (settings.lr - settings.lr_end) * cosine


def build_scheduler(
    optimizer: torch.optim.Optimizer, total_steps: int, settings: OptimSettings
) -> LambdaLR:
    """Returns the schedule of `learning_rate`, stepped once an optimizer step."""
    return LambdaLR(
        optimizer, lambda step: learning_rate(step, total_steps, settings) / settings.lr
    )
