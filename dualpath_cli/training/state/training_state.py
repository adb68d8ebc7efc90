"""The training state of a run that is continued by another strategy than the one that wrote it.

`single` and `ddp` write one file: weights by name, the optimizer's state by number, in the order of
its groups. `fsdp` and `hsdp` write shards: both by name. Either is read as the other.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from dualpath_cli.training.state import shards
from dualpath_cli.training.state.weights import check_weights, read_file


def whole_state(folder: Path) -> dict[str, Any]:
    """Reads a folder of shards as if it were a file of `single`.

    Each process holds all of it: 12 bytes a parameter, for weights and AdamW's moments.
    """
    flat = shards.load_all(folder)
    checkpoint = shards.load_rest(folder)
    checkpoint["state_dict"] = _below("state_dict", flat)
    checkpoint["optimizer_states"] = []
    while state := _below(f"optimizer_{len(checkpoint['optimizer_states'])}", flat):
        checkpoint["optimizer_states"].append(_numbered(state))
    return checkpoint


def _below(name: str, flat: dict[str, Any]) -> dict[str, Any]:
    """The entries whose names begin with `name.`, without it."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in flat.items() if k.startswith(prefix)}


def _numbered(named: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state by the numbers of its parameters, in the order of its groups."""
    groups: list[dict[str, Any]] = []
    state: dict[int, dict[str, Any]] = {}
    while group := _below(f"param_groups.{len(groups)}", named):
        names, group["params"] = group["params"], []
        for name in names:
            group["params"].append(len(state))
            state[len(state)] = _below(f"state.{name}", named)
        groups.append(group)
    return {"state": state, "param_groups": groups}


def shard_whole_state(
    module: torch.nn.Module, optimizers: list[Optimizer], path: Path
) -> dict[str, Any]:
    """Loads a file of `single` into a sharded module and its optimizers; returns the rest.

    The file is mapped: a rank reads one tensor after another, and keeps its part.
    """
    checkpoint = read_file(path)
    weights = checkpoint.pop("state_dict")
    check_weights(module, weights, path)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(sharded_as(parameter, weights[name]))
    states = checkpoint.pop("optimizer_states")
    for optimizer, state in zip(optimizers, states, strict=False):  # none of them to score
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        parts = {
            number: {
                key: value if value.dim() == 0 else sharded_as(parameters[number], value)
                for key, value in values.items()  # moments, and the number of steps
            }
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})
    return checkpoint


def sharded_as(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns a whole tensor, which every rank holds, sharded as a parameter is, if it is."""
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(
        value.to(parameter.device, parameter.dtype),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,  # each rank cuts its own shard: nothing is sent
    )
