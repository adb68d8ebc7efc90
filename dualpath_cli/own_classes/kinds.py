"""Kinds of parameters: the group that they decay with, and what they start from.

A custom class may give the kinds of its parameters; otherwise they follow from names and shapes.
The model's own are in the table of `model/parameters.py`.
"""

import math
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import torch

from dualpath_cli.config import ModelConfig, ParameterGroup

Start = Literal["normal", "normal_by_depth", "gain_init", "one", "zero"]


class ParameterKind(NamedTuple):
    """Facts that all parameters of a kind share."""

    group: ParameterGroup
    """Group of the optimizer."""
    start: Start
    """`normal` has std `init_std` (0.02), `normal_by_depth` `init_std` / sqrt(2 n_layers);
    `gain_init` is that of gains before the softplus (-7: s is 9.1e-4)."""


def own_kind(name: str, cls: type, dimensions: int) -> ParameterKind:
    """The kind of a parameter of a custom class, by the name that the class gives it.

    The class's `parameter_kinds` decide. By default a weight of a norm starts at one, a matrix is
    drawn, and a vector starts at zero and decays as biases do.
    """
    for pattern, kind in getattr(cls, "parameter_kinds", {}).items():
        if fnmatchcase(name, pattern):
            return ParameterKind(*kind)
    if name.endswith("norm.weight"):
        return ParameterKind("norms", "one")
    if dimensions > 1:
        return ParameterKind("matrices", "normal")
    return ParameterKind("biases", "zero")


def start_value(
    start: Start, shape: torch.Size, config: ModelConfig, generator: torch.Generator
) -> torch.Tensor:
    """The initial value of a parameter of this shape, float32 on the CPU."""
    value = torch.empty(shape, dtype=torch.float32, device="cpu")
    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    if start in constants:
        return value.fill_(constants[start])
    depth = 2 * config.n_layers if start == "normal_by_depth" else 1
    return value.normal_(std=config.init_std / math.sqrt(depth), generator=generator)
