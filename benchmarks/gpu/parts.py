"""A part of the programme: cells that run one by one, and the columns of the table they fill."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from benchmarks.gpu.sizes import Sizes
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
        """`matmul_flops` and `copy_bytes`, per second; measured once a process, in seconds."""
        from benchmarks.gpu.ceilings import measure

        return measure(self)


@dataclass(frozen=True)
class Part:
    """A part of the programme, complete in itself."""

    name: str
    title: str
    """Heading of the first column, which holds the names of the rows."""
    columns: Columns[Row]
    cells: Callable[[Bench], dict[str, Cell]]
    """What is measured, by name."""


def number(
    heading: str, key: str, form: str = ",.0f", scale: float = 1
) -> tuple[Column, Callable[[Row], float | None]]:
    """A column of numbers, each multiplied by `scale`; empty where a row has none."""
    return Column(heading, form), lambda row: row[key] * scale if key in row else None
