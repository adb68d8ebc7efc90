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
from collections.abc import Mapping
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
from dualpath_cli.base.folders import set_aside
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import STATE, Files, write_manifest
from dualpath_cli.run.exported_folder import PREFIX
from dualpath_cli.run.run_folder import LAST, facts_now
from dualpath_cli.run.weights import in_one_process, read_into, tensors_in

RETRY = 2.0  # seconds until a failed write of a checkpoint is tried again, once


class SafetensorsIO(CheckpointIO):
    """Writes the checkpoints of strategies under which each rank has all weights."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        try:
            write(dict(checkpoint), Path(path), alone=True)
        except (OSError, RuntimeError):
            remove(Path(path))
            time.sleep(RETRY)
            write(checkpoint, Path(path), alone=True)

    def load_checkpoint(
        self, path: str | Path, *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        return read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        remove(Path(path))


def write(checkpoint: dict[str, Any], folder: Path, alone: bool) -> None:
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
        units = [re.search(r"blocks\.\d+\.|[^.]+\.[^.]+$", name) for name in tensors]
        numbers: dict[str, int] = {}  # of files: one a layer or other parameter
        files = {
            name: numbers.setdefault(unit[0] if unit else name, 1 + len(numbers))
            for name, unit in zip(tensors, units, strict=True)
        }
        writer = dcp.HuggingFaceStorageWriter(str(folder), files, save_distributed=True)
        try:
            with in_one_process() if alone else nullcontext():
                dcp.save(tensors, storage_writer=writer, no_dist=alone)
        except CheckpointException as error:  # wraps the cause
            cause, _ = next(iter(error.failures.values()))
            if isinstance(cause, OSError | RuntimeError):
                raise cause from None
            raise RuntimeError(f"{type(cause).__name__}: {cause}") from None


def read(folder: Path) -> dict[str, Any]:
    """The checkpoint given to `write`, with `folder` instead of weights and optimizer
    state."""
    found = tensors_in(folder, _STATE)
    tensors = {
        _STATE + name: torch.empty_like(t, device="cpu") for name, t in found.items()
    }
    read_into(tensors, folder)
    return {**_filled(read_json(folder / STATE), tensors), "folder": str(folder)}


def tensors_of(
    model: nn.Module, optimizers: list[Optimizer]
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """A checkpoint's tensors by name, tied ones once, and the groups of each
    optimizer."""
    model.state_dict()  # runs FSDP2's hooks, which free gathered weights
    names: dict[Any, str] = {p: name for name, p in model.named_parameters()}
    tensors = {PREFIX + name: parameter.detach() for parameter, name in names.items()}
    groups = []
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"optimizer.{number}.{key}.{names[parameter]}"] = value
        groups.append(
            [
                group | {"params": [names[p] for p in group["params"]]}
                for group in optimizer.param_groups
            ]
        )
    return {name: tensor.contiguous() for name, tensor in tensors.items()}, groups


def optimizer_states(
    model: nn.Module, checkpoint: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The optimizers' state dicts in a checkpoint, sharded as the model."""
    folder, parameters = Path(checkpoint["folder"]), dict(model.named_parameters())
    states = []
    for number, groups in enumerate(checkpoint["groups"]):
        prefix = f"optimizer.{number}."
        tensors = {}
        for name, found in tensors_in(folder, prefix).items():
            like = parameters.get(name.partition(".")[2])
            if like is None:
                raise UserError(
                    f"checkpoint '{folder}' is of another model: it has {name}"
                )
            whole = like.shape != found.shape  # single numbers such as Adam's step
            empty = (
                torch.empty_like(found, device="cpu")
                if whole
                else torch.empty_like(like)
            )
            tensors[name] = empty.to(found.dtype)
        read_into({prefix + name: tensor for name, tensor in tensors.items()}, folder)
        order = [name for group in groups for name in group["params"]]
        numbered: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            key, _, of = name.partition(".")
            numbered.setdefault(order.index(of), {})[key] = tensor
        numbers = iter(range(len(order)))
        states.append(
            {
                "state": numbered,
                "param_groups": [
                    group | {"params": [next(numbers) for _ in group["params"]]}
                    for group in groups
                ],
            }
        )
    return states


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
        items = [(k, _plain(v, tensors, f"{path}{k}.")) for k, v in value.items()]
        if all(type(key) is str and key != _KIND for key in value):
            return dict(items)
        return {_KIND: "dict", "of": [[_plain(k, tensors, path), v] for k, v in items]}
    if isinstance(value, list | tuple):
        plain = [_plain(item, tensors, f"{path}{n}.") for n, item in enumerate(value)]
        return plain if isinstance(value, list) else {_KIND: "tuple", "of": plain}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(
        f"{path} in a checkpoint would be a {type(value).__name__}; a callback's "
        "state_dict must consist of numbers, texts, tensors, lists and dicts"
    )


def _filled(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind, of = value.get(_KIND), value.get("of")
    if kind == "tensor":
        return tensors[str(of)]
    if kind == "tuple":
        return tuple(_filled(of, tensors))
    if kind == "dict":
        return {_filled(k, tensors): _filled(v, tensors) for k, v in of or ()}
    return {key: _filled(item, tensors) for key, item in value.items()}


def publish(partial: Path, final: Path, files: Files) -> None:
    """Syncs a written checkpoint to disk, gives it its name and points `last` to it."""
    for path in [*partial.rglob("*"), partial]:
        sync(path)
    check_replaceable(final.with_name(LAST))
    replaced = final.with_name(final.name + ".replaced" + PARTIAL)
    # from a run that is being repeated from an older checkpoint
    set_aside(final, replaced)
    folder = final.parents[1]
    step = run_folder.step_of(final)
    write_manifest(final, files, {**facts_now(folder), "step": step})
    partial.rename(final)
    link = final.with_name(LAST + PARTIAL)
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(final.with_name(LAST))
    sync(final.parent)
    remove(replaced)
