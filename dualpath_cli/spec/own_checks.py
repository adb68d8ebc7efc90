"""Custom classes: imported with permission, tried, counted, compared.

Importing a class runs its code. The user trusts a recipe on the command line; a run or
folder that is read may come from anybody. A run folder keeps the source of classes
under `classes/` and its hash in versions.json: results depend on the source as on the
recipe.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec, PathFinder
from itertools import product
from pathlib import Path
from typing import Any, get_args

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.folders import check_inside
from dualpath_cli.base.output import joined_lines
from dualpath_cli.spec.config import LayerConfig, ModelConfig, ParameterGroup
from dualpath_cli.spec.own_classes import (
    FOUND,
    Role,
    Start,
    own_class,
    own_kind,
    own_roles,
)

ALLOWED_KINDS = list(product(get_args(ParameterGroup), get_args(Start)))
BATCH = 2
LENGTH = 3

_TEXTS: dict[type, str] = {}
"""The text of each class's file when the class was first used here. A change between
its import and this use is not noticed. Empty for a class without a file, as of a
notebook's cell."""


@dataclass(frozen=True, kw_only=True)
class OwnClasses:
    """Option of a command that reads the model's configuration from a run or folder."""

    own_classes: bool = False
    """Import the Python classes that a run or folder names as its model's gate or
    combination. This runs the code of the classes: only for runs that you trust."""


def import_classes(
    config: ModelConfig,
    *,
    allowed: bool,
    read: Sequence[Path] = (),
    named: Mapping[str, Any] = {},
) -> None:
    """Imports a model's custom classes into `FOUND` and tries them.

    No other function imports them. The user allows all classes by giving the recipe or
    --own-classes, or allows those in `named`, the model section of the command line.
    Nothing inside the folders `read` is imported.
    """
    roles = own_roles(config)
    for role in roles:
        path = getattr(config, role)
        start = start_of(config, role)
        if not allowed and path not in named.values():
            raise UserError(
                f"{start} is named by a run or folder, and importing it runs its code; "
                "give --own-classes (in Python own_classes=True) if you trust it"
            )

        # Each time, as a module that was reloaded has another class.
        cls = find_class(path, start, read)
        _check_is_module(cls, start)
        text = _text_of(cls)
        if _TEXTS.setdefault(cls, text) != text:
            # A package may hand on the class of one of its modules.
            modules = dict.fromkeys([cls.__module__, path.rpartition(".")[0]])
            raise UserError(
                f"{start}: its file has changed since this process first used it; call "
                f"importlib.reload on {' and then on '.join(modules)}, or start Python "
                "anew"
            )
        FOUND[path] = cls

    if roles:
        _try_classes(config)


def option_of(config: ModelConfig) -> str:
    """The option by which a command reads this model: ` --own-classes`, or nothing."""
    return " --own-classes" if own_roles(config) else ""


def start_of(config: ModelConfig, role: Role) -> str:
    return f"model.{role} '{getattr(config, role)}'"


@contextmanager
def explained(start: str, what: str, more: str = "") -> Iterator[None]:
    """Turns an exception of the user's code into a UserError of one line."""
    try:
        yield
    # one line already
    except UserError:
        raise
    except Exception as error:
        text = joined_lines(error, 200)
        reason = f"{type(error).__name__}: {text}"
        raise UserError(f"{start}: {what} fails: {reason}{more}") from error


def _look_in_working_directory(read: set[Path]) -> None:
    """Lets Python look in the working directory, unless that is inside of `read`."""
    here = Path.cwd()
    if str(here) not in sys.path and read.isdisjoint([here, *here.parents]):
        sys.path.append(str(here))  # last, so as not to hide installed packages


def _check_places(module: str, start: str, read: set[Path]) -> None:
    """Refuses a module whose import would touch a file in a folder of `read`.

    The check itself runs no code.
    """
    for spec in _specs_of(module):
        touched = list(spec.submodule_search_locations or [])
        if spec.has_location:
            touched.append(str(spec.origin))
        for file in touched:
            place = Path(file).resolve()
            for folder in read.intersection([place, *place.parents]):
                raise UserError(
                    f"{start} would be imported from '{place}', inside of '{folder}', "
                    "which is read; move a trusted file out of there, or name a "
                    "smaller folder"
                )


def _specs_of(module: str) -> Iterator[ModuleSpec]:
    """The packages that a module lies in, from the outermost, and the module, as Python
    would find them, editable installs included; none for a module that is not found."""
    first, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # a module that runs as a script has no spec
        return
    if spec is None:  # also where Python may not look
        spec = PathFinder.find_spec(first, [str(Path.cwd())])

    while spec is not None:
        yield spec
        if not inner:
            return
        # By the last name: for the whole path Python would import its namespace
        # packages.
        search = list(spec.submodule_search_locations or [])
        spec = PathFinder.find_spec(inner.pop(0), search)


