"""Part `step`: tokens/s, MFU and peak memory of training steps, as trained."""

from dataclasses import replace
from functools import partial
from statistics import median

import torch

from benchmarks.gpu.ceilings import DENSE_PEAK
from benchmarks.gpu.parts import Bench, Cell, Part, Row, number
from benchmarks.gpu.sizes import MAIN
from benchmarks.gpu.training import TrainingStep, Variant
from benchmarks.turns import seconds_of
from dualpath_cli.flops.count import training_flops_per_token

WIDE = "f80m_wide"
OTHERS = ("f160m_a25_k4", WIDE, "f80m_loop_k4", "f80m_a50_k2")


def measure(bench: Bench, name: str, recipe: str, variant: Variant) -> dict[str, Row]:
    """Times a step; returns tokens/s, MFU, peak memory, and what ran.

    MFU counts the FLOPs of forward and backward without recomputation, causal attention halved.
    """
    sizes, cuda = bench.sizes, bench.device.type == "cuda"
    peak = bench.ceilings["matmul_flops"]  # before the step, whose peak must not hold its buffers
    step = TrainingStep(bench, sizes.model(recipe), variant)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = seconds_of(step, bench.device, sizes.repeats, sizes.warm_up)
    step.check_compiled()
    speed = step.tokens_per_step / median(seconds)
    loops = {} if variant.loops is None else {"loops": variant.loops}
    flops = speed * training_flops_per_token(replace(step.config, **loops), sizes.seq_len)
    row = {
        "seconds": median(seconds),
        "all_seconds": seconds,
        "tokens_per_second": speed,
        "mfu_of_measured": flops / peak,
        "mfu_of_data_sheet": flops / DENSE_PEAK,
        "graphs": step.graphs,
    }
    if cuda:
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {name: row}


def cells(bench: Bench) -> dict[str, Cell]:
    """MAIN with each micro-batch, with each option, and with several micro-batches; others."""
    sizes = bench.sizes
    main = {f"micro-batch {n}": Variant(n) for n in sizes.micro_batches}
    plain, n = sizes.model(MAIN), sizes.micro_batch
    uneven = [plain.most_loops + (1 if layer % 2 else -1) for layer in range(plain.n_layers)]
    main |= {
        "FiLM": Variant(n, model={"step_conditioning": "film"}),
        "K - 1 and K + 1 by turns": Variant(n, model={"loops": uneven}),
        "a step of one loop": Variant(n, loops=1),
        "8 experts, 2 active": Variant(n, model={"n_experts": 8}),
    }
    accumulated = f"micro-batch {sizes.micro_batch}, {sizes.accumulate} a step"
    main[accumulated] = Variant(sizes.micro_batch, accumulate=sizes.accumulate)
    main[f"{accumulated}, Muon"] = replace(main[accumulated], optimizer="muon")
    asked = {f"{MAIN}, {name}": (MAIN, variant) for name, variant in main.items()}
    asked |= {name: (name, Variant(sizes.micro_batch)) for name in OTHERS}
    asked[f"{WIDE}, 8 experts, 2 active"] = (WIDE, Variant(n, model={"n_experts": 8}))
    return {name: partial(measure, bench, name, *of) for name, of in asked.items()}


PART = Part(
    "step",
    "recipe",
    [
        number("tokens/s", "tokens_per_second"),
        number("MFU, % of measured peak", "mfu_of_measured", ".1f", 100),
        number("MFU, % of 989 TFLOP/s", "mfu_of_data_sheet", ".1f", 100),
        number("step, ms", "seconds", ".1f", 1e3),
        number("peak, GB", "peak_bytes", ".1f", 1e-9),
        number("graphs", "graphs"),
    ],
    cells,
)
