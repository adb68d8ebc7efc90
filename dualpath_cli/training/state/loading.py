"""Reads checkpoints, whatever wrote them, into a model, however it is sharded, and runs nothing.

`single` and `ddp` write one file: weights by name, the optimizer's state by number, in the order of
its groups. `fsdp` and `hsdp` write shards: both by name. Either is read as the other. PyTorch
unpickles the shards' `.metadata`, and all that is no tensor, by `pickle.load`, which calls whatever
a file names; here only the classes that describe tensors are allowed. Hashes of all files are made
as a checkpoint is written, and compared before it is loaded.
"""

import collections
import io
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import filesystem as dcp_files
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.files import open_regular
from dualpath_cli.model import DualPathLM
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.run.checkpoint_files import Files, damaged, describe, fault_of, files_of


def load_weights(model: DualPathLM, checkpoint: Path) -> None:
    """Loads the model's weights from a checkpoint file, a folder of shards or an exported file.

    `model` may be sharded itself, over any number of ranks, whatever wrote the checkpoint.
    """
    verify(checkpoint)
    if checkpoint.is_dir():
        _load_model(model, checkpoint)
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
    if run_file.is_run_file(checkpoint):
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


# Shards

REST = "meta.pt"  # all but weights and optimizer state: progress, schedule, the guard
_WEIGHTS = "state_dict.model."  # the prefix of the names of weights

_ALLOWED: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
} | {
    (module.__name__, name): getattr(module, name)
    for module, names in (
        (dcp_metadata, ("Metadata", "TensorStorageMetadata", "TensorProperties", "MetadataIndex",
                        "ChunkStorageMetadata", "BytesStorageMetadata", "StorageMeta",
                        "_MEM_FORMAT_ENCODING")),
        (dcp_files, ("_StorageInfo", "_StoragePrefix")),
    )
    for name in names
}  # fmt: skip
"""The classes that `.metadata` may name, besides types such as `torch.float32`."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePath  # where the checkpoint was written
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """What the shards hold, and where; by the unpickler above."""
        path = Path(str(self.path), ".metadata")
        try:
            with open_regular(path) as file:
                metadata = _Unpickler(file).load()
            if not isinstance(metadata, dcp_metadata.Metadata):
                raise pickle.UnpicklingError(f"it holds a {type(metadata).__name__}")
            names = {info.relative_path for info in (metadata.storage_data or {}).values()}
        except Exception as error:  # a damaged pickle raises nearly anything
            reason = f".metadata cannot be read: {_line(error)}"
            raise UserError(f"checkpoint '{path.parent}': {reason}") from None
        for name in names:
            if Path(name).name != name:
                raise UserError(f"checkpoint '{path.parent}' names '{name}', a file outside of it")
        metadata.storage_meta = metadata.storage_meta or dcp_metadata.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Planner(DefaultLoadPlanner):
    """Loads values such as a learning rate without running them; names what is missing."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # refuses what would run, which `super` does not
        value.seek(0)
        super().load_bytes(read_item, value)

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        for name in self.state_dict:
            if name not in self.metadata.state_dict_metadata:
                raise UserError(f"it lacks {name.removeprefix(_WEIGHTS)}")
        return super().create_local_plan()


def load_shards(state: dict[str, Any], folder: Path) -> None:
    """Fills the tensors and values of a state dict from a folder of shards, on all ranks."""
    reader = _Reader(folder)
    reader.read_metadata()  # PyTorch would log a fault in it as a traceback
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*in a single process.*")  # as intended
            dcp.load(state, storage_reader=reader, planner=_Planner())
    except dcp.api.CheckpointException as error:  # what a rank raised, in a wrapper
        cause, _ = next(iter(error.failures.values()))
        if isinstance(cause, UserError):
            raise UserError(f"checkpoint '{folder}': {cause}") from None
        raise UserError(f"checkpoint '{folder}' cannot be read: {_line(cause)}") from None


def describe_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a folder of shards by the model's names: shapes and dtypes, without data."""
    entries = _Reader(folder).read_metadata().state_dict_metadata
    return {
        name.removeprefix(_WEIGHTS): torch.empty(
            entry.size, dtype=entry.properties.dtype, device="meta"
        )
        for name, entry in entries.items()
        if name.startswith(_WEIGHTS) and isinstance(entry, dcp_metadata.TensorStorageMetadata)
    }


