"""Part `memory`: which of the 26 configurations train within 80 GB, at which checkpointing.

The allocator is given no more than the limit, so that "fits" means a step that was made. Where it
does not fit, it is made once more without a limit, for its peak.
"""

import gc
from functools import partial
from typing import get_args

import torch

from benchmarks.gpu.parts import Bench, Cell, Part, Row
from benchmarks.gpu.training import TrainingStep, Variant
from dualpath_cli.config import Checkpointing
from dualpath_cli.output.table import Column

POLICIES: tuple[Checkpointing, ...] = get_args(Checkpointing)


def fit(bench: Bench, recipe: str, policy: Checkpointing) -> dict[str, Row]:
    """Makes two steps within the limit, or finds out how much they need."""
    whole = None
    if bench.device.type == "cuda":
        whole = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, bench.sizes.memory_limit / whole))
    try:
        fits, peak = True, peak_bytes(bench, recipe, policy)
    except torch.OutOfMemoryError:
        fits, peak = False, None
    finally:
        if whole is not None:
            torch.cuda.set_per_process_memory_fraction(1.0)
    if not fits:  # no longer in `except`, whose traceback holds the model
        gc.collect()
        torch.cuda.empty_cache()
        try:
            peak = peak_bytes(bench, recipe, policy)
        except torch.OutOfMemoryError:
            peak = None
    return {recipe: {f"{policy} fits": fits, f"{policy} peak": peak}}


def peak_bytes(bench: Bench, recipe: str, policy: Checkpointing) -> int:
    """The most that tensors held in two steps; the second has moments from the start. 0 on a CPU"""
    cuda = bench.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    variant = Variant(bench.sizes.micro_batch, checkpointing=policy)
    step = TrainingStep(bench, bench.sizes.model(recipe), variant)
    step()
    step()
    step.check_compiled()
    return torch.cuda.max_memory_allocated() if cuda else 0


def cells(bench: Bench) -> dict[str, Cell]:
    """A cell for each configuration and policy, the cheapest policy first."""
    return {
        f"{recipe} {policy}": partial(fit, bench, recipe, policy)
        for policy in POLICIES
        for recipe in bench.sizes.recipes()
    }


def shown(policy: Checkpointing, row: Row) -> str | None:
    """The peak in GB, and whether the step was made within the limit."""
    if f"{policy} fits" not in row:
        return None
    peak = row[f"{policy} peak"]
    size = "more than there is" if peak is None else f"{peak / 1e9:.1f}"
    return size if row[f"{policy} fits"] else f"{size}, does not fit"


PART = Part(
    "memory",
    "recipe",
    [(Column(f"{policy}, GB", ""), partial(shown, policy)) for policy in POLICIES],
    cells,
)
