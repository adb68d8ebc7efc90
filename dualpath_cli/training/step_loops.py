"""Training with other numbers of loops than the model's own (run.train_loops, run.loop_schedule).

A step's number is forced as `ablate` does. Weights of steps of the loop that no optimizer step can
have run yet, because the schedule has not come so far, rest: neither they nor their moments change.
Their gradient is zero, so decay alone would move them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dualpath_cli.recipe.schedule import StepLoops
from dualpath_cli.training.state.training_state import sharded_as

GRAPHS_EACH = 4
"""Compiled graphs of a block for one number of loops, at most: by kind, with and without gradients,
and by the first length met."""

ROUTER, BY_STEP = ".deep.router.", (".deep.gains", ".deep.film")
"""Names of weights that one loop does not use, and of those with a row for each step."""


def allow_graphs(step_loops: StepLoops) -> None:
    """Lets torch.compile keep a graph for each number, and not fall back to eager execution."""
    config, numbers = torch.compiler.config, len(step_loops.counts())
    config.recompile_limit = max(config.recompile_limit, GRAPHS_EACH * numbers)


def router_of(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all routers, or of the custom classes in their place."""
    return [parameter for name, parameter in model.named_parameters() if ROUTER in name]


def settle_router(model: nn.Module, most: int) -> None:
    """Replaces the routers' gradients after a backward pass through one loop, which uses none.

    They are zero where no step up to now had more than one (`most`), since sharded checkpoints must
    have the optimizer's state of all weights. Else None, and the optimizer passes them over.
    """
    for parameter in router_of(model):
        parameter.grad = torch.zeros_like(parameter) if most == 1 else None


@contextmanager
def at_rest(model: nn.Module, most: int) -> Iterator[None]:
    """Keeps the weights of steps of the loop beyond the first `most` as they are, bit by bit.

    On each rank its own part of them: FSDP2 deals out the rows of gains one by one.
    """
    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            part = _own_part(parameter)
            if name.endswith(BY_STEP) and most < len(parameter):
                rows = torch.arange(len(parameter), device=parameter.device)
                rests = _own_part(sharded_as(parameter, rows)) >= most
                kept.append((part, part.clone(), rests.view(-1, *[1] * (part.ndim - 1))))
            elif ROUTER in name and most == 1:
                kept.append((part, part.clone(), torch.ones_like(part, dtype=torch.bool)))
    yield
    with torch.no_grad():
        for part, before, rests in kept:
            part.copy_(torch.where(rests, before, part))


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