def read_weights(wanted: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Reads some of a folder's weights whole: those of the names and shapes in `wanted`."""
    state = {_WEIGHTS + name: torch.empty_like(t, device="cpu") for name, t in wanted.items()}
    load_shards(state, folder)
    return {name.removeprefix(_WEIGHTS): tensor for name, tensor in state.items()}


def _load_rest(folder: Path) -> dict[str, Any]:
    try:
        rest: dict[str, Any] = torch.load(folder / REST, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises nearly anything
        raise UserError(f"checkpoint '{folder}': {REST} cannot be read: {_line(error)}") from None
    return rest


def _load_model(model: torch.nn.Module, folder: Path, prefix: str = "model.") -> None:
    """Loads weights from a folder of shards, where `prefix` precedes their names in the model."""
    weights = get_model_state_dict(model)
    load_shards({"state_dict": {prefix + name: value for name, value in weights.items()}}, folder)
    set_model_state_dict(model, weights)


def load_training_state(
    module: torch.nn.Module, optimizers: list[Optimizer], folder: Path
) -> dict[str, Any]:
    """Loads weights and optimizer state of a run that is continued; returns the rest."""
    _load_model(module, folder, prefix="")
    # Single numbers such as Adam's step stay on the CPU.
    options = StateDictOptions(cpu_offload=True)
    for number, optimizer in enumerate(optimizers):
        state = {f"optimizer_{number}": get_optimizer_state_dict(module, optimizer)}
        load_shards(state, folder)
        (loaded,) = state.values()
        set_optimizer_state_dict(module, optimizer, optim_state_dict=loaded, options=options)
    return _load_rest(folder)


def _line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name}: {error.strerror}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}"


# Either format as the other


def whole_state(folder: Path) -> dict[str, Any]:
    """Reads a folder of shards as if it were a file of `single`.

    Each process holds all of it: 12 bytes a parameter, for weights and AdamW's moments.
    """
    flat: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, dcp_metadata.TensorStorageMetadata)
        else None
        for name, entry in _Reader(folder).read_metadata().state_dict_metadata.items()
    }
    load_shards(flat, folder)
    checkpoint = _load_rest(folder)
    checkpoint["state_dict"] = _below("state_dict", flat)
    checkpoint["optimizer_states"] = []
    while state := _below(f"optimizer_{len(checkpoint['optimizer_states'])}", flat):
        checkpoint["optimizer_states"].append(_numbered(state))
    return checkpoint


def _below(name: str, flat: dict[str, Any]) -> dict[str, Any]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in flat.items() if k.startswith(prefix)}


def _numbered(named: dict[str, Any]) -> dict[str, Any]:
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


# Hashes

T = TypeVar("T")


def hashed(checkpoint: Path) -> Files:
    """Sizes and hashes of a checkpoint's files; ranks divide the work, and get the same."""
    rank, ranks = _rank_and_ranks()
    # On a file system of several machines a rank may not see yet what another one wrote.
    seen = sorted({path for paths in from_all_ranks(files_of(checkpoint)) for path in paths})
    own = describe(checkpoint, seen[rank::ranks])
    return {name: facts for files in from_all_ranks(own) for name, facts in files.items()}


def verify(
    checkpoint: Path, read: Callable[[int], object] | None = None, way_out: str | None = None
) -> None:
    """Hashes a checkpoint before it is loaded; ranks that have met divide its files.

    `read` is called, on each rank, with the number of bytes just read. `way_out` ends the message;
    by default it names the newest other checkpoint of the run.
    """
    if run_file.is_run_file(checkpoint):
        changed_file = _rank_and_ranks()[0] == 0 and run_file.was_changed(checkpoint)
        if any(from_all_ranks(changed_file)):
            raise UserError(
                f"'{checkpoint}' is damaged: it was changed since it was exported (sha256); copy "
                "it again"
            )
        return
    fault = fault_of(checkpoint)
    changed = [] if fault else damaged(checkpoint, *_rank_and_ranks(), read)
    names = sorted({name for rank in from_all_ranks(changed) for name in rank})
    if names:
        fault = f"{names[0] or 'it'} was changed since it was written (sha256)"
    if fault:
        if way_out is None:
            intact = [path for path in run_folder.complete_checkpoints(checkpoint.parents[1])
                      if path != checkpoint and fault_of(path) is None]  # fmt: skip
            newest = max(intact, key=run_folder.step_of, default=None)
            way_out = f"; give --ckpt-path {newest}" if newest else ""
        raise UserError(f"checkpoint '{checkpoint}' is damaged: {fault}{way_out}")


def _rank_and_ranks() -> tuple[int, int]:
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def from_all_ranks(value: T) -> list[T]:
    """The values of all ranks in the order of the ranks, on each of them."""
    _, ranks = _rank_and_ranks()
    if ranks == 1:
        return [value]
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, value)
    return gathered
