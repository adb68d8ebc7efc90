"""Reads checkpoints of shards without running their content.

PyTorch unpickles `.metadata`, and all that is no tensor, by `pickle.load`, which calls whatever a
file names. Here only the classes that describe tensors are allowed.
"""

import collections
import io
import pickle
import warnings
from pathlib import Path, PurePath
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
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
from torch.optim import Optimizer

from dualpath_cli.errors import UserError
from dualpath_cli.files import open_regular

REST = "meta.pt"
"""The file of everything but weights and optimizer state: progress, schedule, the guard."""

_WEIGHTS = "state_dict.model."
"""The prefix of the names of weights in shards."""

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
    """Reads `.metadata` by the unpickler above."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """Returns what the shards hold, and where."""
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


def load_all(folder: Path) -> dict[str, Any]:
    """Reads all of a folder of shards, by flat names, on each process."""
    state: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, dcp_metadata.TensorStorageMetadata)
        else None
        for name, entry in _Reader(folder).read_metadata().state_dict_metadata.items()
    }
    load_shards(state, folder)
    return state


def load_rest(folder: Path) -> dict[str, Any]:
    """Reads what is beside the shards: progress, schedule, the guard's state."""
    try:
        rest: dict[str, Any] = torch.load(folder / REST, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises nearly anything
        raise UserError(f"checkpoint '{folder}': {REST} cannot be read: {_line(error)}") from None
    return rest


def load_model(model: torch.nn.Module, folder: Path, prefix: str = "model.") -> None:
    """Loads weights from a folder of shards, where `prefix` precedes their names in the model."""
    weights = get_model_state_dict(model)
    load_shards({"state_dict": {prefix + name: value for name, value in weights.items()}}, folder)
    set_model_state_dict(model, weights)


def load_training_state(
    module: torch.nn.Module, optimizers: list[Optimizer], folder: Path
) -> dict[str, Any]:
    """Loads weights and optimizer state of a run that is continued; returns the rest."""
    load_model(module, folder, prefix="")
    # Single numbers such as Adam's step stay on the CPU.
    options = StateDictOptions(cpu_offload=True)
    for number, optimizer in enumerate(optimizers):
        state = {f"optimizer_{number}": get_optimizer_state_dict(module, optimizer)}
        load_shards(state, folder)
        (loaded,) = state.values()
        set_optimizer_state_dict(module, optimizer, optim_state_dict=loaded, options=options)
    return load_rest(folder)


def _line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name}: {error.strerror}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}"
