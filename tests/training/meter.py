"""The bytes that a rank holds and sends in one optimizer step of training by Lightning, counted."""

import gc
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
}
"""Those that carry weights and gradients, by PyTorch's name of the operation; the last one is
DTensor's, for Muon."""


Kind = tuple[str, int, str]
"""One of KINDS, the ranks that take part, and the type of the numbers."""


class Collectives(TorchDispatchMode):
    """Within it, `sent` counts the collectives of KINDS that this rank takes part in.

    DistributedDataParallel's, FSDP2's and Muon's go by PyTorch's dispatcher, and so through here.
    The few numbers of a gradient norm are summed by DTensor, and are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[Kind, tuple[int, int]] = {}
        """Calls, and bytes of the whole: a rank's part times the ranks where each has a part."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Writes a collective down, and runs every operation as it is."""
        kind = KINDS.get(func.name().partition(".")[0])
        if kind is not None:
            tensors = args[0] if isinstance(args[0], list) else args[:2]
            if isinstance(tensors[-1], int):  # DTensor's: a part, and the ranks
                part, ranks = tensors
                size = part.nbytes * ranks
            else:
                group = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
                ranks = dist.ProcessGroup.unbox(group).size()
                size = max(tensor.nbytes for tensor in tensors)
            key = (kind, ranks, str(tensors[0].dtype).removeprefix("torch."))
            calls, bytes_ = self.sent.get(key, (0, 0))
            self.sent[key] = calls + 1, bytes_ + size
        return func(*args, **(kwargs or {}))


class Meter(Callback):
    """Counts one optimizer step: what this rank sends in it, and the bytes that it holds.

    Bytes are those of storages, each once, however many tensors look at it.
    """

    def __init__(self, step: int) -> None:
        """`step` counts from 1; AdamW's moments are there from the first one on."""
        self.step = step
        self.held: dict[str, int] = {}
        """Bytes of weights, gradients, moments; `unreduced` gradients before the last
        micro-batch."""
        self._sending = Collectives()
        self.sent = self._sending.sent

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begins to count what is sent."""
        if batch_idx == (self.step - 1) * trainer.accumulate_grad_batches:
            self._sending.__enter__()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Counts reduced gradients."""
        if trainer.global_step == self.step - 1:
            self.held["gradients"] = stored(
                p.grad for p in pl_module.parameters() if p.grad is not None
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts what is held between micro-batches, and after the step."""
        if batch_idx + 2 == self.step * trainer.accumulate_grad_batches:
            gc.collect()  # of what earlier models held
            self.held["unreduced"] = stored(unreduced())
        if batch_idx + 1 == self.step * trainer.accumulate_grad_batches:
            self._sending.__exit__(None, None, None)
            self.held["weights"] = stored(pl_module.parameters())
            self.held["moments"] = stored(
                value
                for state in trainer.optimizers[0].state.values()
                for name, value in state.items()
                if name != "step"
            )


def unreduced() -> list[torch.Tensor]:
    """Gradients of FSDP2's whole parameters, or what it added up of them by PyTorch's version."""
    parameters = [found for found in gc.get_objects() if type(found) is FSDPParam]
    whole = [getattr(parameter, "_unsharded_param", None) for parameter in parameters]
    found = [parameter.unsharded_accumulated_grad for parameter in parameters]
    found += [parameter.grad for parameter in whole if parameter is not None]
    return [gradient for gradient in found if gradient is not None]


def stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of this rank's storages behind tensors."""
    storages = (
        (t.to_local() if isinstance(t, DTensor) else t).untyped_storage()
        for t in (tensor.detach() for tensor in tensors)
    )
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
