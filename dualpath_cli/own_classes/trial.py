"""Tries the custom classes that a model names on a few tokens, before the model is made.

A gate or combination that gives something else than the model adds up, that looks at other tokens,
or that leaves a weight without a gradient would otherwise show late, or not at all.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

import torch
from torch import nn

from dualpath_cli.config import LayerConfig, ModelConfig, ParameterGroup
from dualpath_cli.errors import UserError
from dualpath_cli.own_classes.classes import (
    Role,
    Start,
    on_meta,
    own_class,
    own_kind,
    own_roles,
    start_value,
)

BATCH, LENGTH = 2, 3
Weigh = Callable[[torch.Tensor], list[torch.Tensor]]  # what a class gives for states (K, B, T, D)
TOLERANCE = 1e-4  # how far apart two ways to the same number may be


def try_classes(config: ModelConfig) -> None:
    """Tries each class once, in float32 on the CPU."""
    uses = [(layer, role) for layer in dict.fromkeys(config.layers) for role in own_roles(layer)]
    for layer, role in uses:
        start = f"model.{role} '{getattr(layer, role)}'"
        module = on_meta(layer, role)
        _check_kinds(module, start)
        module.to_empty(device="cpu")
        cls, generator = own_class(layer, role), torch.Generator().manual_seed(0)
        for name, parameter in module.named_parameters():
            start_of = own_kind(name, cls, role, parameter.ndim).start
            parameter.data.copy_(start_value(start_of, parameter.shape, layer, generator))
        try:
            problem = _problem_of(role, module, layer)
            if problem is None:  # zeros, from which weights may start, would hide what they do
                generator = torch.Generator().manual_seed(1)
                for parameter in module.parameters():
                    parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
                problem = _problem_of(role, module, layer)
        except Exception as error:  # of the user's own code
            said = " ".join(str(error).split())[:200]
            raise UserError(f"{start}: forward fails: {type(error).__name__}: {said}") from error
        if problem is not None:
            raise UserError(f"{start}: {problem}")


def _check_kinds(module: nn.Module, start: str) -> None:
    """Refuses a declared kind that is unknown or matches no parameter."""
    declared: Any = getattr(module, "parameter_kinds", {})
    names = [name for name, _ in module.named_parameters()]
    if not isinstance(declared, dict):
        raise UserError(f"{start}: parameter_kinds must be a dict of patterns of names")
    for pattern, kind in declared.items():
        if not any(fnmatchcase(name, str(pattern)) for name in names):
            raise UserError(
                f"{start}: parameter_kinds has '{pattern}', which none of its parameters is: "
                f"{', '.join(names) or 'it has none'}"
            )
        fine = isinstance(kind, tuple) and len(kind) == 2
        if not fine or kind[0] not in get_args(ParameterGroup) or kind[1] not in get_args(Start):
            raise UserError(
                f"{start}: parameter_kinds['{pattern}'] must be (group, start), with a group of "
                f"{', '.join(get_args(ParameterGroup))} and a start of "
                f"{', '.join(get_args(Start))}, not {kind!r:.60}"
            )


def _problem_of(role: Role, module: Any, config: LayerConfig) -> str | None:
    """The fault of gates, or of weights of as many steps as were trained, or of one more."""
    if role == "gate":
        return _problem(module, lambda states_KBTD: list(module(states_KBTD[0])), 2, config)
    for loops in (config.loops, config.loops + 1):
        indices = config.step_indices(loops)

        def weigh(states_KBTD: torch.Tensor, indices: list[float] = indices) -> list[torch.Tensor]:
            return list(module(list(states_KBTD), indices))

        if problem := _problem(module, weigh, loops, config):
            return problem
        states_KBTD = _states(loops, config)
        weights = weigh(states_KBTD)
        if not _close(torch.stack(weights).sum(0), torch.ones(BATCH, LENGTH, 1)):
            return "the weights of a token's steps must sum to 1, or no mean of steps is one"
        if hasattr(module, "step_probability"):
            left_BT1 = torch.ones(BATCH, LENGTH, 1)
            for weight, h_BTD, index in zip(weights, states_KBTD, indices[:-1], strict=False):
                share_BT1 = left_BT1 * module.step_probability(h_BTD, index)
                if not _close(weight, share_BT1):
                    return "forward must weigh steps by step_probability, of what earlier ones left"
                left_BT1 = left_BT1 - share_BT1
    return None


def _problem(module: nn.Module, weigh: Weigh, count: int, config: ModelConfig) -> str | None:
    """The fault of the weights that a class gives: shapes, tokens, gradients."""
    states_KBTD = _states(count, config)
    weights = weigh(states_KBTD)
    shapes = [tuple(w.shape) if isinstance(w, torch.Tensor) else None for w in weights]
    if shapes != [(BATCH, LENGTH, 1)] * count:
        found = [tuple(w.shape) if isinstance(w, torch.Tensor) else w for w in weights]
        return (
            f"forward must give {count} tensors of (B, T, 1), not {found!r:.80}, for states of "
            f"(B, T, D) = {tuple(states_KBTD.shape[1:])}"
        )
    if not all(weight.isfinite().all() for weight in weights):
        return "forward gives no finite numbers; parameter_kinds says what weights start from"
    alone = weigh(states_KBTD[:, 1:, 1:2])
    if not all(_close(w[1:, 1:2], own) for w, own in zip(weights, alone, strict=True)):
        return (
            "what a token gets must follow from its own states alone, as caches keep no others; "
            "without the other tokens it gets something else"
        )
    parameters = dict(module.named_parameters())
    if not parameters:
        return None
    total = torch.stack([(w * (k + 1)).square().sum() for k, w in enumerate(weights)]).sum()
    gradients: Sequence[torch.Tensor | None] = [None] * len(parameters)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            return f"parameter {name} gets no gradient, for which DDP would wait; use it"
    return None


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=TOLERANCE)


def _states(count: int, config: ModelConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, BATCH, LENGTH, config.d_model, generator=generator)
