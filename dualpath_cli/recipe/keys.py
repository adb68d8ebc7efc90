"""The keys of a recipe by their dotted names, with the facts at their fields.

A key is a field in `settings.py`, or in `spec/config.py` for the model. Its facts are
read by `run/` (a continued run may change some keys), by `compare/sweep/` (--set varies
some) and by `training/` (a value without effect is refused, or noted). Torch-free.
"""

from operator import attrgetter
from types import SimpleNamespace

from dualpath_cli.base.errors import UserError
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.recipe.settings import SECTIONS, RunSettings, Settings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.keys import KeyFacts, ModelPart, keys_of

KEYS: dict[str, KeyFacts] = {
    f"{section}.{name}": facts
    for section, settings in SECTIONS.items()
    for name, facts in keys_of(settings).items()
}
"""Every key by its dotted name, such as `optim.lr`."""
KEYS["seed_everything"] = keys_of(Settings)["seed_everything"]

FREE = {name for name, facts in KEYS.items() if facts.free}
"""Keys that do not decide the numbers of a training, given its data, such as
`run.log_every`: a continued run may change them."""

DECIDED_BY_SWEEP = {name for name, facts in KEYS.items() if facts.in_sweep == "decided"}
"""Keys that a sweep sets in each run, or solves widths for."""

SCALED_RATES = {name for name, facts in KEYS.items() if facts.in_sweep == "scaled"}
"""The learning rates that a sweep scales together."""

OF_TEXTS = {
    name.removeprefix("model.") for name, facts in KEYS.items() if facts.cuts_texts
}
"""Keys of a model that may differ from those of its weights: they say how texts are
cut."""

_DEFAULTS = SimpleNamespace(**SECTIONS)
"""A key's default is an attribute of its section's class, unless a factory makes it."""


def free_keys(section: str) -> set[str]:
    """The names in `FREE` of a section's keys."""
    prefix = f"{section}."
    return {name.removeprefix(prefix) for name in FREE if name.startswith(prefix)}


def check_effect(settings: Settings) -> None:
    """Raises UserError for the first key that differs from its default and has no
    effect."""
    for name, facts in KEYS.items():
        needed = facts.only_with
        if needed is None:
            continue

        value = attrgetter(name)(settings)
        others_value = attrgetter(needed.key)(settings)
        default = attrgetter(name)(_DEFAULTS)
        if value == default or needed.is_met(others_value):
            continue

        reason = needed.otherwise
        if not reason:
            reason = (
                f"under {needed.key}={others_value}; leave it out, or choose "
                f"{needed.key}={needed.value}"
            )
        raise UserError(f"{name}={value} has no effect {reason}")


def parts_of(model: ModelConfig, run: RunSettings | None = None) -> set[ModelPart]:
    """The parts that a model's blocks have, of those that some models lack.

    Steps of a `run` may have more loops than the model, and so parts that it lacks.
    """
    kinds = {*model.block_kinds}
    most = {"loops": model.most_loops, "core_loops": model.core_loops}
    if run is not None:
        varied = model.varied_loops
        most[varied] = max([most[varied], *loop_counts(run)])

    parts: set[ModelPart] = set()
    if "dual" in kinds:
        parts.add("dual_gate")
    if kinds != {"loop"}:
        parts.add("wide_path")
    if model.deep_layers:
        parts.add("deep_path")
        if most["loops"] > 1:
            parts.add("loops")
    if model.core is not None and most["core_loops"] > 1:
        parts.add("core")
    if model.has_experts:
        parts.add("experts")
    return parts


def has_effect(name: str, model: ModelConfig, run: RunSettings | None = None) -> bool:
    """Whether a key has an effect on a model's blocks, with the loops of a `run`'s
    steps; also a mapping's entry, such as `optim.lr_scale.router`."""
    mapping, _, entry = name.rpartition(".")
    needed: tuple[ModelPart, ...] = ()
    if name in KEYS:
        key_of_name = KEYS[name]
        needed = key_of_name.matters_in
        other = key_of_name.only_with
        needs_core = other is not None and other.key == "model.core"
        if needs_core and model.core is None:
            return False
    elif mapping in KEYS:
        needed = KEYS[mapping].entries_matter_in.get(entry, ())
    return not needed or not parts_of(model, run).isdisjoint(needed)


def idle_keys(settings: Settings) -> list[str]:
    """The keys that differ from their defaults and have no effect on the model's
    blocks; also a mapping's entries, such as `optim.lr_scale.router`."""
    changed: list[str] = []
    for name, facts in KEYS.items():
        if facts.entries_matter_in:
            factors = attrgetter(name)(settings)
            changed += [f"{name}.{kind}" for kind in factors if factors[kind] != 1]
        elif facts.matters_in:
            default = attrgetter(name)(_DEFAULTS)
            if attrgetter(name)(settings) != default:
                changed.append(name)
    model, run = settings.model, settings.run
    return [name for name in changed if not has_effect(name, model, run)]
