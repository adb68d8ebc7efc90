"""Hashes of a checkpoint's files, made as it is written and compared before it is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from dualpath_cli.errors import UserError
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.run.checkpoint_files import Files, damaged, describe, fault_of, files_of

T = TypeVar("T")


def hashed(checkpoint: Path) -> Files:
    """Sizes and hashes of a checkpoint's files; ranks divide the work, and get the same."""
    rank, ranks = _rank_and_ranks()
    # On a file system of several machines a rank may not see yet what another one wrote.
    seen = sorted({path for paths in from_all_ranks(files_of(checkpoint)) for path in paths})
    own = describe(checkpoint, seen[rank::ranks])
    return {name: facts for files in from_all_ranks(own) for name, facts in files.items()}


def verify(
    checkpoint: Path,
    read: Callable[[int], object] | None = None,
    way_out: str | None = None,
) -> None:
    """Hashes a checkpoint before it is loaded; ranks that have met divide its files.

    `read` is called, on each rank, with the number of bytes just read. `way_out` ends the message;
    by default it names the newest other checkpoint of the run.
    """
    if run_file.is_run_file(checkpoint):
        _verify_run_file(checkpoint)
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


def _verify_run_file(path: Path) -> None:
    rank, _ = _rank_and_ranks()
    if any(from_all_ranks(rank == 0 and run_file.was_changed(path))):
        raise UserError(
            f"'{path}' is damaged: it was changed since it was exported (sha256); copy it again"
        )


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
