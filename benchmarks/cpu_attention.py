"""Attention by blocks on a CPU beside PyTorch's kernel: forward and backward, bf16.

python -m benchmarks.cpu_attention

By turns in one process, in milliseconds of CPU time; a ratio is of one round, above 1 where blocks
are faster.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.results import show, spread, write
from benchmarks.turns import in_turns, ratios, timed
from dualpath_cli.kernels.blockwise_attention import blockwise_attention

SHAPES = [
    (16, 256, 2, 16),
    (512, 16, 12, 64),
    (128, 64, 12, 64),
    (32, 256, 12, 64),
    (4, 512, 4, 64),
    (2, 512, 12, 64),
    (1, 1024, 12, 64),
    (1, 2048, 6, 64),
    (1, 4096, 4, 64),
    (1, 2048, 4, 128),
]
"""(B, T, H, N): batch, positions, heads, head size."""


def passes(shape: tuple[int, int, int, int]) -> dict[str, Callable[[], object]]:
    """Both attentions, each a forward and a backward pass over the same tensors."""
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    grad = torch.randn(shape, dtype=torch.bfloat16)

    def blocks() -> object:
        out = blockwise_attention(q * shape[-1] ** -0.5, k, v, None)
        return torch.autograd.grad(out, (q, k, v), grad)

    def kernel() -> object:
        by_head = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(*by_head, is_causal=True).transpose(1, 2)
        return torch.autograd.grad(out, (q, k, v), grad)

    return {"blocks": blocks, "kernel": kernel}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="JSON file for all timings.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows, timings = [], {}
    for shape in SHAPES:
        both = {name: timed(run) for name, run in passes(shape).items()}
        seconds = in_turns(both, options.rounds)
        name = " x ".join(map(str, shape))
        timings[name] = seconds
        cells = [f"{median(times) * 1e3:.1f}" for times in seconds.values()]
        rows.append([name, *cells, spread(ratios(seconds["kernel"], seconds["blocks"]))])
    show(["B x T x H x N", "blocks, ms", "PyTorch's kernel, ms", "ratio"], rows)
    write(options.out, {"threads": options.threads, "cpu_seconds": timings})


if __name__ == "__main__":
    main()
