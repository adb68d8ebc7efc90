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
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.gpu.clock import kernel_seconds
from benchmarks.gpu.parts import Bench, Cell, Part, number
from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import MAIN
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
    """Returns a kernel by name."""
    if name in SDPA:
        return partial(by_sdpa, name)
    return partial(by_flex, block_mask(shape, device, documents=name == DOCUMENTS))


def by_sdpa(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's scaled_dot_product_attention by the kernel of that name alone."""
    with sdpa_kernel(SDPA[name]):
        y_BHTN = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
    return y_BHTN.transpose(1, 2)


def by_flex(mask: BlockMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlexAttention, compiled, with a mask of blocks."""
    y_BHTN = compiled_flex()(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask
    )
    return y_BHTN.transpose(1, 2)


@cache
def compiled_flex() -> Callable[..., torch.Tensor]:
    """FlexAttention as one kernel; uncompiled it would write all scores to memory."""
    return torch.compile(flex_attention, dynamic=False)


def block_mask(shape: Shape, device: torch.device, documents: bool) -> BlockMask:
    """Each position sees itself and those before it, or those of its own document alone."""
    ids_BT = document_numbers(shape.batch if documents else 1, shape.length).to(device)
    if not documents:
        ids_BT = torch.zeros_like(ids_BT)
    return create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (ids_BT[b, q] == ids_BT[b, kv]),
        len(ids_BT), None, shape.length, shape.length, device=device,
    )  # fmt: skip


def document_numbers(batch: int, length: int) -> torch.Tensor:
    """(B, T): the document of each position, of DOCUMENT_TOKENS tokens on average."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(batch, length, generator=generator) < 1 / DOCUMENT_TOKENS).cumsum(1)


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
    # Graphs that are compiled may free what they saved in the first backward pass of several.
    with torch._functorch.config.patch(donated_buffer=False):
        attend = implementation(name, shape, device)
        sets = [inputs(shape, device) for _ in range(SETS)]
        results = []
        for q, k, v, gradient in sets:
            y = or_absent(partial(attend, q, k, v))
            or_absent(partial(torch.autograd.grad, y, (q, k, v), gradient, retain_graph=True))
            results.append((y, (q, k, v), gradient))
        forward = kernel_seconds([partial(attend, *s[:3]) for s in sets], device, repeats)
        backward = kernel_seconds(
            [partial(torch.autograd.grad, *r, retain_graph=True) for r in results], device, repeats
        )
    return forward, backward


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
    q, k, v, gradient = inputs(one, bench.device)
    with torch._functorch.config.patch(donated_buffer=False):
        y = implementation(name, one, bench.device)(q, k, v)
        got = [y, *torch.autograd.grad(y, (q, k, v), gradient)]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected_y = plain(*exact, documents=name == DOCUMENTS)
    expected = [expected_y, *torch.autograd.grad(expected_y, exact, gradient.double())]
    off = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]
    return off[0], max(off[1:])


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: bool = False
) -> torch.Tensor:
    """Attention by its equation, one head at a time, each computed again in the backward pass."""
    T = q.shape[1]
    seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    if documents:
        ids = document_numbers(1, T)[0].to(q.device)
        seen &= ids[:, None] == ids[None, :]

    def head(q_TN: torch.Tensor, k_TN: torch.Tensor, v_TN: torch.Tensor) -> torch.Tensor:
        scores = q_TN @ k_TN.T / math.sqrt(q.shape[-1])
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v_TN

    heads = [
        torch.utils.checkpoint.checkpoint(head, q[0, :, i], k[0, :, i], v[0, :, i],
                                          use_reentrant=False)
        for i in range(q.shape[2])
    ]  # fmt: skip
    return torch.stack(heads, dim=1)[None]


def flops(shape: Shape) -> int:
    """FLOPs of the causal forward pass; the backward pass counts two and a half times as many."""
    return 2 * shape.batch * shape.heads * shape.length**2 * shape.head_size


def row(bench: Bench, name: str) -> Row:
    """Measures a kernel, time and error."""
    config = bench.sizes.model(MAIN)
    shape = Shape(bench.sizes.micro_batch, bench.sizes.seq_len, config.n_heads, config.head_dim)
    try:
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
        found["forward_flops"] = flops(shape) / forward
        found["backward_flops"] = 2.5 * flops(shape) / backward
    return found


def cells(bench: Bench) -> list[Cell]:
    """A cell for each kernel."""
    return [
        Cell(name, (name,), lambda name=name: {name: row(bench, name)})
        for name in (*SDPA, "FlexAttention", DOCUMENTS)
    ]


PART = Part(
    "attention",
    "kernel",
    (
        number("forward, ms", "forward_seconds", ".3f", 1e3),
        number("backward, ms", "backward_seconds", ".3f", 1e3),
        number("forward, TFLOP/s", "forward_flops", ",.0f", 1e-12),
        number("backward, TFLOP/s", "backward_flops", ",.0f", 1e-12),
        number("error of the result", "error", ".1e"),
        number("of its gradients", "gradient_error", ".1e"),
    ),
    cells,
)
