"""Suites: which interventions a study scores beside the learned router, by name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.study.ablation.options import RANDOM, AblateOptions, TokenClass

THRESHOLDS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
"""Remaining mass at which a token halts."""

BASELINE = "baseline"
"""The suite of the learned router, with which every row is compared."""


@dataclass(frozen=True)
class Row:
    """An intervention, and what decides which tokens it is about."""

    suite: str
    intervention: Intervention
    of_class: TokenClass | None = None
    """The class that is overridden, or that random tokens stand against."""
    random_seed: int | None = None
    """Seed of the random tokens; None where it is the class itself."""


def rows(options: AblateOptions, config: ModelConfig) -> list[Row]:
    """Returns the rows of all suites asked for, the learned router first."""
    found = [Row(BASELINE, Intervention())]
    if "paper" in options.suites:
        found += [Row("paper", each) for each in overrides(options.loops, options.shuffles)]
    if "token-classes" in options.suites:
        found += token_class_rows(options.classes, options.controls)
    if "layers" in options.suites:
        found += layer_rows(options.loops, options.shuffles, config)
    if "halting" in options.suites:
        found += [Row("halting", Intervention(halting=threshold)) for threshold in THRESHOLDS]
    return found


def overrides(loops: Iterable[int], seeds: int) -> list[Intervention]:
    """Returns the rows of the paper's table `ablations`: forced loops, constant and shuffled gates.

    With more than one seed the gates are shuffled by each of them.
    """
    return [
        *(Intervention(loops=count) for count in loops),
        Intervention(gates=(1.0, 0.0)),
        Intervention(gates=(0.0, 1.0)),
        Intervention(gates=(0.5, 0.5)),
        Intervention(gates=(1.0, 1.0)),
        *(Intervention(gates="shuffled", seed=seed) for seed in range(seeds)),
    ]


def layer_rows(loops: Iterable[int], seeds: int, config: ModelConfig) -> list[Row]:
    """Returns each override in one layer at a time, but for the trained loops: they change nothing.

    What a layer has no path or gate for is left out, unless that is so of the whole model.
    """
    each = [i for i in overrides(loops, seeds) if i.loops != config.loops]
    found = [replace(i, layers=(n,)) for i in each for n in range(config.n_layers)]
    whole = {i for i in each if i.problem(config) is None}
    return [
        Row("layers", i)
        for i in found
        if i.problem(config) is None or replace(i, layers=None) not in whole
    ]


def token_class_rows(classes: Sequence[TokenClass], seeds: int) -> list[Row]:
    """Returns each class under its override, and random tokens in its place, a row a seed."""
    found = []
    for each in classes:
        name = each.name
        found.append(Row("token-classes", Intervention(gates=each.gates, tokens=name), each))
        for seed in range(seeds):
            random = f"{RANDOM}{name}" + (f":{seed}" if seed else "")
            intervention = Intervention(gates=each.gates, tokens=random)
            found.append(Row("token-classes", intervention, each, seed))
    return found


def applicable(rows: Iterable[Row], config: ModelConfig) -> tuple[list[Row], dict[str, str]]:
    """Splits into rows that make sense for a model, and the names and reasons of the others."""
    chosen, skipped = [], {}
    for row in rows:
        problem = row.intervention.problem(config)
        if problem is None:
            chosen.append(row)
        else:
            skipped[row.intervention.name] = problem
    return chosen, skipped
