"""Kinds of parameters: the rate and the decay that they share, and what they start from.

A custom class may give the kinds of its parameters; otherwise they follow from names and shapes.
The model's own are in the table of `model/parameters.py`.
"""

import math
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import torch

from dualpath_cli.config import GROUP_OF, Kind, ModelConfig, ParameterGroup
from dualpath_cli.own_classes.classes import Role

Start = Literal["normal", "normal_by_depth", "gain_init", "one", "zero"]


class ParameterKind(NamedTuple):
    """Facts that all parameters of a kind share."""

    kind: Kind  # group of the optimizer
    start: Start
    """`normal` has std `init_std` (0.02), `normal_by_depth` `init_std` / sqrt(2 n_layers);
    `gain_init` is that of gains before the softplus (-7: s is 9.1e-4)."""

    @property
    def group(self) -> ParameterGroup:
        return GROUP_OF[self.kind]


MATRICES: dict[Role, Kind] = {"gate": "gate", "combination": "router"}
"""The kind of a custom class's matrices, by the role of the class."""


def own_kind(name: str, cls: type, role: Role, dimensions: int) -> ParameterKind:
    """The kind of a parameter of a custom class, by the name that the class gives it.

    The class's `parameter_kinds` decide. By default a weight of a norm starts at one, a matrix is
    drawn, and a vector starts at zero and decays as biases do.
    """
    kinds: dict[ParameterGroup, Kind] = {group: kind for kind, group in GROUP_OF.items()}
    kinds["matrices"] = MATRICES[role]
    for pattern, (group, start) in getattr(cls, "parameter_kinds", {}).items():
        if fnmatchcase(name, pattern):
            return ParameterKind(kinds[group], start)
    if name.endswith("norm.weight"):
        return ParameterKind("norms", "one")
    if dimensions > 1:
        return ParameterKind(MATRICES[role], "normal")
    return ParameterKind("biases", "zero")


def start_value(
    start: Start,
    shape: torch.Size,
    config: ModelConfig,
    generator: torch.Generator,
    std_factor: float = 1.0,
) -> torch.Tensor:
    """The initial value of a parameter of this shape, float32 on the CPU.

    `std_factor` multiplies the standard deviation of one that is drawn.
    """
    value = torch.empty(shape, dtype=torch.float32, device="cpu")
    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    if start in constants:
        return value.fill_(constants[start])
    depth = 2 * config.n_layers if start == "normal_by_depth" else 1
    std = std_factor * config.init_std / math.sqrt(depth)
    return value.normal_(std=std, generator=generator)
