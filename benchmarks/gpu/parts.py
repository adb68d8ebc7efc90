"""What a part of the programme is: cells that are run one by one, and the table that they fill."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import Sizes
from dualpath_cli.output.table import Column


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
class Cell:
    """What is run at once and written down when it is done."""

    name: str
    rows: tuple[str, ...]
    """Names of the rows that it fills, or fills columns of."""
    run: Callable[[], dict[str, Row]]
    """Returns them."""


class Measured(NamedTuple):
    """A column of a part's table, and how a row gives its value."""

    column: Column
    value: Callable[[Row], Any]
    """May raise KeyError where the row was not measured."""


@dataclass(frozen=True)
class Part:
    """A part of the programme, complete in itself."""

    name: str
    title: str
    """What the first column of its table names."""
    columns: tuple[Measured, ...]
    cells: Callable[[Bench], list[Cell]]


def number(heading: str, key: str, form: str = ",.0f", scale: float = 1) -> Measured:
    """A column of numbers, each multiplied by `scale`."""
    return Measured(Column(heading, form), lambda row: row[key] * scale)


def words(heading: str, text: Callable[[Row], str]) -> Measured:
    """A column of words."""
    return Measured(Column(heading, ""), text)
