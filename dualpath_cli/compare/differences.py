"""Every configuration against the baselines of its group: intervals, tests, words."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean
from typing import Any

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.statistics.blocks import Blocks, block_spread, find_blocks
from dualpath_cli.statistics.significance import LEVEL, holm

BLOCKS, PAIR = "randomised blocks", "paired t"
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a configuration less those of the baseline, over the seeds of both."""

    group: str
    measure: str
    configuration: str
    baseline: str
    seeds: int  # seeds that both have, and all configurations behind the standard error
    difference: float  # mean over them; below zero the configuration is better
    low: float
    high: float  # ends of the 95 % interval; nan without a test
    test: str  # which one: `randomised blocks`, `paired t`, or why there is none
    configurations: int  # whose runs the standard error comes from
    df: int  # degrees of freedom of that
    detectable: float
    """The smallest true difference that this test finds at 5 % with a probability of 80 %."""
    p: float
    p_pair: float
    """By the pair's own differences alone, which assumes nothing of other configurations."""
    p_holm: float  # `p` corrected for all tests of all groups

    @property
    def tested(self) -> bool:
        """Whether there were seeds enough for a test."""
        return self.p == self.p

    @property
    def verdict(self) -> str:
        if not self.tested:
            return self.test
        if self.low <= 0 <= self.high:
            return UNDECIDED
        word = "better" if self.difference < 0 else "worse"
        return word if self.p_holm < LEVEL else f"{word}, alone; {UNDECIDED} among all"


def differences_of(groups: Sequence[Group], *, aggregate_only: bool = False) -> list[Difference]:
    """All tests of all groups, corrected together: of the aggregate, and of each of several sets.

    The aggregate over one set is that set: it is tested once.
    """
    rows = [row for group in groups for row in _of_group(group, aggregate_only)]
    corrected = holm([row["p"] for row in rows])
    return [Difference(**row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _of_group(group: Group, aggregate_only: bool) -> list[dict[str, Any]]:
    rows = []
    once = aggregate_only or len(group.measures) == 2
    measures = group.measures[:1] if once else group.measures
    scores = {c.name: c.scores[group.measures[0]] for c in group.configurations}
    for n, baseline in enumerate(group.baselines):
        # Two baselines are one pair, which is tested once.
        tested = {one.name for one in group.baselines[: n + 1]}
        others = [c for c in group.configurations if c.name not in tested]
        blocks = {c.name: find_blocks(scores, c.name, baseline.name) for c in others}
        rows += [
            _difference(group, measure, other, baseline, blocks[other.name])
            for measure in measures
            for other in others
        ]
    return rows


def _difference(
    group: Group, measure: str, other: Configuration, baseline: Configuration, blocks: Blocks
) -> dict[str, Any]:
    values = {
        c.name: [c.scores[measure][seed] for seed in blocks.seeds]
        for c in group.configurations
        if c.name in blocks.names
    }
    seeds = len(blocks.seeds)
    mean = fmean(values[other.name]) - fmean(values[baseline.name]) if seeds else nan
    row: dict[str, Any] = {
        "group": group.name, "measure": measure, "configuration": other.name,
        "baseline": baseline.name, "seeds": seeds, "difference": mean,
    }  # fmt: skip
    if seeds < 2:
        why = "one seed, no test" if seeds else "no seed in common, no test"
        none = dict.fromkeys(("low", "high", "detectable", "p", "p_pair"), nan)
        return row | none | {"test": why, "configurations": 0, "df": 0}
    spread = block_spread(list(values.values()))
    return row | {
        "low": mean - spread.reach,
        "high": mean + spread.reach,
        "test": BLOCKS if len(values) > 2 else PAIR,
        "configurations": len(values),
        "df": spread.df,
        "detectable": spread.detectable,
        "p": spread.p(mean),
        "p_pair": block_spread([values[other.name], values[baseline.name]]).p(mean),
    }
