"""Part `ceilings`: what the device can do at most, measured: bf16 matrix products and copies."""

from benchmarks.gpu.parts import Part, number

DENSE_PEAK = 989e12
"""FLOP/s of dense bf16 matrix products in the data sheets of H100 and H200 (SXM)."""

PART = Part(
    "ceilings",
    "",
    [
        number("bf16 products, TFLOP/s", "matmul_flops", ",.0f", 1e-12),
        number("copies, TB/s read and written", "copy_bytes", ".2f", 1e-12),
    ],
    lambda bench: {"ceilings": lambda: {"measured": bench.ceilings}},
)
