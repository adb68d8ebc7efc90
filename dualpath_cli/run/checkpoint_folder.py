"""A checkpoint's folder, written by all ranks and read by any number of them.

    state.json                  all but tensors: progress, schedule, the guard, and the
                                names of the parameters in each group of an optimizer
    shard-R-model-N-....safetensors
                                rank R's part of weights (`model.NAME`) and of an
                                optimizer's state (`optimizer.I.KEY.NAME`). Each layer
                                has a file: writing copies a file in memory

All strategies write the same names and format, and nothing is pickled.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.plugins import CheckpointIO
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import (
    PARTIAL,
    check_replaceable,
    naming_disk_errors,
    read_json,
    remove,
    sync,
    write_text,
)
from dualpath_cli.run.checkpoint_files import STATE, Files, write_manifest
from dualpath_cli.run.exported_folder import PREFIX
from dualpath_cli.run.run_folder import LAST, facts_now, step_of
from dualpath_cli.run.weights import in_one_process, read_into, tensors_in

RETRY = 2.0  # seconds until a failed write of a checkpoint is tried again, once


class SafetensorsIO(CheckpointIO):
    """Writes the checkpoints of strategies under which each rank has all weights."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        try:
            write_checkpoint(dict(checkpoint), Path(path), alone=True)
        except (OSError, RuntimeError):
            remove(Path(path))
            time.sleep(RETRY)
            write_checkpoint(checkpoint, Path(path), alone=True)

    def load_checkpoint(
        self, path: str | Path, *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        remove(Path(path))


def write_checkpoint(checkpoint: dict[str, Any], folder: Path, alone: bool) -> None:
    """Writes a checkpoint of `trainer.save_checkpoint`; all ranks write tensors unless
    `alone`.

    Raises OSError for a full disk, else RuntimeError, on all ranks if one fails.
    """
    tensors: dict[str, torch.Tensor] = checkpoint.pop("tensors")
    with naming_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_plain(checkpoint, tensors, _STATE), indent=1)
        if alone or torch.distributed.get_rank() == 0:
            write_text(folder / STATE, text)

        files = _files_of(tensors)
        writer = dcp.HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
        try:
            with in_one_process() if alone else nullcontext():
                dcp.save(tensors, storage_writer=writer, no_dist=alone)
        except CheckpointException as error:  # wraps the cause
            cause, _ = next(iter(error.failures.values()))
            if isinstance(cause, OSError | RuntimeError):
                raise cause from None
            raise RuntimeError(f"{type(cause).__name__}: {cause}") from None


