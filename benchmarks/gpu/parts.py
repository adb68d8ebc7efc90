"""A part of the programme: cells that run one by one, and the columns of the table they fill."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.sizes import Sizes
from benchmarks.turns import seconds_of
from dualpath_cli.output.table import Column, Columns

Row = dict[str, Any]
"""A row of a table by column. `absent` or `failed` says in words why the others are missing."""
Cell = Callable[[], dict[str, Row]]
"""Measures rows, or some columns of them; returns them by name."""


@dataclass(frozen=True)
class Bench:
    """Where and how large everything is run."""

    device: torch.device
    sizes: Sizes

    @cached_property
    def ceilings(self) -> Row:
        """`matmul_flops` and `copy_bytes` (read and written), per second; measured once a process.

        On random data: zeros draw less power, and run faster than any real data.
        """
        n, device, repeats = self.sizes.matmul, self.device, self.sizes.kernel_repeats
        matrices = [torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(4)]
        out, turn = torch.empty_like(matrices[0]), cycle([matrices[:2], matrices[2:]])
        product = seconds_of(lambda: torch.mm(*next(turn), out=out), device, repeats, warm_up=5)
        source = torch.randn(self.sizes.copy_bytes // 4, device=device)
        target = torch.empty_like(source)
        copy = seconds_of(lambda: target.copy_(source), device, repeats, warm_up=5)
        return {
            "matmul_flops": 2 * n**3 / median(product),
            "copy_bytes": 2 * source.nbytes / median(copy),
        }


@dataclass(frozen=True)
class Part:
    """A part of the programme, complete in itself."""

    name: str
    title: str
    """Heading of the first column, which holds the names of the rows."""
    columns: Columns[Row]
    cells: Callable[[Bench], dict[str, Cell]]
    """The measurements, by name."""


def number(
    heading: str, key: str, form: str = ",.0f", scale: float = 1
) -> tuple[Column, Callable[[Row], float | None]]:
    """A column of numbers, each multiplied by `scale`; empty where a row has none."""
    return Column(heading, form), lambda row: row[key] * scale if key in row else None
