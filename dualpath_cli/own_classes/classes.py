"""Custom classes of a model's gate and combination: found by dotted path, counted, hashed.

`model.gate` and `model.combination` take `my.module.Gate` beside the built-in names; docs/custom.md
lists the methods of such a class. Imports torch only once a model names one.
"""

import hashlib
import importlib
import inspect
import math
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dualpath_cli.config import (
    COMBINATIONS,
    GATE_OUTPUTS,
    GROUP_OF,
    Kind,
    ModelConfig,
    ParameterGroup,
)
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.own_classes.consent import check

if TYPE_CHECKING:
    import torch

Role = Literal["gate", "combination"]  # the field of ModelConfig that names a class

FOUND: dict[str, Any] = {}  # classes by path, each found once


class Source(NamedTuple):
    """The file that a class is defined in."""

    module: str  # its dotted name
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def own_roles(config: ModelConfig) -> list[Role]:
    """The roles that a model fills with custom classes, where a block uses them."""
    roles: list[Role] = []
    if config.gate not in GATE_OUTPUTS and "dual" in config.block_kinds:
        roles.append("gate")
    combines = config.routes_steps and set(config.block_kinds) != {"wide"}
    if config.combination not in COMBINATIONS and combines:
        roles.append("combination")
    return roles


def own_class(config: ModelConfig, role: Role) -> Any:
    path = getattr(config, role)
    start = f"model.{role} '{path}'"
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: it must not hide what is installed
    check(path, start)
    if path not in FOUND:
        FOUND[path] = _find(path, start)
    return FOUND[path]


def gives_mass(config: ModelConfig) -> bool:
    """Whether steps have probabilities, as the router's do, that leave a mass to later steps."""
    if not config.routes_steps or config.combination == "router":
        return config.routes_steps
    return hasattr(own_class(config, "combination"), "step_probability")


def declared_flops(config: ModelConfig, role: Role) -> int:
    path = getattr(config, role)
    try:
        flops = own_class(config, role).flops(config)
    except UserError:
        raise
    except Exception as error:  # of the user's own code
        raise UserError(f"model.{role} '{path}': flops(config) fails: {_said(error)}") from error
    if type(flops) is not int or flops < 0:
        raise UserError(
            f"model.{role} '{path}': flops(config) must give a whole number from 0 on, the FLOPs "
            f"per token, not {flops!r:.40}"
        )
    return flops


def on_meta(config: ModelConfig, role: Role) -> Any:
    """A module of the class on the meta device, where it takes no memory."""
    import torch

    cls, start = own_class(config, role), f"model.{role} '{getattr(config, role)}'"
    try:
        with torch.device("meta"):
            module = cls(config)
        described = list(module.named_parameters())
    except Exception as error:  # of the user's own code
        raise UserError(f"{start}: __init__(config) fails: {_said(error)}") from error
    for name, _ in module.named_buffers():
        raise UserError(f"{start} has a buffer, {name}, which nothing fills; make it in forward")
    for name, parameter in described:
        if parameter.ndim == 0:
            raise UserError(
                f"{start}: parameter {name} has no dimension, which FSDP2 could divide; "
                "give it one: torch.empty(1)"
            )
    return module


def own_shapes(config: ModelConfig, role: Role) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in on_meta(config, role).named_parameters()}


def sources(config: ModelConfig) -> dict[str, Source]:
    found = {}
    for role in own_roles(config):
        path, cls = getattr(config, role), own_class(config, role)
        try:
            text = Path(inspect.getsourcefile(cls) or "").read_text(encoding="utf-8")
        except (TypeError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"model.{role} '{path}': its file cannot be read: {error}") from None
        found[path] = Source(cls.__module__, text)
    return found


def _find(path: str, start: str) -> Any:
    """Imports a class, and checks its declarations."""
    name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # of the user's own code
        raise UserError(
            f"{start} cannot be imported: {_said(error)}; Python looks in {os.getcwd()}, where "
            "this was called, and on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(
            f"{start}: {module.__file__} has no {attribute}{did_you_mean(attribute, classes)}"
        )
    cls: Any = getattr(module, attribute)
    from torch import nn

    if not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
        raise UserError(f"{start} is no class of torch.nn.Module")
    if getattr(sys.modules[cls.__module__], cls.__name__, None) is not cls:
        raise UserError(f"{start} must be defined at the top of a file")
    if getattr(cls, "forward", None) is nn.Module.forward:
        raise UserError(f"{start} has no forward; docs/custom.md says what it gets and gives")
    if not callable(getattr(cls, "flops", None)):
        raise UserError(
            f"{start} declares no FLOPs: give it a static method flops(config), FLOPs per token"
        )
    return cls


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# Kinds of parameters, which a class may give; otherwise they follow from names and shapes. The
# model's own are in the table of `model/parameters.py`.


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


def own_kind(name: str, cls: type, role: Role, dimensions: int) -> ParameterKind:
    """The kind of a parameter of a custom class, by the name that the class gives it.

    The class's `parameter_kinds` decide. By default a weight of a norm starts at one, a matrix is
    drawn, and a vector starts at zero and decays as biases do.
    """
    kinds: dict[ParameterGroup, Kind] = {group: kind for kind, group in GROUP_OF.items()}
    matrices: Kind = "gate" if role == "gate" else "router"
    kinds["matrices"] = matrices
    for pattern, (group, start) in getattr(cls, "parameter_kinds", {}).items():
        if fnmatchcase(name, pattern):
            return ParameterKind(kinds[group], start)
    if name.endswith("norm.weight"):
        return ParameterKind("norms", "one")
    if dimensions > 1:
        return ParameterKind(matrices, "normal")
    return ParameterKind("biases", "zero")


def start_value(
    start: Start,
    shape: "torch.Size",
    config: ModelConfig,
    generator: "torch.Generator",
    std_factor: float = 1.0,
) -> "torch.Tensor":
    """The initial value of a parameter of this shape, float32 on the CPU.

    `std_factor` multiplies the standard deviation of one that is drawn.
    """
    import torch

    value = torch.empty(shape, dtype=torch.float32, device="cpu")
    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    if start in constants:
        return value.fill_(constants[start])
    depth = 2 * config.n_layers if start == "normal_by_depth" else 1
    std = std_factor * config.init_std / math.sqrt(depth)
    return value.normal_(std=std, generator=generator)