def _files_of(names: Iterable[str]) -> dict[str, int]:
    """The number, from 1 on, of each tensor's file: a layer has a file, and each other
    parameter, with its optimizer's state."""
    numbers: dict[str, int] = {}
    files: dict[str, int] = {}
    for name in names:
        found = re.search(r"blocks\.\d+\.|[^.]+\.[^.]+$", name)
        shared = found[0] if found else name
        files[name] = numbers.setdefault(shared, 1 + len(numbers))
    return files


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The checkpoint given to `write_checkpoint`, with `folder` instead of weights and
    optimizer state."""
    tensors = {
        f"{_STATE}{name}": torch.empty_like(stored, device="cpu")
        for name, stored in tensors_in(folder, _STATE).items()
    }
    read_into(tensors, folder)
    content = _filled(read_json(folder / STATE), tensors)
    return {**content, "folder": str(folder)}


def tensors_of(
    model: nn.Module, optimizers: list[Optimizer]
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """A checkpoint's tensors by name, tied ones once, and the groups of each
    optimizer."""
    model.state_dict()  # runs FSDP2's hooks, which free gathered weights
    names: dict[Any, str] = {
        parameter: name for name, parameter in model.named_parameters()
    }
    tensors = {
        f"{PREFIX}{name}": parameter.detach() for parameter, name in names.items()
    }

    groups = []
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"optimizer.{number}.{key}.{names[parameter]}"] = value
        of_optimizer = [
            group | {"params": [names[parameter] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        groups.append(of_optimizer)

    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return whole, groups


def optimizer_states(
    model: nn.Module, checkpoint: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The optimizers' state dicts in a checkpoint, sharded as the model."""
    folder = Path(checkpoint["folder"])
    parameters = dict(model.named_parameters())

    states = []
    for number, groups in enumerate(checkpoint["groups"]):
        prefix = f"optimizer.{number}."
        tensors = _empty_state(parameters, folder, prefix)
        read_into({prefix + name: tensor for name, tensor in tensors.items()}, folder)

        # torch knows parameters by their number, in the order of groups.
        order = [name for group in groups for name in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            key, _, parameter = name.partition(".")
            state.setdefault(order.index(parameter), {})[key] = tensor

        numbers = iter(range(len(order)))
        numbered_groups = [
            group | {"params": [next(numbers) for _ in group["params"]]}
            for group in groups
        ]
        states.append({"state": state, "param_groups": numbered_groups})
    return states


def _empty_state(
    parameters: Mapping[str, nn.Parameter], folder: Path, prefix: str
) -> dict[str, torch.Tensor]:
    """Tensors for an optimizer's state in a checkpoint, by `KEY.PARAMETER`, sharded as
    the parameters."""
    tensors = {}
    for name, stored in tensors_in(folder, prefix).items():
        like = parameters.get(name.partition(".")[2])
        if like is None:
            raise UserError(f"checkpoint '{folder}' is of another model: it has {name}")

        if like.shape == stored.shape:
            empty = torch.empty_like(like)
        else:  # single numbers such as Adam's step
            empty = torch.empty_like(stored, device="cpu")
        tensors[name] = empty.to(stored.dtype)
    return tensors


_STATE = "state."  # the prefix of the names of tensors in callbacks and other state
_KIND = "!"
"""The key that marks a tuple, a tensor, or a dict with other keys than texts in
state.json."""


def _plain(value: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    """A value as JSON; its tensors are added to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().contiguous()
        return {_KIND: "tensor", "of": path}

    if isinstance(value, dict):
        items = [
            (key, _plain(item, tensors, f"{path}{key}.")) for key, item in value.items()
        ]
        if all(type(key) is str and key != _KIND for key in value):
            return dict(items)
        pairs = [[_plain(key, tensors, path), item] for key, item in items]
        return {_KIND: "dict", "of": pairs}

    if isinstance(value, list | tuple):
        plain = [_plain(item, tensors, f"{path}{n}.") for n, item in enumerate(value)]
        return plain if isinstance(value, list) else {_KIND: "tuple", "of": plain}

    if value is None or isinstance(value, bool | int | float | str):
        return value
    place = path.removeprefix(_STATE).rstrip(".")
    raise UserError(
        f"{place} in a checkpoint would be {type(value)}; a callback's state_dict must "
        "consist of Python's own numbers, texts, lists and dicts, and of tensors"
    )


def _filled(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value

    kind = value.get(_KIND)
    content = value.get("of")
    if kind == "tensor":
        return tensors[str(content)]
    if kind == "tuple":
        return tuple(_filled(content, tensors))
    if kind == "dict":
        return {
            _filled(key, tensors): _filled(item, tensors) for key, item in content or ()
        }
    return {key: _filled(item, tensors) for key, item in value.items()}


def publish(partial: Path, final: Path, files: Files) -> None:
    """Syncs a written checkpoint to disk, gives it its name and points `last` to it."""
    for path in [*partial.rglob("*"), partial]:
        sync(path)
    last = final.with_name(LAST)
    check_replaceable(last)

    facts = {**facts_now(final.parents[1]), "step": step_of(final)}
    write_manifest(final, files, facts)
    partial.rename(final)

    # In a copy without symbolic links `last` is a folder, which no link can replace.
    if not last.is_symlink():
        remove(last)
    link = final.with_name(LAST + PARTIAL)
    remove(link)
    link.symlink_to(final.name)
    link.replace(last)
    sync(final.parent)
