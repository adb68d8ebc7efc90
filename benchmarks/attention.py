"""Attention on a CPU: by blocks of 128 or 256 queries, and by PyTorch's kernel; bf16.

OMP_NUM_THREADS=1 python -m benchmarks.attention --out
docs/benchmarks/speed-attention.json

By turns in one process, the least CPU time of the rounds. `kernels/attention.py`
chooses by them.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

import torch

from benchmarks.results import Rows, publish
from benchmarks.turns import in_turns, timed
from dualpath_cli.kernels import blockwise_attention as by_blocks
from dualpath_cli.kernels.freed_memory import keep_freed_memory

SHAPES = [
    (64, 128, 4, 64),
    (16, 256, 2, 16),
    (32, 256, 12, 64),
    (4, 512, 4, 64),
    (2, 512, 12, 64),
    (1, 1024, 12, 64),
    (1, 1536, 6, 64),
    (1, 2048, 6, 64),
    (1, 4096, 4, 64),
    (1, 2048, 4, 128),
]
"""(B, T, H, N): batch, positions, heads, head size."""
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def passes(shape: Sequence[int]) -> dict[str, Callable[[], object]]:
    """A forward and a backward pass by each way, over the same tensors."""
    q, k, v, grad = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(4))
    by_head = [x.transpose(1, 2) for x in (q, k, v)]
    out, weights = KERNEL(*by_head, 0.0, True, scale=1.0)
    kernel_backward = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    )
    before = (grad.transpose(1, 2), *by_head, out, weights, 0.0, True)

    def blocks(call: Callable[[], object], queries: int) -> object:
        ours = {"AMX": False, "_queries": lambda T: min(T, queries)}
        with patch.multiple(by_blocks, **ours):
            return call()

    forward = partial(by_blocks.blockwise_attention, q, k, v, None)
    backward = partial(by_blocks._backward, grad, q, k, v, None)
    return {
        "forward, 128": partial(blocks, forward, 128),
        "forward, 256": partial(blocks, forward, 256),
        "forward, PyTorch": partial(KERNEL, *by_head, 0.0, True, scale=1.0),
        "backward, 128": partial(blocks, backward, 128),
        "backward, 256": partial(blocks, backward, 256),
        "backward, PyTorch": partial(kernel_backward, *before, scale=1.0),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", help="JSON file of the results.")
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    keep_freed_memory()  # as `fit` does
    rows: Rows = {}
    for shape in SHAPES:
        seconds = in_turns(
            {name: timed(run) for name, run in passes(shape).items()}, given.rounds
        )
        rows[" x ".join(map(str, shape))] = {
            n: 1e3 * min(times) for n, times in seconds.items()
        }
    publish(given, {"Milliseconds of a pass, B x T x H x N": rows})


if __name__ == "__main__":
    main()
