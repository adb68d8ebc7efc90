"""The weights that a step with fewer loops than the model's does not use.

A single loop uses no router; R = 1 uses no injection; K' steps use K' of the sublayers
that steps have for themselves, and as many gains. Such weights get no gradient, or a
gradient of zero, and do not move while no step so far has used them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dualpath_cli.run.weights import own_part
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.parallel import sharded_as

_SUBLAYER = re.compile(r"blocks\.\d+\.deep\.sublayers\.(\d+)\.")
_BY_LOOP = re.compile(r"blocks\.(\d+)\.(deep\.gains|deep\.film|wide\.gain)")
"""Names of weights with rows for each step or repetition."""


def is_unused(name: str, config: ModelConfig, loops: int) -> bool:
    """Whether a step with so many loops leaves a whole weight out."""
    if config.varied_loops == "core_loops":
        return loops == 1 and name.startswith("core.")

    sublayer = _SUBLAYER.match(name)
    if sublayer is not None:
        return int(sublayer[1]) >= loops
    return loops == 1 and ".deep.router." in name


def unused_weights(
    model: nn.Module, config: ModelConfig, loops: int
) -> dict[str, nn.Parameter]:
    """The weights that a step with so many loops leaves out, by name."""
    named = model.named_parameters()
    return {name: weight for name, weight in named if is_unused(name, config, loops)}


def reset_unused_gradients(
    model: nn.Module, config: ModelConfig, loops: int, most: int
) -> None:
    """Replaces the gradients of weights that the step left out.

    They become None, so that the optimizer skips them. They become zero if no step so
    far used them (`most`, the most loops): sharded checkpoints need the optimizer's
    state of all weights.
    """
    for name, weight in unused_weights(model, config, loops).items():
        never_used = is_unused(name, config, most)
        weight.grad = torch.zeros_like(weight) if never_used else None


@contextmanager
def freeze_later_loops(
    model: nn.Module, config: ModelConfig, most: int
) -> Iterator[None]:
    """Keeps the weights of loops after the first `most` unchanged, bit by bit."""
    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            later = _later_entries(name, parameter, config, most)
            if later is not None:
                part = own_part(parameter)
                kept.append((part, part.clone(), later))

    yield

    with torch.no_grad():
        for part, before, later in kept:
            part.copy_(torch.where(later, before, part))


def _later_entries(
    name: str, parameter: torch.Tensor, config: ModelConfig, most: int
) -> torch.Tensor | None:
    """True at this rank's entries of loops after the first `most`, if any."""
    part = own_part(parameter)
    if is_unused(name, config, most):
        return torch.ones_like(part, dtype=torch.bool)

    rows = _used_rows(name, config, most)
    if rows is None or rows >= len(parameter):
        return None

    numbers = torch.arange(len(parameter), device=parameter.device)
    later = own_part(sharded_as(parameter, numbers)) >= rows
    to_all_columns = (-1, *[1] * (part.ndim - 1))
    return later.view(to_all_columns)


def _used_rows(name: str, config: ModelConfig, most: int) -> int | None:
    """The first rows of a weight, those of `most` loops; None: all are used."""
    by_loop = _BY_LOOP.fullmatch(name)
    if by_loop is None:
        return None

    layer = config.layers[int(by_loop[1])]
    if config.varied_loops == "loops":
        return None if by_loop[2] == "wide.gain" else most
    if layer.core_loops == 1 or by_loop[2] == "deep.film":
        return None
    return most * layer.loops if by_loop[2] == "deep.gains" else most
