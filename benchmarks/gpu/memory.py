"""Part `memory`: which of the 26 configurations train within 80 GB, at which checkpointing.

The allocator is given no more than the limit, so that "fits" means a step that was made. Where it
does not fit, it is made once more without a limit, for its peak.
"""

import gc
from functools import partial
from typing import get_args

import torch

from benchmarks.gpu.parts import Bench, Cell, Part, words
from benchmarks.gpu.results import Row
from benchmarks.gpu.training import TrainingStep, Variant
from dualpath_cli.config import Checkpointing

POLICIES: tuple[Checkpointing, ...] = get_args(Checkpointing)
STEPS = 2
"""Steps that are made: the second one has the optimizer's moments from the start."""


def fit(bench: Bench, recipe: str, policy: Checkpointing) -> dict[str, Row]:
    """Makes two steps within the limit, or finds out how much they need."""
    variant = Variant(bench.sizes.micro_batch, checkpointing=policy)
    cuda = bench.device.type == "cuda"
    if cuda:
        whole = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, bench.sizes.memory_limit / whole))
    try:
        fits, peaks = True, make_steps(bench, recipe, variant)
    except torch.OutOfMemoryError:
        fits, peaks = False, None
    finally:
        if cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)
    if peaks is None:  # no longer in `except`, whose traceback holds the model
        gc.collect()
        torch.cuda.empty_cache()
        try:
            peaks = make_steps(bench, recipe, variant)
        except torch.OutOfMemoryError:
            peaks = {"allocated": None, "reserved": None}
    return {recipe: {f"{policy} {key}": value for key, value in {"fits": fits, **peaks}.items()}}


def make_steps(bench: Bench, recipe: str, variant: Variant) -> Row:
    """Makes the steps; returns their peak in bytes, `allocated` and `reserved`, on CUDA."""
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = TrainingStep(bench, bench.sizes.model(recipe), variant)
    for _ in range(STEPS):
        step()
    step.check_compiled()
    if bench.device.type != "cuda":
        return {}
    torch.cuda.synchronize()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def cells(bench: Bench) -> list[Cell]:
    """A cell for each configuration and policy, the cheapest policy first."""
    return [
        Cell(f"{recipe} {policy}", (recipe,), partial(fit, bench, recipe, policy))
        for policy in POLICIES
        for recipe in bench.sizes.recipes()
    ]


def shown(policy: Checkpointing, row: Row) -> str:
    """Peak of what tensors held, in GB, and whether the step was made within the limit."""
    peak = row[f"{policy} allocated"]
    size = "more than there is" if peak is None else f"{peak / 1e9:.1f}"
    return size if row[f"{policy} fits"] else f"{size}, does not fit"


PART = Part(
    "memory",
    "recipe",
    tuple(words(f"{policy}, GB", partial(shown, policy)) for policy in POLICIES),
    cells,
)
