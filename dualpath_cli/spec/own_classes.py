"""Custom classes of a model's gate and combination, by dotted path, and kinds of
parameters.

`model.gate` and `model.combination` take `my.module.Gate` beside the built-in names;
docs/custom.md lists the methods of such a class. `own_checks.import_classes` imports
classes; this file does not.
"""

from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from dualpath_cli.base.errors import UserError
from dualpath_cli.spec.config import (
    COMBINATIONS,
    GATE_OUTPUTS,
    GROUP_OF,
    Kind,
    ModelConfig,
    ParameterGroup,
)

Role = Literal["gate", "combination"]  # the field of ModelConfig that names a class
Start = Literal["normal", "normal_by_depth", "gain_init", "one", "zero"]

FOUND: dict[str, Any] = {}  # classes by path, each imported with permission


def own_roles(config: ModelConfig) -> list[Role]:
    """The roles that a model fills with custom classes, where a block uses them."""
    roles: list[Role] = []
    gates = "dual" in config.block_kinds
    if config.gate not in GATE_OUTPUTS and gates:
        roles.append("gate")

    if config.combination not in COMBINATIONS and config.routes_steps:
        roles.append("combination")
    return roles


def own_class(config: ModelConfig, role: Role) -> Any:
    path = getattr(config, role)
    if path not in FOUND:
        raise UserError(
            f"model.{role} '{path}' is not imported; call dualpath_cli.spec.own_checks."
            "import_classes(config, allowed=True), which runs its code"
        )
    return FOUND[path]


def gives_mass(config: ModelConfig) -> bool:
    """Whether steps have probabilities, as under the router, which leave mass to later
    steps."""
    if not config.routes_steps:
        return False
    if config.combination == "router":
        return True
    return hasattr(own_class(config, "combination"), "step_probability")


class ParameterKind(NamedTuple):
    """Facts that all parameters of a kind share; built-in kinds are in
    `model/parameters.py`."""

    kind: Kind  # group of the optimizer
    start: Start
    """`normal` has std `init_std` (0.02), `normal_by_depth` `init_std` / sqrt(2
    n_layers); `gain_init` is that of gains before the softplus (-7: s is 9.1e-4)."""

    @property
    def group(self) -> ParameterGroup:
        return GROUP_OF[self.kind]


def own_kind(name: str, cls: type, role: Role, dimensions: int) -> ParameterKind:
    """The kind of a parameter of a custom class, by its name within the class.

    The class's `parameter_kinds` decides. By default a weight of a norm starts at one,
    a matrix is drawn, and a vector starts at zero and decays as biases do.
    """
    kinds: dict[ParameterGroup, Kind]
    kinds = {group: kind for kind, group in GROUP_OF.items()}
    matrices: Kind = "gate" if role == "gate" else "router"
    kinds["matrices"] = matrices

    # The class decides first, then names and shapes.
    for pattern, (group, start) in getattr(cls, "parameter_kinds", {}).items():
        if fnmatchcase(name, pattern):
            return ParameterKind(kinds[group], start)

    if name.endswith("norm.weight"):
        return ParameterKind("norms", "one")
    if dimensions > 1:
        return ParameterKind(matrices, "normal")
    return ParameterKind("biases", "zero")
