"""The weights of a checkpoint, whatever wrote it, into a model, however it is sharded."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.files import open_regular
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.run_file import is_run_file
from dualpath_cli.training.state import shards
from dualpath_cli.training.state.integrity import verify


def load_weights(model: DualPathLM, checkpoint: Path) -> None:
    """Loads the model's weights from a checkpoint file, a folder of shards or an exported file.

    `model` may be sharded itself, over any number of ranks, whatever wrote the checkpoint.
    """
    verify(checkpoint)
    if checkpoint.is_dir():
        shards.load_model(model, checkpoint)
        return
    weights = map_weights(checkpoint, model.config)
    check_weights(model, weights, checkpoint)
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))


def load_average(model: DualPathLM, checkpoints: Sequence[Path]) -> None:
    """Loads the mean of the weights of some checkpoints, of one its own weights.

    They are added in float64 in their order, each rank its own part, and rounded once. Needs the
    weights twice more in memory.
    """
    load_weights(model, checkpoints[0])
    if len(checkpoints) == 1:
        return
    # Copies, also of what is float64 already.
    totals = [p.detach().to(torch.float64, copy=True) for p in model.parameters()]
    for checkpoint in checkpoints[1:]:
        load_weights(model, checkpoint)
        for total, parameter in zip(totals, model.parameters(), strict=True):
            total += parameter.detach()
    with torch.no_grad():
        for parameter, total in zip(model.parameters(), totals, strict=True):
            parameter.copy_(total / len(checkpoints))


def map_weights(checkpoint: Path, config: ModelConfig) -> dict[str, Any]:
    """The weights of a file by the model's names; they stay in the file until they are used."""
    if is_run_file(checkpoint):
        return read_safetensors([checkpoint], config, f"'{checkpoint}'")
    saved = read_file(checkpoint)["state_dict"]
    return {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}


def read_safetensors(
    files: Iterable[Path], config: ModelConfig, shown: str, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """The weights in files of safetensors, by their names without a prefix."""
    weights: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            with open_regular(path), safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    weights[name.removeprefix(prefix)] = file.get_tensor(name)
        except Exception as error:  # a damaged file raises nearly anything
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{shown} cannot be read: {reason}") from None
    if config.tie_embeddings and "embed.weight" in weights:  # it is in the files once
        weights.setdefault("head.weight", weights["embed.weight"])
    return weights


def read_file(checkpoint: Path) -> dict[str, Any]:
    """Reads a checkpoint file, only tensors and plain values: nothing in it is run."""
    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file raises nearly anything
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"checkpoint '{checkpoint}' cannot be read: {reason}") from None
    if not isinstance(saved, dict) or not isinstance(saved.get("state_dict"), dict):
        raise UserError(f"'{checkpoint}' is no checkpoint of dualpath: it holds no state_dict")
    return saved


def check_weights(model: torch.nn.Module, weights: Mapping[str, Any], checkpoint: Path) -> None:
    """Checks that there is a tensor of the right shape for each of the model's."""
    names: dict[int, str] = {}
    for name, parameter in model.state_dict(keep_vars=True).items():
        if name not in weights:
            raise UserError(f"checkpoint '{checkpoint}' is incomplete: it lacks {name}")
        value = weights[name]
        if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            wanted = tuple(parameter.shape)
            raise UserError(f"checkpoint '{checkpoint}': {name} is {found}, not {wanted}")
        shared = names.setdefault(id(parameter), name)
        if shared != name and not value.is_meta and not torch.equal(value, weights[shared]):
            raise UserError(
                f"checkpoint '{checkpoint}' has a {name} of its own, which the model shares with "
                f"{shared}: it was trained with model.tie_embeddings=False; put that back"
            )
    for name in weights:
        if name not in model.state_dict():
            raise UserError(f"checkpoint '{checkpoint}' is of another model: it has {name}")
