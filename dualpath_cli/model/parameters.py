"""Every parameter of the model by its name: the group it decays with, and what it starts from.

One table for initialisation, the optimizer and counts. A parameter that is new to the model has to
be entered here before any of them takes it.
"""

import math
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import torch

from dualpath_cli.config import ModelConfig, ParameterGroup
from dualpath_cli.seeds import seed_from


class ParameterKind(NamedTuple):
    """What is the same for all parameters of a kind."""

    group: ParameterGroup
    """Group of the optimizer."""
    start: Literal["normal", "normal_by_depth", "gain_init", "one", "zero"]
    """`normal` has std `init_std` (0.02), `normal_by_depth` `init_std` / sqrt(2 n_layers);
    `gain_init` is that of gains before the softplus (-7: s is 9.1e-4)."""


KINDS = {
    "embed.weight": ParameterKind("embeddings", "normal"),  # also as a tied head
    "head.weight": ParameterKind("matrices", "normal"),
    "*.[qkv]_proj.weight": ParameterKind("matrices", "normal"),
    "*.gate_proj.weight": ParameterKind("matrices", "normal"),
    "*.up_proj.weight": ParameterKind("matrices", "normal"),
    "*.o_proj.weight": ParameterKind("matrices", "normal_by_depth"),
    "*.down_proj.weight": ParameterKind("matrices", "normal_by_depth"),
    "*.router.weight": ParameterKind("matrices", "normal"),
    "*.router.bias": ParameterKind("biases", "zero"),
    "*.gate.proj.weight": ParameterKind("matrices", "zero"),
    "*.gate.proj.bias": ParameterKind("biases", "zero"),
    "*.deep.gains": ParameterKind("gains", "gain_init"),
    "*.wide.gain": ParameterKind("gains", "gain_init"),
    "norm.weight": ParameterKind("norms", "one"),
    "*.*_norm.weight": ParameterKind("norms", "one"),
}
"""Kinds by pattern of the name that ``DualPathLM.named_parameters`` gives a parameter."""


def kind_of(name: str) -> ParameterKind:
    """Returns the kind of a parameter.

    Raises:
        ValueError: for a name that is not in the table.
    """
    for pattern, kind in KINDS.items():
        if fnmatchcase(name, pattern):
            return kind
    raise ValueError(f"parameter '{name}' is of no known kind: enter it in model/parameters.py")


def initial_value(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> torch.Tensor:
    """Returns the whole initial value of a parameter, float32 on the CPU.

    What is drawn comes from a generator of its own, seeded by seed and name: the same whatever the
    device, the number of ranks, the block kinds and the order of construction, so that two
    architectures compared under one seed share all that they have in common.

    Raises:
        ValueError: for a name that is not in the table.
    """
    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    start = kind_of(name).start
    value = torch.empty(shape, dtype=torch.float32, device="cpu")
    if start in constants:
        return value.fill_(constants[start])
    depth = 2 * config.n_layers if start == "normal_by_depth" else 1
    generator = torch.Generator().manual_seed(seed_from(seed, name) >> 1)
    return value.normal_(std=config.init_std / math.sqrt(depth), generator=generator)
