"""Products of bf16 matrices on a CPU without such products, by those of float32.

Their operands are bf16 already, sums are float32, and the result is rounded once: what a CPU with
bf16 products computes, but for the order of summation. PyTorch's own are several times slower
there. Python reads this file at its start where PYTHONPATH names its folder:

    PYTHONPATH=docs/study/rounded_products bash docs/study/declared.sh
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, get_kernel

ROWS = 256
"""Rows of a large matrix that are widened at once, so that they stay in a core's cache."""

LARGE = 1_000_000
"""Elements of operands and result from which on a product is computed in parts."""

CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
library = Library("aten", "IMPL")


def mm(a_MK: torch.Tensor, b_KN: torch.Tensor, out_MN: torch.Tensor) -> None:
    """Writes the product of two matrices of bf16."""
    (M, K), N = a_MK.shape, b_KN.shape[1]
    large = M * K + max(M, K) * N > LARGE
    if large and a_MK.stride(1) == 1:
        wide_KN = b_KN.float()
        for start in range(0, M, ROWS):
            rows = slice(start, start + ROWS)
            out_MN[rows].copy_(a_MK[rows].float() @ wide_KN)
    elif large:  # the gradient of a weight, whose first operand is transposed
        sum_MN = torch.zeros(M, N)
        for start in range(0, K, ROWS):
            part = slice(start, start + ROWS)
            sum_MN.addmm_(a_MK[:, part].float(), b_KN[part].float())
        out_MN.copy_(sum_MN)
    else:
        out_MN.copy_(a_MK.float() @ b_KN.float())


def replace(name: str, fill: Callable[..., Any]) -> None:
    """Lets `fill` write the bf16 results of the operator `name` and of its form with `out`."""
    plain, plain_into = (get_kernel(f"aten::{name}{form}", "CPU") for form in ("", ".out"))

    def into(*args: torch.Tensor, out: torch.Tensor, **scales: float) -> torch.Tensor:
        if out.dtype is not torch.bfloat16:
            return plain_into.call_boxed(CPU, *args, out=out, **scales)
        fill(*args, out, **scales)
        return out

    def returned(*args: torch.Tensor, **scales: float) -> torch.Tensor:
        a, b = args[-2:]
        if a.dtype is not torch.bfloat16:
            return plain.call_boxed(CPU, *args, **scales)
        return into(*args, out=a.new_empty(*a.shape[:-1], b.shape[-1]), **scales)

    library.impl(name, returned, "CPU")
    library.impl(f"{name}.out", into, "CPU")


def bmm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.bmm(a.float(), b.float()))


def addmm(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **scales: float
) -> None:
    out.copy_(torch.addmm(c.float(), a.float(), b.float(), **scales))


for product in (mm, bmm, addmm):
    replace(product.__name__, product)
