"""Reads weights and other tensors of a checkpoint or an exported folder; executes no
code in them.

Both are folders of safetensors, with `model.` before the names of weights. PyTorch's
distributed reader joins the shards of any number of ranks, and gives each rank its own
part.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import open_regular
from dualpath_cli.base.output import joined_lines
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.checkpoint_files import (
    Files,
    damaged,
    describe,
    fault_of,
    files_of,
)
from dualpath_cli.run.exported_folder import (
    PREFIX,
    check_unchanged,
    is_exported,
    part_of,
    shards_of,
)
from dualpath_cli.run.run_folder import complete_checkpoints, step_of
from dualpath_cli.run.trained import Trained
from dualpath_cli.spec.config import ModelConfig

T = TypeVar("T")


@contextmanager
def in_one_process() -> Iterator[None]:
    """Silences the warning that a checkpoint is read or written by one process, as
    asked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in a single process.*")
        yield


def tensors_in(folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a folder whose names begin with `prefix`, which is removed,
    without data.

    Raises UserError for files that cannot be read.
    """
    try:
        named = [path.name for path in folder.glob("*.safetensors")]
        for path in [*shards_of(folder), *(part_of(folder, name) for name in named)]:
            with open_regular(path):  # a pipe would be waited for
                pass

        reader = dcp.HuggingFaceStorageReader(str(folder))
        tensors = {}
        for name, entry in reader.read_metadata().state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)
            stored = sum(chunk.sizes.numel() for chunk in entry.chunks)
            if stored != entry.size.numel():
                raise ValueError(f"{name} is incomplete, or there twice")
            if name.startswith(prefix):
                dtype = entry.properties.dtype
                tensors[name.removeprefix(prefix)] = torch.empty(
                    entry.size, dtype=dtype, device="meta"
                )
        return tensors
    except UserError:
        raise
    except Exception as error:  # a damaged file raises nearly anything
        raise _unreadable(folder, error) from None


def read_into(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Fills tensors, which may be sharded, from a folder's tensors of the same
    names."""
    try:
        reader = dcp.HuggingFaceStorageReader(str(folder))
        with in_one_process():
            # each rank reads its own
            dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    except dcp.api.CheckpointException as error:  # wraps the cause
        cause, _ = next(iter(error.failures.values()))
        raise _unreadable(folder, cause) from None


def read_weights(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Fills tensors as `read_into`; UserError if this rank's part is not finite."""
    read_into(tensors, folder)
    for name, tensor in tensors.items():
        if not own_part(tensor).isfinite().all():
            name = name.removeprefix(PREFIX)
            raise UserError(
                f"checkpoint '{folder}': {name} is not finite; the file is damaged, as "
                "training saves only finite weights"
            )


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whole on each rank; of a sharded one, all ranks call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _unreadable(folder: Path, error: BaseException) -> UserError:
    reason = joined_lines(error, 120)
    return UserError(f"the weights in '{folder}' cannot be read: {reason}")


def load_weights(model: DualPathLM, folder: Path, option: str = "--ckpt-path") -> None:
    """Verifies a folder, which the user gave by `option`, and loads its weights."""
    verify(folder, option=option)
    fill(model, folder)


def fill(model: DualPathLM, folder: Path) -> None:
    """Loads weights in place into a model, which may be sharded, from a verified
    folder."""
    check_weights(model, tensors_in(folder, PREFIX), folder)
    weights = {
        f"{PREFIX}{name}": parameter.detach()
        for name, parameter in model.named_parameters()
    }
    read_weights(weights, folder)


def check_weights(
    model: nn.Module, found: Mapping[str, torch.Tensor], folder: Path
) -> None:
    """Raises UserError unless the tensors found have the names and shapes of the
    parameters."""
    wanted = dict(model.named_parameters())  # tied ones once
    for name, parameter in wanted.items():
        if name not in found:
            raise UserError(f"checkpoint '{folder}' is incomplete: it lacks {name}")
        if found[name].shape != parameter.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(parameter.shape)}"
            raise UserError(f"checkpoint '{folder}': {name} is {shapes}")
        if not found[name].is_floating_point():
            kind = str(found[name].dtype).removeprefix("torch.")
            raise UserError(
                f"checkpoint '{folder}': {name} is of {kind}; the file is damaged, as "
                "training writes floats"
            )

    others = sorted(found.keys() - wanted.keys())
    if others:
        raise UserError(
            f"checkpoint '{folder}' is of another model: it has {others[0]}"
        )


# Models without Lightning


def device_of(name: str) -> torch.device:
    """The device of a name; UserError for a GPU that this machine does not have."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    device = torch.device("cuda:0" if name == "cuda" else name)
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"--device {name}: this machine has {gpus} such devices; give cpu or auto"
        )
    return device


def autocast_of(precision: str) -> torch.dtype | None:
    """The type of matrix products; None: the weights' type."""
    return torch.bfloat16 if precision == "bfloat16" else None


def load_model(trained: Trained, device: torch.device) -> DualPathLM:
    model = empty_model(trained.settings.model)
    load_weights(model, trained.run.checkpoint)
    return model.to(device).eval().requires_grad_(False)


def empty_model(config: ModelConfig) -> DualPathLM:
    """A model on the CPU with undefined weights."""
    with torch.device("meta"):
        model = DualPathLM(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    return model


def round_weights(model: DualPathLM, dtype: torch.dtype) -> None:
    """Rounds the weights of matrix products to autocast's type, in place, to halve
    their memory.

    Autocast would round them alike in every pass. A tied head stays, since the residual
    stream begins with its rows.
    """
    for name, module in model.named_modules():
        is_tied = model.config.tie_embeddings and module is model.head
        decides = not {"gate", "router"}.isdisjoint(name.split("."))
        if type(module) is nn.Linear and not is_tied and not decides:
            module.to(dtype)


# Hashes


def hashed(checkpoint: Path) -> Files:
    """Sizes and hashes of a checkpoint's files, on all ranks, which divide the work."""
    rank, ranks = _rank_and_ranks()

    # On a shared file system a rank may not see yet the files of another machine.
    seen: set[Path] = set()
    for paths in from_all_ranks(files_of(checkpoint)):
        seen.update(paths)

    own = describe(checkpoint, sorted(seen)[rank::ranks])
    files: Files = {}
    for of_rank in from_all_ranks(own):
        files |= of_rank
    return files


def verify(
    folder: Path,
    read: Callable[[int], object] = lambda count: None,
    way_out: str | None = None,
    option: str = "--ckpt-path",
) -> None:
    """Compares a checkpoint or an exported folder with its hashes; ranks divide its
    files.

    `read` is called, on each rank, with the number of bytes just read. `way_out` ends
    the message; by default it gives `option` the newest other checkpoint of the run.
    """
    if is_exported(folder):
        check_unchanged(folder, read)
        return

    fault = fault_of(folder)
    own = [] if fault else damaged(folder, *_rank_and_ranks(), read)
    changed = {name for of_rank in from_all_ranks(own) for name in of_rank}
    if changed:
        fault = f"{min(changed)} was changed since it was written (sha256)"
    if not fault:
        return

    if way_out is None:
        newest = _newest_other(folder)
        way_out = "" if newest is None else f"; give {option} {newest}"
    raise UserError(f"checkpoint '{folder}' is damaged: {fault}{way_out}")


def _newest_other(folder: Path) -> Path | None:
    """The newest other checkpoint of a checkpoint's run, if there is one."""
    intact = [
        path
        for path in complete_checkpoints(folder.parents[1])
        if path != folder and fault_of(path) is None
    ]
    return max(intact, key=step_of, default=None)


def _rank_and_ranks() -> tuple[int, int]:
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def from_all_ranks(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks, on each rank."""
    _, ranks = _rank_and_ranks()
    if ranks == 1:
        return [value]

    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, value)
    return gathered
