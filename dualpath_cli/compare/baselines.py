"""Which configurations of a group are tested, and against which others."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.compare.configurations import (
    Configuration,
    Group,
    different_keys,
    group_runs,
    word_of,
)
from dualpath_cli.compare.runs import TrainedRun
from dualpath_cli.recipe.keys import has_effect


def groups_of(
    runs: Sequence[TrainedRun],
    baselines: Sequence[str] = (),
    any_length: bool = False,
    best: bool = False,
    pairs: Sequence[Sequence[str]] = (),
) -> list[Group]:
    """The groups of runs (`group_runs`), each with its baselines or pairs.

    `baselines` are names of configurations, or values in which they differ; `pairs` are
    names. Without both, each group's PureWide is its baseline.
    """
    groups = group_runs(runs, any_length, best)
    if pairs:
        return _with_pairs(groups, pairs)
    if baselines:
        return _with_baselines(groups, baselines)
    return [
        replace(group, baselines=(group.wide,)) if group.wide else group
        for group in groups
    ]


def _with_pairs(groups: Sequence[Group], pairs: Sequence[Sequence[str]]) -> list[Group]:
    names = {name for pair in pairs for name in pair}
    names_by_group = [{c.name for c in group.configurations} for group in groups]
    _check_known("--pairs", names, set().union(*names_by_group))

    complete = [
        group
        for group, its_names in zip(groups, names_by_group, strict=True)
        if names <= its_names
    ]
    if len(complete) != 1:
        raise UserError(
            f"--pairs: {len(complete)} of {len(groups)} tables have all of its "
            "configurations; give RUNs of one budget and number of tokens, or of one "
            "budget with --any-length"
        )

    (chosen,) = complete
    by_name = {c.name: c for c in chosen.configurations}
    found = tuple((by_name[one], by_name[other]) for one, other in pairs)
    first_baseline = found[0][1]
    tested = replace(chosen, pairs=found, baselines=(first_baseline,))
    others = "--pairs names configurations of another table"
    return [
        tested if group is chosen else replace(group, untested=others)
        for group in groups
    ]


def _with_baselines(groups: Sequence[Group], asked: Sequence[str]) -> list[Group]:
    every = [c for group in groups for c in group.configurations]
    names = {c.name for c in every}
    words = _words_of_values(every)
    _check_known("--baseline", asked, names.union(*words.values()))

    def is_meant(c: Configuration, word: str) -> bool:
        # A word that is not a name is a value in which runs differ.
        return word == c.name if word in names else word in words[c]

    found = []
    for group in groups:
        chosen = [
            c for word in asked for c in group.configurations if is_meant(c, word)
        ]
        wide = next((c for c in chosen if c.family == "wide"), group.wide)
        found.append(
            replace(
                group,
                baselines=tuple(dict.fromkeys(chosen)),
                wide=wide,
                untested="no configuration of --baseline is in this table",
            )
        )
    return found


def _words_of_values(
    configurations: Sequence[Configuration],
) -> dict[Configuration, set[str]]:
    """The values of each configuration in which some of them differ, and which matter
    to its model."""
    firsts = {c: c.all_runs[0] for c in configurations}
    keys: set[str] = set()
    for one, other in combinations(firsts.values(), 2):
        keys |= different_keys(one, other)

    words = {}
    for c, run in firsts.items():
        own = run.settings
        mattering = [key for key in keys if has_effect(key, own.model, own.run)]
        words[c] = {word_of(run, key) for key in mattering}
    return words


def _check_known(option: str, asked: Collection[str], known: Collection[str]) -> None:
    for name in asked:
        if name not in known:
            listed = f"; there are {', '.join(sorted(known))}"
            hint = did_you_mean(name, known) or listed
            raise UserError(f"no configuration '{name}' for {option}{hint}")