def find_class(path: str, start: str, read: Sequence[Path] = ()) -> Any:
    """Imports a class by its dotted path, from nowhere inside folders `read`.

    `start` begins the message of a UserError.
    """
    module, _, name = path.rpartition(".")
    folders = {folder.resolve() for folder in read}
    _look_in_working_directory(folders)
    _check_places(module, start, folders)

    places = "on PYTHONPATH"
    # Python does not look in a working directory inside of `read`.
    if str(Path.cwd()) in sys.path:
        places = f"in {Path.cwd()}, where this was called, and {places}"
    with explained(start, "importing it", f"; Python looks {places}"):
        return getattr(importlib.import_module(module), name)


def _check_is_module(cls: Any, start: str) -> None:
    from torch import nn

    at_top = False
    if inspect.isclass(cls) and issubclass(cls, nn.Module):
        module = sys.modules[cls.__module__]
        at_top = getattr(module, cls.__name__, None) is cls
    if not at_top:
        raise UserError(
            f"{start} must be a class of torch.nn.Module at the top of a file"
        )


def _text_of(cls: type) -> str:
    """The text of a class's file as it is now; empty if it cannot be read."""
    try:
        return Path(inspect.getsourcefile(cls) or "").read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError):
        return ""


def declared_flops(config: ModelConfig, role: Role) -> int:
    cls = own_class(config, role)
    start = start_of(config, role)
    with explained(start, "its static method flops(config)"):
        flops = cls.flops(config)

    if type(flops) is not int or flops < 0:
        raise UserError(
            f"{start}: flops(config) must give a whole number from 0 on, the FLOPs per "
            f"token, not {flops!r:.40}"
        )
    return flops


def on_meta(config: ModelConfig, role: Role) -> Any:
    """A module of the class on the meta device, where it takes no memory."""
    import torch

    cls = own_class(config, role)
    start = start_of(config, role)
    with explained(start, "__init__(config)"), torch.device("meta"):
        module = cls(config)
        tensors = [*module.named_buffers(), *module.named_parameters()]

    for name, tensor in tensors:
        if not (isinstance(tensor, torch.nn.Parameter) and tensor.ndim):
            raise UserError(
                f"{start}: {name} must be a parameter with a dimension, such as "
                "torch.empty(1), which FSDP2 can divide; compute a buffer in forward, "
                "as nothing would fill it"
            )
    return module


def own_shapes(config: ModelConfig, role: Role) -> dict[str, tuple[int, ...]]:
    named = on_meta(config, role).named_parameters()
    return {name: tuple(parameter.shape) for name, parameter in named}


def _try_classes(config: ModelConfig) -> None:
    """Tries each class on a few tokens; raises UserError for the first fault.

    Such faults would show late, or not at all. B batch, T positions, D model width, K
    loops.
    """
    for layer in dict.fromkeys(config.layers):
        for role in own_roles(layer):
            start = start_of(layer, role)
            module = on_meta(layer, role).to_empty(device="cpu")
            with explained(start, "forward on a few tokens"):
                for fault in _faults(role, module, layer):
                    raise UserError(f"{start}: {fault}")


def _faults(role: Role, module: Any, config: LayerConfig) -> Iterator[str]:
    import torch

    named = dict(module.named_parameters())
    kinds = dict(getattr(type(module), "parameter_kinds", {}))
    for pattern, kind in kinds.items():
        if not any(fnmatchcase(name, pattern) for name in named):
            yield (
                f"parameter_kinds has '{pattern}', which matches no parameter: "
                f"{[*named]}"
            )
        if kind not in ALLOWED_KINDS:
            yield (
                f"parameter_kinds['{pattern}'] must be one of docs/custom.md's, not "
                f"{kind!r:.60}"
            )

    # The weights that forward gives: g_d and g_w, or one a step, forced steps too.
    counts = (2,) if role == "gate" else (config.loops, config.loops + 1)

    # As training starts; then with noise, as weights of zero would hide their effect.
    constants = {"gain_init": config.gain_init, "one": 1.0, "zero": 0.0}
    generator = torch.Generator().manual_seed(0)
    for noise in (0, 0.01):
        for name, parameter in named.items():
            start = own_kind(name, type(module), role, parameter.ndim).start
            normal = torch.randn(parameter.shape, generator=generator)
            if start in constants:
                parameter.data = constants[start] + noise * normal
            else:  # normal, normal_by_depth
                parameter.data = 0.02 * normal

        for count in counts:
            yield from _faults_of_weights(role, module, config, count)


