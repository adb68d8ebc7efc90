"""The tests of a comparison: configurations against the baselines of their group."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import fmean

import numpy as np

from dualpath_cli.compare.configurations import Configuration, Group, partition
from dualpath_cli.compare.rates import resampled
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.compare.tried_rates import edge_of, rates_of, scores_by_rate
from dualpath_cli.report.blocks import (
    LEVEL,
    SeedBlocks,
    block_spread,
    find_blocks,
    holm,
)
from dualpath_cli.report.bootstrap import Floats

BLOCKS, PAIR, BEST = "randomised blocks", "paired t", "best rates, resampled"
AFTER = "not tested: no difference was found before"  # of pairs in a fixed order
SAME = "no difference that matters"


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a configuration minus those of the baseline, over the seeds of
    both."""

    group: str
    measure: str
    configuration: str
    baseline: str
    seeds: int  # of both, and of all configurations that the standard error comes from
    difference: float  # mean over seeds; below zero the configuration is better
    # Ends of the 95 % interval; nan where there is none. A pair of a fixed order that
    # comes after one without a difference has an interval and no p.
    low: float = nan
    high: float = nan
    # within the margin: two one-sided tests at 5 % reject what matters
    low_90: float = nan
    high_90: float = nan
    test: str = ""  # `randomised blocks`, `paired t`, or why there is no test
    configurations: int = 0  # whose runs the standard error comes from
    df: int = 0  # degrees of freedom of the standard error
    detectable: float = nan  # smallest true difference found at 5 % with 80 % power
    p: float = nan
    # `p` corrected for all tests of all groups; nan in a fixed order
    p_holm: float = nan
    order: int | None = None  # place among the pairs of a fixed order, from 1
    margin: float | None = None  # the smallest difference that matters
    # With --best lr: how far bits per byte rise from the best rate to one step of rates
    # beside it, in standard errors of a mean.
    bend: float = nan
    bend_baseline: float = nan

    @property
    def tested(self) -> bool:
        return not isnan(self.p)

    @property
    def unlike(self) -> bool:
        """Whether one curve is flat and the other steep: the interval is then too
        narrow."""
        flatter, steeper = sorted((self.bend, self.bend_baseline))
        return flatter < 3 < steeper - flatter

    @property
    def is_within_margin(self) -> bool:
        if not self.margin:
            return False
        return -self.margin < self.low_90 and self.high_90 < self.margin

    @property
    def verdict(self) -> str:
        if not self.tested:
            return self.test

        word = "better" if self.difference < 0 else "worse"
        significant = self.p < LEVEL
        # Pairs in a fixed order are not corrected: their `p_holm` is nan.
        is_corrected = not isnan(self.p_holm)
        also_among_all = significant and (not is_corrected or self.p_holm < LEVEL)

        if self.is_within_margin:
            return f"{word}, by less than matters" if also_among_all else SAME
        if not significant:
            return "undecided"
        return word if also_among_all else f"{word}, uncorrected; undecided among all"


def pair_of(row: Difference) -> str:
    return f"{row.configuration} minus {row.baseline}"


def shown_together(rows: Sequence[Difference]) -> list[list[Difference]]:
    """The rows of each table: those of a group against one baseline, or its pairs."""

    def table_key(row: Difference) -> tuple[str, str]:
        return row.group, "" if row.order else row.baseline

    return list(partition(rows, table_key).values())


def differences_of(
    groups: Sequence[Group],
    *,
    aggregate_only: bool = False,
    margin: float | None = None,
) -> list[Difference]:
    """All tests of all groups, corrected together: of the aggregate, and of each of
    several sets.

    The aggregate over one set is that set: it is tested once. A group's pairs are
    tested instead, uncorrected and in their order up to the first that finds no
    difference: the chance of any false difference is that of the first pair without
    one, 5 %.
    """
    rows: list[Difference] = []
    for group in groups:
        if group.pairs:
            rows += _test_in_order(group)
        else:
            rows += _test_against_baselines(group, aggregate_only)

    # Pairs in a fixed order need no correction, and do not count in that of others.
    corrected = holm([nan if row.order else row.p for row in rows])
    return [
        replace(row, p_holm=p, margin=margin)
        for row, p in zip(rows, corrected, strict=True)
    ]


