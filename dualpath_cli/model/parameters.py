"""Every parameter by its name: its kind in the optimizer, its initial value.

Initialisation, the optimizer and counts share one table, and refuse a parameter that it
lacks. The kinds of a custom class's parameters are in the class's `parameter_kinds`, a
table by names within the class, or else follow from shapes.
"""

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from dualpath_cli.base.seeds import seed_from
from dualpath_cli.spec.config import Kind, ModelConfig
from dualpath_cli.spec.own_classes import (
    ParameterKind,
    Role,
    own_class,
    own_kind,
    own_roles,
)

KINDS = {
    "embed.weight": ParameterKind("embedding", "normal"),  # also as a tied head
    "head.weight": ParameterKind("head", "normal"),
    "*.[qkv]_proj.weight": ParameterKind("hidden", "normal"),
    "*.gate_proj.weight": ParameterKind("hidden", "normal"),
    "*.up_proj.weight": ParameterKind("hidden", "normal"),
    "*.o_proj.weight": ParameterKind("hidden", "normal_by_depth"),
    "*.down_proj.weight": ParameterKind("hidden", "normal_by_depth"),
    "*.ffn.balance_bias": ParameterKind("biases", "zero"),  # without a gradient
    "core.injection.weight": ParameterKind("hidden", "zero"),
    "*.router.weight": ParameterKind("router", "normal"),
    "*.router.bias": ParameterKind("biases", "zero"),
    "*.gate.proj.weight": ParameterKind("gate", "zero"),
    "*.gate.proj.bias": ParameterKind("biases", "zero"),
    "*.deep.gains": ParameterKind("gains", "gain_init"),
    "*.wide.gain": ParameterKind("gains", "gain_init"),
    "*.deep.film": ParameterKind("conditioning", "zero"),
    "norm.weight": ParameterKind("norms", "one"),
    "*.*_norm.weight": ParameterKind("norms", "one"),
}
"""Kinds by pattern of a parameter's name in ``DualPathLM.named_parameters``."""


PLACES: dict[Role, re.Pattern[str]] = {
    "gate": re.compile(r"blocks\.\d+\.gate\.(.+)"),
    "combination": re.compile(r"blocks\.\d+\.deep\.router\.(.+)"),
}
"""Names of the parameters of custom classes; the group is the name within the class."""


def kind_of(
    name: str, config: ModelConfig | None = None, dimensions: int = 2
) -> ParameterKind:
    """Returns the kind of a parameter; `config` may name custom classes.

    Raises:
        ValueError: for a name that is not in the table.
    """
    if config is not None:
        for role in own_roles(config):
            if place := PLACES[role].fullmatch(name):
                return own_kind(place[1], own_class(config, role), role, dimensions)

    for pattern, kind in KINDS.items():
        if fnmatchcase(name, pattern):
            return kind

    raise ValueError(
        f"parameter '{name}' is of no known kind: enter it in model/parameters.py"
    )


EXPERTS = re.compile(r"blocks\.(\d+)\.wide\.sublayer\.ffn\.(gate|up|down)_proj\.weight")


def matrices_in(name: str, config: ModelConfig) -> int:
    """The number of matrices stacked in a parameter: one for each expert."""
    place = EXPERTS.fullmatch(name)
    if place is None:
        return 1

    layer = config.layers[int(place[1])]
    return layer.n_experts or 1


def initial_value(
    name: str,
    shape: torch.Size,
    config: ModelConfig,
    seed: int,
    std_factors: Mapping[Kind, float] = {},
) -> torch.Tensor:
    """Returns the whole initial value of a parameter, float32 on the CPU.

    Each parameter has its own generator, seeded by seed and name. So its values do not
    depend on the device, the number of ranks, the block kinds or the order of
    construction, and two architectures under one seed share the values of their common
    parameters. `std_factors` multiply the standard deviations of kinds; a kind without
    a factor has 1.

    Raises:
        ValueError: for a name that is not in the table.
    """
    kind, start = kind_of(name, config, len(shape))
    value = torch.empty(shape, dtype=torch.float32, device="cpu")

    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    if start in constants:
        return value.fill_(constants[start])

    generator = torch.Generator().manual_seed(seed_from(seed, name) >> 1)
    # Projections into the residual stream start smaller in deeper models.
    depth = 2 * config.n_layers if start == "normal_by_depth" else 1
    std = std_factors.get(kind, 1.0) * config.init_std / math.sqrt(depth)
    return value.normal_(std=std, generator=generator)
