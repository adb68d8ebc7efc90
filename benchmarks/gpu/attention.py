"""Part `attention`: causal attention of bf16 heads, forward and backward, by torch's kernels.

Queries, keys and values lie in memory as the model has them: (B, T, H, N), the heads of a token
side by side. Shapes: B batch, T positions, H heads, N head size.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu.parts import Bench, Cell, Part, Row, number
from benchmarks.gpu.sizes import MAIN
from benchmarks.turns import kernel_seconds
from dualpath_cli.errors import one_line

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps queries, keys and values, (B, T, H, N) each, to (B, T, H, N)."""

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""The fused kernels of torch's scaled_dot_product_attention."""
DOCUMENT_TOKENS = 512
DOCUMENTS = "FlexAttention, documents"
"""Attention that does not leave the document; of some DOCUMENT_TOKENS tokens each."""
SETS = 2
"""Sets of inputs that a kernel takes by turns."""


class Shape(NamedTuple):
    """Of the attention of one pass."""

    batch: int
    length: int
    heads: int
    head_size: int


class Absent(Exception):
    """A kernel that this machine does not have, or that does not take these inputs."""


def implementation(name: str, shape: Shape, device: torch.device) -> Attention:
    """Returns a kernel by name: FlexAttention with a mask of blocks, or one of SDPA."""
    if name not in SDPA:
        ids_BT = document_numbers(shape.batch, shape.length, device)
        if name != DOCUMENTS:
            ids_BT = torch.zeros_like(ids_BT[:1])
        mask = create_block_mask(
            lambda b, h, q, kv: (q >= kv) & (ids_BT[b, q] == ids_BT[b, kv]),
            len(ids_BT), None, shape.length, shape.length, device=device,
        )  # fmt: skip
        flex = partial(compiled_flex(), block_mask=mask)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        by_head = [x.transpose(1, 2) for x in (q, k, v)]
        if name not in SDPA:
            return flex(*by_head).transpose(1, 2)
        with sdpa_kernel(SDPA[name]):
            return F.scaled_dot_product_attention(*by_head, is_causal=True).transpose(1, 2)

    return attend


@cache
def compiled_flex() -> Callable[..., torch.Tensor]:
    """FlexAttention as one kernel; uncompiled it would write all scores to memory."""
    return torch.compile(flex_attention, dynamic=False)


def document_numbers(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """(B, T): the document of each position, of DOCUMENT_TOKENS tokens on average."""
    drawn = torch.rand(batch, length, generator=torch.Generator().manual_seed(0))
    return (drawn < 1 / DOCUMENT_TOKENS).cumsum(1).to(device)


def inputs(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """Random queries, keys, values and gradient of the result, bf16, (B, T, H, N) each."""
    drawn = [torch.randn(shape, device=device).bfloat16() for _ in range(4)]
    return [x.requires_grad_() for x in drawn[:3]] + drawn[3:]


def seconds(bench: Bench, name: str, shape: Shape) -> tuple[float, float]:
    """Returns the seconds of forward and backward.

    Raises:
        Absent: if the machine has no such kernel for these inputs.
    """
    device, repeats = bench.device, bench.sizes.kernel_repeats
    attend = implementation(name, shape, device)
    forward, backward = [], []
    for _ in range(SETS):
        *qkv, gradient = inputs(shape, device)
        forward.append(partial(attend, *qkv))
        y = or_absent(forward[-1])
        backward.append(partial(torch.autograd.grad, y, qkv, gradient, retain_graph=True))
        or_absent(backward[-1])
    return kernel_seconds(forward, device, repeats), kernel_seconds(backward, device, repeats)


def or_absent(call: Callable[[], object]) -> object:
    """Calls a kernel for the first time.

    Raises:
        Absent: with torch's words, where it has no kernel that takes the inputs.
    """
    try:
        return call()
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # a failure, not a refusal
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise Absent(one_line(str(error))[:200]) from error


def errors(bench: Bench, name: str, shape: Shape) -> tuple[float, float]:
    """How far result and worst gradient are from float64's, as norms, for one sequence."""
    one = shape._replace(batch=1)
    *qkv, gradient = inputs(one, bench.device)
    y = implementation(name, one, bench.device)(*qkv)
    got = [y, *torch.autograd.grad(y, qkv, gradient)]
    exact = [x.detach().double().requires_grad_() for x in qkv]
    expected_y = plain(*exact, documents=name == DOCUMENTS)
    expected = [expected_y, *torch.autograd.grad(expected_y, exact, gradient.double())]
    off = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]
    return off[0], max(off[1:])


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: bool = False
) -> torch.Tensor:
    """Attention by its equation."""
    T = q.shape[1]
    seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    if documents:
        (ids,) = document_numbers(1, T, q.device)
        seen &= ids[:, None] == ids[None, :]
    scores = torch.einsum("bqhn,bkhn->bhqk", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("bhqk,bkhn->bqhn", weights, v)


def row(bench: Bench, name: str) -> Row:
    """Measures a kernel, time and error."""
    config = bench.sizes.model(MAIN)
    shape = Shape(bench.sizes.micro_batch, bench.sizes.seq_len, config.n_heads, config.head_dim)
    try:
        # Graphs that are compiled may free what they saved in the first backward pass of several.
        with torch._functorch.config.patch(donated_buffer=False):
            forward, backward = seconds(bench, name, shape)
            error, gradient_error = errors(bench, name, shape)
    except Absent as absent:
        return {"absent": str(absent)}
    found: Row = {
        "forward_seconds": forward,
        "backward_seconds": backward,
        "error": error,
        "gradient_error": gradient_error,
    }
    if name != DOCUMENTS:  # whose FLOPs depend on the documents
        flops = 2 * shape.batch * shape.heads * shape.length**2 * shape.head_size
        found["forward_flops"] = flops / forward
        found["backward_flops"] = 2.5 * flops / backward
    return found


def cells(bench: Bench) -> dict[str, Cell]:
    """A cell for each kernel."""
    names = (*SDPA, "FlexAttention", DOCUMENTS)
    return {name: lambda name=name: {name: row(bench, name)} for name in names}


PART = Part(
    "attention",
    "kernel",
    [
        number("forward, ms", "forward_seconds", ".3f", 1e3),
        number("backward, ms", "backward_seconds", ".3f", 1e3),
        number("forward, TFLOP/s", "forward_flops", ",.0f", 1e-12),
        number("backward, TFLOP/s", "backward_flops", ",.0f", 1e-12),
        number("error of the result", "error", ".1e"),
        number("of its gradients", "gradient_error", ".1e"),
    ],
    cells,
)
