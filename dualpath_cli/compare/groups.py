"""Groups of configurations: of one budget, number of tokens, kind of matching, and PureWide.

A sweep may match some configurations in linear and others in total FLOPs, and may vary a setting of
PureWide as of all others. Each part of a budget then has its own PureWide.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from dualpath_cli.compare.configurations import (
    WIDE,
    Configuration,
    Group,
    configuration_of,
    names_of,
    place_of,
)
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.sizes import format_size
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


def groups_of(
    runs: Sequence[TrainedRun], baselines: Sequence[str] = (), any_length: bool = False
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `any_length`: a group of each budget, whatever the number of tokens.
    """
    by_budget: dict[tuple[int, int], list[TrainedRun]] = {}
    for run in runs:
        # A third of a budget, thrice, is the same budget.
        budget = int(float(f"{run.settings.run.budget or 0:.3g}"))
        by_budget.setdefault((budget, 0 if any_length else run.tokens), []).append(run)
    ordered = sorted(by_budget.items(), key=lambda item: item[0])
    groups = [
        group
        for (budget, tokens), of_one in ordered
        for group in _groups(budget, tokens, of_one, split=not (baselines or any_length))
    ]
    if not baselines:
        return [_with_wide_baseline(group) for group in groups]
    names = {c.name for group in groups for c in group.configurations}
    names |= set(map(_without_budget, names))
    for baseline in baselines:
        if baseline not in names:
            hint = did_you_mean(baseline, names) or f"; there are {', '.join(sorted(names))}"
            raise UserError(f"no configuration '{baseline}' for --baseline{hint}")
    return [_with_baselines(group, baselines) for group in groups]


def _groups(budget: int, tokens: int, runs: Sequence[TrainedRun], split: bool) -> list[Group]:
    """The groups of a budget; `split`: one for each PureWide."""
    by_identity: dict[str, dict[int, TrainedRun]] = {}
    for run in runs:
        of_one = by_identity.setdefault(run.identity, {})
        if run.seed in of_one:
            raise UserError(
                f"{of_one[run.seed].folder} and {run.folder} are the same configuration with seed "
                f"{run.seed}; leave one of them out"
            )
        of_one[run.seed] = run
    parts = [tuple(of_one[seed] for seed in sorted(of_one)) for of_one in by_identity.values()]
    fewest = min(run.settings.model.n_layers for run in runs)
    configurations = [
        configuration_of(name, part, fewest)
        for name, part in zip(names_of(parts), parts, strict=True)
    ]
    name = f"budget {format_size(budget)}" if budget else "no budget"
    length = f"{tokens:,} tokens" if tokens else ""
    return [
        _group(", ".join(filter(None, (name, length, match, settings))), tuple(runs[0].scores), own)
        for match, of_match in _by_match(configurations)
        for settings, own in (_by_wide(of_match) if split else [("", of_match)])
    ]


def _group(name: str, measures: tuple[str, ...], configurations: Sequence[Configuration]) -> Group:
    wides = _pure_wides(configurations)
    named = [c for c in wides if c.name.rpartition("_")[2] == WIDE] or wides
    return Group(
        name=name,
        measures=measures,
        quality=AGGREGATE,
        configurations=tuple(sorted(configurations, key=place_of)),
        wide=named[0] if len(named) == 1 else None,
    )


def _with_wide_baseline(group: Group) -> Group:
    if group.wide is not None:
        return replace(group, baselines=(group.wide,))
    wides = [c.name for c in group.configurations if c.family == "wide"]
    found = f"{len(wides)} PureWide, {', '.join(wides)}" if wides else "no PureWide"
    return replace(group, note=f"no tests: {found}; --baseline NAMES chooses what to test against")


def _with_baselines(group: Group, names: Sequence[str]) -> Group:
    found = {name: _named(group.configurations, name) for name in names}
    chosen = tuple({c.name: c for c in found.values() if c is not None}.values())
    missing = ", ".join(f"'{name}'" for name, c in found.items() if c is None)
    if missing:
        group = replace(group, note=f"no tests against {missing}: there is none here")
    wide = next((c for c in chosen if c.family == "wide"), group.wide)
    return replace(group, baselines=chosen, wide=wide)


def _named(configurations: Iterable[Configuration], name: str) -> Configuration | None:
    """The configuration of a name, with or without the budget before it."""
    found = {_without_budget(c.name): c for c in configurations} | {
        c.name: c for c in configurations
    }
    return found.get(name)


def _by_match(configurations: Sequence[Configuration]) -> list[Part]:
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


def _pure_wides(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those that may be what others are relative to: without experts, where there are such."""
    wides = [c for c in configurations if c.family == "wide"]
    return [c for c in wides if c.active is None] or wides


def _by_wide(configurations: Sequence[Configuration]) -> list[Part]:
    """A part for each PureWide, with the configurations whose settings are nearest to its own.

    All in one where there is one PureWide, or none, or a configuration is as near to several.
    """
    wides = _pure_wides(configurations)
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


def _without_budget(name: str) -> str:
    """A configuration's name without the budget before it: `loop_k2` of `f600k_loop_k2`."""
    return re.sub(r"^f[0-9.]+[kmbt]?_", "", name)
