"""The model's attention by each kernel, forward and backward.

Shapes: B batch, T positions, H heads, N head size.
"""

import math
from functools import partial

import torch
import torch._functorch.config
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.bench import MAIN, Bench
from benchmarks.results import Row, Rows
from benchmarks.turns import kernel_seconds
from dualpath_cli.kernels.attention import Mask, attend
from dualpath_cli.model.positions import document_mask

SDPA = list(SDPBackend.__members__.values())
KERNELS = {
    "as chosen": SDPA,
    "cuDNN": [SDPBackend.CUDNN_ATTENTION],
    "FlashAttention": [SDPBackend.FLASH_ATTENTION],
    "documents": SDPA,
}
"""Of scaled_dot_product_attention, those that are allowed; `documents` takes
FlexAttention."""
DOCUMENT_TOKENS = 512
SETS = 2
"""Sets of inputs that a kernel takes by turns: one set would stay in the cache."""


# Graphs that are compiled may free what they saved in the first backward pass of
# several.
@torch._functorch.config.patch(donated_buffer=False)
def attention(bench: Bench, name: str) -> Rows:
    """Times a kernel; compares a sequence's result and gradients with those in
    float64."""
    config, length = bench.sizes.model(MAIN), bench.sizes.seq_len
    shape = (bench.sizes.micro_batch, length, config.n_heads, config.head_dim)

    def mask(batch: int) -> Mask | None:
        drawn = torch.rand(batch, length, generator=torch.Generator().manual_seed(0))
        ids_BT = (drawn < 1 / DOCUMENT_TOKENS).cumsum(1).to(bench.device)
        return document_mask(ids_BT) if name == "documents" else None

    with sdpa_kernel(KERNELS[name]):
        one, dense = (1, *shape[1:]), torch.no_grad()(mask)(1)
        error = worst_error(one, mask(1), dense, bench.device)
        blocks, forward, backward = mask(shape[0]), [], []
        for _ in range(SETS):
            *qkv, gradient = inputs(shape, bench.device)
            forward.append(partial(attend, *qkv, blocks))
            y = attend(*qkv, blocks)
            backward.append(
                partial(torch.autograd.grad, y, qkv, gradient, retain_graph=True)
            )
            backward[-1]()
        bench.alone()
        row: Row = {}
        for direction, calls, times in (
            ("forward", forward, 2),
            ("backward", backward, 5),
        ):
            seconds = kernel_seconds(calls, bench.device, bench.sizes.kernel_repeats)
            row[f"{direction}, ms"] = 1e3 * seconds
            if name != "documents":  # whose FLOPs depend on the documents
                row[f"{direction}, TFLOP/s"] = (
                    times * math.prod(shape) * length / seconds / 1e12
                )
        row["error"] = error
    return {name: row}


def inputs(shape: tuple[int, ...], device: torch.device) -> list[torch.Tensor]:
    """Random queries, keys, values and gradient of the result, bf16, (B, T, H, N)
    each."""
    drawn = [torch.randn(shape, device=device).bfloat16() for _ in range(4)]
    return [x.requires_grad_() for x in drawn[:3]] + drawn[3:]


def worst_error(
    shape: tuple[int, ...], mask: Mask | None, dense: Mask | None, device: torch.device
) -> float:
    """‖difference‖ / ‖truth‖ to float64 of the result or of the gradient that is
    farthest off."""
    *qkv, gradient = inputs(shape, device)
    exact = [x.detach().double().requires_grad_() for x in qkv]
    y = attend(*qkv, mask)
    with sdpa_kernel(SDPBackend.MATH):
        truth = attend(*exact, dense)
    pairs = zip(
        [y, *torch.autograd.grad(y, qkv, gradient)],
        [truth, *torch.autograd.grad(truth, exact, gradient.double())],
        strict=True,
    )
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)