def _faults_of_weights(
    role: Role, module: Any, config: LayerConfig, count: int
) -> Iterator[str]:
    """The faults of the two gates, or of the weights of `count` steps."""
    import torch

    indices = config.step_indices(count) if role == "combination" else []

    def weigh(h_KBTD: Any) -> list[Any]:
        if role == "gate":
            return list(module(h_KBTD[0]))
        return list(module(list(h_KBTD), indices))

    generator = torch.Generator().manual_seed(0)
    h_KBTD = torch.randn(count, BATCH, LENGTH, config.d_model, generator=generator)
    weights = weigh(h_KBTD)
    shapes = [tuple(getattr(weight, "shape", ())) for weight in weights]
    if shapes != [(BATCH, LENGTH, 1)] * count:
        yield (
            f"forward must give {count} tensors of (B, T, 1) = {(BATCH, LENGTH, 1)}, "
            f"not {shapes}"
        )
    if not all(weight.isfinite().all() for weight in weights):
        yield (
            "forward gives no finite numbers; parameter_kinds sets the initial weights"
        )

    # One token by itself, among no others.
    of_one_token = weigh(h_KBTD[:, 1:, 1:2])
    same_token = [weight[1:, 1:2] for weight in weights]
    if not all(map(_close, same_token, of_one_token)):
        yield (
            "a token's weights must depend only on its own states: caches keep no "
            "others"
        )

    module.zero_grad()
    # Each step counts differently, so that gradients do not cancel.
    terms = [(weight * (k + 1)).square().sum() for k, weight in enumerate(weights)]
    total = torch.stack(terms).sum()
    if total.requires_grad:
        total.backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            yield (
                f"parameter {name} gets no gradient, and DDP would wait for one; use it"
            )

    if role == "combination":
        yield from _faults_of_mass(module, weights, h_KBTD, indices)


def _faults_of_mass(
    module: Any, weights: list[Any], h_KBTD: Any, indices: Sequence[float]
) -> Iterator[str]:
    """The faults of a combination's weights, (B, T, 1) each, as shares of 1."""
    import torch

    all_BT1 = torch.ones(BATCH, LENGTH, 1)
    if not _close(torch.stack(weights).sum(0), all_BT1):
        yield "the weights of a token's steps must sum to 1, as in a mean of steps"
    if not hasattr(module, "step_probability"):
        return

    left_BT1 = all_BT1
    for weight, h_BTD, index in zip(weights, h_KBTD, indices[:-1], strict=False):
        share_BT1 = left_BT1 * module.step_probability(h_BTD, index)
        if not _close(weight, share_BT1):
            yield (
                "forward must weigh steps by step_probability times the remaining mass"
            )
        left_BT1 = left_BT1 - share_BT1


def _close(one: Any, other: Any) -> bool:
    """Whether tensors hold the same numbers, computed in two ways."""
    import torch

    return torch.allclose(one, other, atol=1e-4)


def sources(config: ModelConfig) -> dict[str, str]:
    """The text of each class's file as it was first used, by the class's path."""
    texts = {}
    for role in own_roles(config):
        text = _TEXTS[own_class(config, role)]
        if not text:
            raise UserError(
                f"{start_of(config, role)}: the file of the class cannot be read; put "
                "the class into a file in UTF-8"
            )
        texts[getattr(config, role)] = text
    return texts


def hashes(config: ModelConfig) -> dict[str, str]:
    return {
        path: hashlib.sha256(text.encode()).hexdigest()
        for path, text in sources(config).items()
    }


def check_as_begun(
    folder: Path, facts: Mapping[str, Any], config: ModelConfig, way_out: str
) -> None:
    """Refuses to continue a run if a class has changed since the run's `facts`."""
    for path in changed_classes(facts, config):
        raise UserError(
            f"{folder} was begun with another source of {path}, kept in "
            f"{_copy(folder, path)}; restore this source or {way_out}"
        )


def keep_sources(folder: Path, config: ModelConfig) -> None:
    for path, text in sources(config).items():
        copy = _copy(folder, path)
        check_inside(folder, copy.parent)
        write_text(copy, text)


def changed_classes(facts: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Paths of the classes whose source differs from that in a run's facts."""
    before = facts.get("classes")
    if not isinstance(before, dict):
        return []

    # A class that the facts lack counts as unchanged.
    now = hashes(config)
    return [path for path in now if before.get(path, now[path]) != now[path]]


def _copy(folder: Path, path: str) -> Path:
    module = FOUND[path].__module__
    return folder / "classes" / f"{module.replace('.', '/')}.py"
