"""Lightning's strategies by the names that `trainer.strategy` takes: which device holds what.

    single   one device
    ddp      each device holds all; gradients are all-reduced
    fsdp     weights, gradients and moments are divided among all devices: FSDP2
    hsdp     they are divided within a group of devices, a node, and each group is a replica:
             gradients are reduce-scattered within groups, then all-reduced across them

All of them reduce gradients once a step, with its last micro-batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from dualpath_cli.errors import UserError
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.training import internals
from dualpath_cli.training.state.shards import load_training_state
from dualpath_cli.training.state.training_state import shard_whole_state

STRATEGIES = ("ddp", "fsdp", "hsdp")
"""This project's strategies for several devices; `auto` leaves the choice to Lightning."""


class FullyShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all devices of all nodes, or over groups of them that are replicas.

    Lightning's defaults would mean tensor parallelism within a node, and the trainer counts the
    devices late.
    """

    def __init__(self, timeout: timedelta, replicate: bool, shard_size: int | None) -> None:
        """`replicate` makes groups of `shard_size` devices; None: of a node's devices."""
        super().__init__(timeout=timeout)
        self._replicate = replicate
        self._shard_size = shard_size

    @property
    def shards(self) -> int:
        """How many devices share one set of weights."""
        if not self._replicate:
            return self.num_nodes * self.num_processes
        return self._shard_size or self.num_processes

    def check_shards(self) -> None:
        """Checks the size of groups."""
        devices = self.num_nodes * self.num_processes
        if self.shards == 1 < devices:
            raise UserError(
                "trainer.strategy hsdp shards within a node, and each node has one device; use "
                "ddp or fsdp, or give run.shard_size"
            )
        if devices % self.shards:
            fitting = [str(size) for size in range(2, devices + 1) if devices % size == 0]
            would = f"{' or '.join(fitting)} would, or " if fitting else ""
            raise UserError(
                f"run.shard_size={self.shards} does not divide the {devices} devices of this run; "
                f"{would}null for those of a node"
            )

    def setup_environment(self) -> None:
        """Sets Lightning's two sizes before it makes the process group, then makes our mesh."""
        devices = self.num_nodes * self.num_processes
        internals.set_parallel_sizes(self, data=devices, tensor=1)
        super().setup_environment()
        if self.shards < devices:
            # Neighbours share a group: Lightning, torchrun and SLURM's block distribution number
            # ranks node by node.
            sizes, names = (devices // self.shards, self.shards), ("replicate", "shard")
            mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=names)
            internals.replace_mesh(self, mesh)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads shards or a whole file from the first rank's path; nothing in them is run."""
        path = Path(self.broadcast(str(checkpoint_path)))
        assert self.model is not None
        load = load_training_state if path.is_dir() else shard_whole_state
        return load(self.model, self.optimizers, path)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Keeps gradients on their rank until the last micro-batch of a step.

        Lightning enters it for all micro-batches but the last, as for DDP; its own strategy would
        reduce in each. Meanwhile a rank holds the gradients of the whole model.
        """
        assert self.model is not None
        units = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        for unit in units:
            unit.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for unit in units:
                unit.set_requires_gradient_sync(True, recurse=False)


class CompressedDDPStrategy(DDPStrategy):
    """DDP whose gradients travel in bfloat16, by PyTorch's hook.

    Lightning registers hooks only on CUDA, and ignores them elsewhere without a message.
    """

    def configure_ddp(self) -> None:
        """Wraps the model before its first step, and registers the hook."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(None, bf16_compress_hook)


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The part of a strategy's mesh for FSDP2: without Lightning's tensor parallelism."""
    names = mesh.mesh_dim_names or ()
    return mesh["data_parallel"] if "data_parallel" in names else mesh


def build_strategy(name: str, settings: RunSettings) -> Strategy | str:
    """Returns the Lightning strategy for one of the names that `trainer.strategy` takes.

    The run ends if a rank is waited for longer than `run.rank_timeout` minutes.
    """
    timeout = timedelta(minutes=settings.rank_timeout)
    if name in ("fsdp", "hsdp"):
        return FullyShardedStrategy(timeout, name == "hsdp", settings.shard_size)
    if name == "ddp":
        kind = CompressedDDPStrategy if settings.reduce_dtype == "bfloat16" else DDPStrategy
        return kind(timeout=timeout, gradient_as_bucket_view=True, broadcast_buffers=False)
    return "auto"


def reduce_dtype(settings: RunSettings) -> torch.dtype | None:
    """`run.reduce_dtype` for FSDP2; None leaves gradients in their own type."""
    return torch.bfloat16 if settings.reduce_dtype == "bfloat16" else None
