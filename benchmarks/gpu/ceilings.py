"""Part `ceilings`: what the device can do at most, measured: bf16 matrix products and copies."""

from itertools import cycle
from statistics import median

import torch

from benchmarks.gpu.parts import Bench, Part, Row, number
from benchmarks.turns import seconds_of

DENSE_PEAK = 989e12
"""FLOP/s of dense bf16 matrix products in the data sheets of H100 and H200 (SXM)."""


def measure(bench: Bench) -> Row:
    """Returns `matmul_flops` and `copy_bytes` (read and written), both per second.

    On random data: zeros draw less power, and run faster than any real data.
    """
    n, device, repeats = bench.sizes.matmul, bench.device, bench.sizes.kernel_repeats
    matrices = [torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(4)]
    out, turn = torch.empty_like(matrices[0]), cycle([matrices[:2], matrices[2:]])
    product = seconds_of(lambda: torch.mm(*next(turn), out=out), device, repeats, warm_up=5)
    source = torch.randn(bench.sizes.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = seconds_of(lambda: target.copy_(source), device, repeats, warm_up=5)
    return {
        "matmul_flops": 2 * n**3 / median(product),
        "copy_bytes": 2 * source.nbytes / median(copy),
    }


PART = Part(
    "ceilings",
    "",
    [
        number("bf16 products, TFLOP/s", "matmul_flops", ",.0f", 1e-12),
        number("copies, TB/s read and written", "copy_bytes", ".2f", 1e-12),
    ],
    lambda bench: {"ceilings": lambda: {"measured": bench.ceilings}},
)
