"""`run.micro_batch: auto`: the most sequences at once that are predicted to fit into the memory.

Decided at each start, as a continued run may be on other devices; its numbers stay the same. The
run's recipe keeps `auto`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from lightning.pytorch import Trainer

from dualpath_cli.config import Checkpointing
from dualpath_cli.errors import UserError
from dualpath_cli.flops.memory import Execution, step_memory
from dualpath_cli.recipe.settings import Settings

USABLE = 0.9
"""Part of a GPU's memory that is planned with. The rest is for the CUDA context, the workspaces of
libraries, gaps between allocations, and what the prediction lacks."""

CPU_BYTES = 4e9
"""Memory that is planned with on a CPU, a rank: larger micro-batches are not faster there. A model
that needs more for one sequence gets it."""

UNTRAINED = 2
"""Sequences of a batch where nothing is trained, and nothing kept for a backward pass."""

MOST = 1024
"""Sequences of a micro-batch at most."""

WIDTHS = {
    "bf16-mixed": (4, 2),
    "transformer-engine": (4, 2),
    "bf16-true": (2, 2),
    "64-true": (8, 8),
}
"""Bytes of weights and of products by Lightning's name of a precision; (4, 4) for any other."""


def fitting_size(
    settings: Settings,
    trainer: Trainer,
    compiled: bool,
    checkpointing: Checkpointing,
    say: Callable[[str], None],
) -> int:
    """Returns the number of sequences of a micro-batch, and prints it.

    Raises UserError if not even one sequence fits.
    """
    model, ranks = settings.model, trainer.world_size
    of_a_node = ranks // settings.trainer.num_nodes
    shards = {"fsdp": ranks, "hsdp": settings.run.shard_size or of_a_node}
    weight_bytes, product_bytes = WIDTHS.get(str(trainer.precision), (4, 4))
    execution = Execution(
        checkpointing=checkpointing,
        compiled=compiled,
        weight_bytes=weight_bytes,
        product_bytes=product_bytes,
        shards=shards.get(str(settings.trainer.strategy)),
        optimizer=settings.optim.name,
    )
    usable = usable_bytes(trainer.strategy.root_device)
    # Where the batch cannot be divided at all, fit refuses it.
    sequences = settings.run.batch_tokens // (model.max_seq_len * ranks)
    fitting = [
        size
        for size in range(1, min(MOST, max(1, sequences)) + 1)
        if sequences % size == 0 and step_memory(model, size, execution).peak <= usable
    ]
    if not fitting and trainer.strategy.root_device.type == "cpu":
        fitting = [1]
    if not fitting:
        alone = step_memory(model, 1, replace(execution, checkpointing="full")).peak
        way_out = "--run.activation_checkpointing full, or " if alone <= usable else ""
        raise UserError(
            f"run.micro_batch=auto: one sequence of {model.max_seq_len} tokens is predicted to "
            f"need {step_memory(model, 1, execution).peak / 1e9:.1f} GB, and "
            f"{usable / 1e9:.1f} GB are planned with on each device; try "
            f"{way_out}--run.micro_batch 1 to see whether it does"
        )
    size = max(fitting)
    say(
        f"memory  run.micro_batch=auto takes {size}: "
        f"{step_memory(model, size, execution).peak / 1e9:.1f} GB predicted, "
        f"{usable / 1e9:.1f} GB planned with"
    )
    return size


def usable_bytes(device: torch.device) -> float:
    """Bytes that are planned with on each device: the same for all ranks of a machine."""
    if device.type != "cuda":
        return CPU_BYTES
    devices = range(torch.cuda.device_count())
    return USABLE * min(torch.cuda.get_device_properties(n).total_memory for n in devices)
