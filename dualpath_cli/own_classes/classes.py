"""Custom classes of a model's gate and combination: found by dotted path, counted, hashed.

`model.gate` and `model.combination` take `my.module.Gate` beside the built-in names; docs/custom.md
lists the methods of such a class. Imports torch only once a model names one.
"""

import hashlib
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dualpath_cli.config import COMBINATIONS, GATE_OUTPUTS, ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.own_classes.consent import check

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
