"""Groups of configurations: of one budget, number of tokens, kind of matching, and PureWide."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dualpath_cli.compare.configurations import (
    WIDE,
    Configuration,
    Group,
    configuration_of,
    names_of,
    place_of,
)
from dualpath_cli.compare.parts import by_match, by_wide, pure_wides, without_budget
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.sizes import format_size


def groups_of(
    runs: Sequence[TrainedRun], baselines: Sequence[str] = (), any_length: bool = False
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `any_length`: a group of each budget, whatever the number of tokens.

    Raises:
        UserError: for two runs of one configuration and seed, and for an unknown baseline.
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
    names |= set(map(without_budget, names))
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
        for match, of_match in by_match(configurations)
        for settings, own in (by_wide(of_match) if split else [("", of_match)])
    ]


def _group(name: str, measures: tuple[str, ...], configurations: Sequence[Configuration]) -> Group:
    wides = pure_wides(configurations)
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
    found = {without_budget(c.name): c for c in configurations} | {
        c.name: c for c in configurations
    }
    return found.get(name)
