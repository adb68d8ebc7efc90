"""Attention of one token over a cache: positions of a head side by side, or heads of a position."""

import argparse

import torch
import torch.nn.functional as F

from benchmarks.generate.turns import Timed, clock, in_turns
from benchmarks.results import spread, write
from benchmarks.tables import show

SHAPES = ((1, 4096, 12, 64), (32, 300, 2, 64))
"""Sequences, positions, heads and head sizes."""
CALLS = 20
"""In a round."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`layout` has no options of its own."""


def run(given: argparse.Namespace) -> None:
    """Prints and writes milliseconds of a call in both layouts."""
    rows, records = [], []
    for B, S, H, N in SHAPES:
        q_BH1N = torch.randn(B, H, 1, N, device=given.device)
        by_position = torch.randn(B, S, H, N, device=given.device).transpose(1, 2)
        layouts = {"by position": by_position, "by head": by_position.contiguous()}

        variants = {name: attending(q_BH1N, kept) for name, kept in layouts.items()}
        seconds = in_turns(variants, given.rounds)
        for name, times in seconds.items():
            milliseconds = [1e3 * took / CALLS for took in times]
            rows.append([f"{B} x {S} x {H} x {N}", name, spread(milliseconds)])
            records.append({"shape": [B, S, H, N], "layout": name, "milliseconds": milliseconds})
    show(["batch, positions, heads, size", "side by side", "ms"], rows)
    write(given.out, {"runs": records})


def attending(q_BH1N: torch.Tensor, kept_BHSN: torch.Tensor) -> Timed:
    """Attends `CALLS` times to what is kept, as keys and as values."""

    def run() -> float:
        start = clock(q_BH1N.device)
        for _ in range(CALLS):
            F.scaled_dot_product_attention(q_BH1N, kept_BHSN, kept_BHSN)
        return clock(q_BH1N.device) - start

    return run
