"""bf16 products on a CPU that has none: float32 products of the rounded operands, rounded once.

This is what a CPU with bf16 products computes, but for the order of summation, and four to twenty
times as fast as PyTorch's own bf16 products on a CPU without. Python runs this file at its start
where its folder is on PYTHONPATH:

    PYTHONPATH=docs/study/rounded_products bash docs/study/declared.sh
"""

import torch
from torch.library import Library, get_kernel

F, B, ROWS, LARGE = torch.float32, torch.bfloat16, 256, 1_000_000
library = Library("aten", "IMPL")
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
mm_out = get_kernel("aten::mm.out", "CPU")
addmm_out = get_kernel("aten::addmm.out", "CPU")


def product(a, b, out):
    (m, k), n = a.shape, b.shape[1]
    if m >= 2 * ROWS and m >= k and m * (n + k) > LARGE:  # rows that fit a cache
        b, tile = b.to(F), torch.empty(ROWS, n)
        for i in range(0, m, ROWS):
            rows = a[i : i + ROWS].to(F)
            part = tile[: len(rows)]
            mm_out.call_boxed(CPU, rows, b, out=part)
            out[i : i + ROWS].copy_(part)
    elif k >= 2 * ROWS and m <= 2048 and k * (m + n) > LARGE:
        total = torch.zeros(m, n)
        for i in range(0, k, ROWS):
            addmm_out.call_boxed(
                CPU, total, a[:, i : i + ROWS].to(F), b[i : i + ROWS].to(F), out=total
            )
        out.copy_(total)
    else:
        whole = torch.empty(m, n)
        mm_out.call_boxed(CPU, a.to(F), b.to(F), out=whole)
        out.copy_(whole)
    return out


plain_mm = get_kernel("aten::mm", "CPU")


def mm(a, b):
    if a.dtype is not B:
        return plain_mm.call_boxed(CPU, a, b)
    return product(a, b, torch.empty(a.shape[0], b.shape[1], dtype=B))


def mm_into(a, b, *, out):
    if a.dtype is not B:
        return mm_out.call_boxed(CPU, a, b, out=out)
    return product(a, b, out)


library.impl("mm", mm, "CPU")
library.impl("mm.out", mm_into, "CPU")


def rounded(name, results):
    kernel = get_kernel("aten::" + name, "CPU")

    def f(*args, **kw):
        if not any(isinstance(a, torch.Tensor) and a.dtype is B for a in args):
            return kernel.call_boxed(CPU, *args, **kw)
        args = [a.to(F) if isinstance(a, torch.Tensor) and a.dtype is B else a for a in args]
        if "out" in kw:
            out = kw["out"]
            whole = torch.empty(out.shape)
            kernel.call_boxed(CPU, *args, **{**kw, "out": whole})
            return out.copy_(whole)
        result = kernel.call_boxed(CPU, *args, **kw)
        if isinstance(result, torch.Tensor):
            return result.to(B)
        return tuple(x.to(B) if i in results else x for i, x in enumerate(result))

    library.impl(name, f, "CPU")


for name in ("addmm", "addmm.out", "bmm", "bmm.out"):
    rounded(name, ())
rounded("_scaled_dot_product_flash_attention_for_cpu", (0,))
rounded("_scaled_dot_product_flash_attention_for_cpu_backward", (0, 1, 2))
