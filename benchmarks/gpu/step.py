"""Parts `step` and `models`: tokens/s, MFU and peak memory of training steps, as trained."""

from functools import partial
from statistics import median

import torch

from benchmarks.gpu import kernels
from benchmarks.gpu.ceilings import DENSE_PEAK
from benchmarks.gpu.clock import seconds_of
from benchmarks.gpu.kernel_classes import attention_kernels
from benchmarks.gpu.parts import Bench, Cell, Part, number, text
from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import MAIN
from benchmarks.gpu.training import TrainingStep, Variant
from dualpath_cli.flops.count import training_flops_per_token

OTHERS = ("f160m_a25_k4", "f80m_wide", "f80m_loop_k4", "f80m_a50_k2")


def measure_step(step: TrainingStep) -> Row:
    """Times a step, and returns tokens/s, MFU, peak memory, and what ran.

    MFU counts the FLOPs of forward and backward without recomputation, causal attention halved.
    """
    bench, cuda = step.bench, step.bench.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    sizes = bench.sizes
    seconds = seconds_of(step, bench.device, sizes.repeats, sizes.warm_up)
    step.check_compiled()
    speed = step.tokens_per_step / median(seconds)
    flops = speed * training_flops_per_token(step.config, sizes.seq_len)
    row: Row = {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "tokens_per_second": speed,
        "mfu_of_measured": flops / bench.ceilings["matmul_flops"],
        "mfu_of_data_sheet": flops / DENSE_PEAK,
        "graphs": step.graphs,
    }
    if cuda:
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    row["attention_kernels"] = attention_kernels(step, bench.device)
    return row


def step_row(bench: Bench, recipe: str, variant: Variant, alone: bool) -> Row:
    """Measures one step; with `alone` its kernels one by one, too."""
    assert bench.ceilings  # measured now, so that its buffers are not in the step's peak
    step = TrainingStep(bench, bench.sizes.model(recipe), variant)
    row = measure_step(step)
    if alone:
        row |= kernels.alone(step)
        row["products_over_step"] = row["products_seconds"] / row["seconds"]
        row["kernels_over_step"] = row["kernels_seconds"] / row["seconds"]
    return row


def step_cells(bench: Bench) -> list[Cell]:
    """A cell for each micro-batch, and one that accumulates several, as the recipes do."""
    sizes = bench.sizes
    accumulated = f"micro-batch {sizes.micro_batch}, {sizes.accumulate} a step"
    variants = {f"micro-batch {n}": Variant(n) for n in sizes.micro_batches}
    variants[accumulated] = Variant(sizes.micro_batch, accumulate=sizes.accumulate)
    return [
        Cell(
            name,
            (name,),
            lambda name=name, variant=variant: {name: step_row(bench, MAIN, variant, alone=True)},
        )
        for name, variant in variants.items()
    ]


def model_cells(bench: Bench) -> list[Cell]:
    """A cell for each of the other configurations."""
    variant = Variant(bench.sizes.micro_batch)
    run = partial(step_row, bench, variant=variant, alone=False)
    return [Cell(name, (name,), lambda name=name: {name: run(name)}) for name in OTHERS]


COLUMNS = (
    number("tokens/s", "tokens_per_second"),
    number("MFU, % of measured peak", "mfu_of_measured", "{:.1f}", 100),
    number("MFU, % of 989 TFLOP/s", "mfu_of_data_sheet", "{:.1f}", 100),
    number("step, ms", "seconds", "{:.1f}", 1e3),
    number("peak, GB", "peak_bytes", "{:.1f}", 1e-9),
)
STEP = Part(
    "step",
    MAIN,
    (
        *COLUMNS,
        number("GEMMs and attention alone, ms", "products_seconds", "{:.1f}", 1e3),
        number("all kernels, ms", "kernels_seconds", "{:.1f}", 1e3),
        number("GEMMs and attention / step", "products_over_step", "{:.2f}"),
        number("all kernels / step", "kernels_over_step", "{:.2f}"),
    ),
    step_cells,
)
MODELS = Part("models", "recipe", (*COLUMNS, text("graphs", "graphs")), model_cells)
