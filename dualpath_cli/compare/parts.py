"""The configurations of a budget in parts that can be compared: by what is matched, by settings.

A sweep may match some configurations in linear and others in total FLOPs, and may vary a setting of
PureWide as of all others. Each part then has its own PureWide.
"""

import json
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from dualpath_cli.compare.configurations import Configuration
from dualpath_cli.sweep.cells import TOTAL

NEAR = 0.02
"""Relative difference of FLOPs that count as equal: twice what a sweep allows from the budget."""
OF_CELL = {
    "model": {"block", "loops", "d_ffn", "d_ffn_wide", "ffn_multiple_of", "n_layers", "n_experts"},
    "optim": {"lr", "lr_start", "lr_end", "muon_lr"},
}
"""Keys that make a configuration of a sweep, or are tuned for it: no settings that it varies."""

Part = tuple[str, list[Configuration]]
"""The words that its title adds to the budget's, and the configurations."""


def by_match(configurations: Sequence[Configuration]) -> list[Part]:
    """Those of equal linear FLOPs, then those of equal total FLOPs in training, if there are both.

    A sweep's names say which were matched in total FLOPs (`wide_total`); others belong there, too,
    where their total FLOPs are the same, unless one of them was matched so itself.
    """
    totals = [c for c in configurations if _cell(c).endswith(TOTAL)]
    if not totals or len(totals) == len(configurations):
        return [("", list(configurations))]
    due = median(c.flops_trained for c in totals)
    linear = [c for c in configurations if c not in totals]
    matched = {_cell(c).removesuffix(TOTAL) for c in totals}
    near = [c for c in linear if abs(c.flops_trained / due - 1) <= NEAR]
    equal = [c for c in near if _cell(c) not in matched]
    return [("equal linear FLOPs", linear), ("equal total FLOPs", [*totals, *equal])]


def _cell(configuration: Configuration) -> str:
    """Its recipe's name without the settings that a sweep varies."""
    return configuration.runs[0].settings.run.recipe.partition("-")[0]


def pure_wides(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those that may be what others are relative to: without experts, where there are such."""
    wides = [c for c in configurations if c.family == "wide"]
    return [c for c in wides if c.active is None] or wides


def by_wide(configurations: Sequence[Configuration]) -> list[Part]:
    """A part for each PureWide, with the configurations whose settings are nearest to its own.

    All in one where there is one PureWide, or none, or a configuration is as near to several.
    """
    wides = pure_wides(configurations)
    if len(wides) < 2:
        return [("", list(configurations))]
    settings = {c.name: _settings(c) for c in configurations}
    parts: dict[str, list[Configuration]] = {wide.name: [] for wide in wides}
    for c in configurations:
        distances = {
            wide.name: len(_different(settings[c.name], settings[wide.name])) for wide in wides
        }
        nearest = [name for name, d in distances.items() if d == min(distances.values())]
        if len(nearest) > 1:
            return [("", list(configurations))]
        parts[nearest[0]].append(c)
    varied = sorted(
        {key for wide in wides for key in _different(settings[wide.name], settings[wides[0].name])}
    )
    return [
        (", ".join(f"{key.partition('.')[2]} {_shown(settings[name].get(key))}" for key in varied),
         members)
        for name, members in parts.items()
    ]  # fmt: skip


def _settings(configuration: Configuration) -> dict[str, Any]:
    """The settings of a configuration that a sweep may have varied, by key."""
    recipe, precision = json.loads(configuration.runs[0].identity)
    flat = {"trainer.precision": precision}
    for name, section in recipe.items():
        values = section if isinstance(section, dict) else {"": section}
        kept = values.keys() - OF_CELL.get(name, set())
        for key in kept:
            value = values[key]
            entries = {f".{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
            flat |= {f"{name}.{key}{k}": v for k, v in (entries or {"": value}).items()}
    return flat


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def without_budget(name: str) -> str:
    """A configuration's name without the budget before it: `loop_k2` of `f600k_loop_k2`."""
    return re.sub(r"^f[0-9.]+[kmbt]?_", "", name)