def _test_in_order(group: Group) -> list[Difference]:
    rows: list[Difference] = []
    goes_on = True
    for order, (ours, other) in enumerate(group.pairs, start=1):
        blocks = _blocks_of(group, ours, other)
        row = _test(group, AGGREGATE, ours, other, blocks)
        row = replace(row, order=order)
        if not goes_on:
            row = replace(row, p=nan, test=AFTER)
        rows.append(row)
        goes_on = row.p < LEVEL  # not for nan
    return rows


def _test_against_baselines(group: Group, aggregate_only: bool) -> list[Difference]:
    # Rates are chosen by the aggregate, and only that is tested.
    chosen = any(c.best_rate for c in group.configurations)
    has_one_set = len(group.measures) == 2
    once = aggregate_only or chosen or has_one_set
    measures = group.measures[:1] if once else group.measures

    rows = []
    for n, baseline in enumerate(group.baselines):
        # Two baselines are one pair, which is tested once.
        done = group.baselines[: n + 1]
        others = [c for c in group.configurations if c not in done]
        blocks = {c: _blocks_of(group, c, baseline) for c in others}
        rows += [
            _test(group, measure, other, baseline, blocks[other])
            for measure in measures
            for other in others
        ]
    return rows


def _blocks_of(group: Group, ours: Configuration, other: Configuration) -> SeedBlocks:
    seeds = {c.name: c.seeds for c in group.configurations}
    # With --best lr a row of the blocks is a configuration at one rate.
    rows = {c.name: len(rates_of(c.all_runs)) or 1 for c in group.configurations}
    return find_blocks(seeds, ours.name, other.name, rows)


def _test(
    group: Group,
    measure: str,
    ours: Configuration,
    baseline: Configuration,
    blocks: SeedBlocks,
) -> Difference:
    in_blocks = [c for c in group.configurations if c.name in blocks.names]
    # Every configuration of the blocks has all of their seeds.
    values = {}
    for c in in_blocks:
        by_seed = c.scores[measure]
        values[c] = [by_seed[seed] for seed in blocks.seeds]

    mean = fmean(values[ours]) - fmean(values[baseline]) if blocks.seeds else nan
    row = Difference(
        group.name, measure, ours.name, baseline.name, len(blocks.seeds), mean
    )
    if reason := _untested(ours, baseline, blocks):
        return replace(row, test=reason)
    if ours.best_rate:
        return _test_at_best_rates(row, ours, baseline, in_blocks, blocks.seeds)

    spread = block_spread(list(values.values()))
    return replace(
        row,
        low=mean - spread.reach,
        high=mean + spread.reach,
        low_90=mean - spread.reach_90,
        high_90=mean + spread.reach_90,
        test=BLOCKS if len(values) > 2 else PAIR,
        configurations=len(values),
        df=spread.df,
        detectable=spread.detectable,
        p=spread.p(mean),
    )


def _untested(ours: Configuration, baseline: Configuration, blocks: SeedBlocks) -> str:
    """Why there is no test; empty if there is one."""
    if not blocks.seeds:
        return "no seed in common, no test"
    # The edge of all seeds, which the tables show, or of those of this test.
    for c in (ours, baseline):
        if c.edge or edge_of(c.all_runs, blocks.seeds):
            return "best rate at the edge, no test"
    if len(blocks.seeds) == 1:
        return "one seed, no test"
    return ""


def _test_at_best_rates(
    row: Difference,
    ours: Configuration,
    baseline: Configuration,
    in_blocks: Sequence[Configuration],
    seeds: Sequence[int],
) -> Difference:
    """The test where rates were chosen: a row of the blocks is a configuration at one
    rate."""
    rows_of_blocks = [scores_by_rate(c.all_runs, AGGREGATE, seeds) for c in in_blocks]
    # The noise is that of all rates of all configurations of the blocks.
    spread = block_spread(np.concatenate(rows_of_blocks))
    error_of_a_mean = spread.error / 2**0.5

    found = resampled(
        _curve(ours, seeds), _curve(baseline, seeds), error_of_a_mean, spread.df
    )
    return replace(row, **found, test=BEST, configurations=len(in_blocks), df=spread.df)


def _curve(c: Configuration, seeds: Sequence[int]) -> tuple[Floats, Floats]:
    """Log rates and means (K,)."""
    means = scores_by_rate(c.all_runs, AGGREGATE, seeds).mean(1)
    return np.log(rates_of(c.all_runs)), means
