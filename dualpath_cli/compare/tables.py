"""Configurations against the baselines of their group, and the tables of a comparison.

A table is shown, written in Markdown, and put on the page; CSV files have records.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from statistics import fmean
from typing import Any

import numpy as np

from dualpath_cli.compare.groups import Configuration, Group
from dualpath_cli.compare.rates import resampled
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.report.blocks import (
    LEVEL,
    SeedBlocks,
    block_spread,
    find_blocks,
    holm,
)
from dualpath_cli.report.console import duration
from dualpath_cli.report.table import (
    Column,
    Columns,
    Table,
    interval,
    with_error,
    with_interval,
    without_nan,
)

BLOCKS, PAIR, BEST = "randomised blocks", "paired t", "best rates, resampled"
AFTER = "not tested: the test before found no difference"  # of pairs in a fixed order
SAME = "no difference that matters"


@dataclass(frozen=True)
class Difference:
    """Bits per byte of a configuration less those of the baseline, over the seeds of
    both."""

    group: str
    measure: str
    configuration: str
    baseline: str
    seeds: int  # of both, and of all configurations that the standard error comes from
    difference: float  # mean over seeds; below zero the configuration is better
    low: float = nan  # ends of the 95 % interval; nan without a test
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
    # with --best lr: rise of bits per byte one step of rates from the best rate,
    bend: float = nan
    bend_baseline: float = nan  # in standard errors of a mean

    @property
    def tested(self) -> bool:
        return self.p == self.p

    @property
    def unlike(self) -> bool:
        """Whether one curve is flat and the other steep: the interval is then too
        narrow."""
        flatter, steeper = sorted((self.bend, self.bend_baseline))
        return flatter < 3 < steeper - flatter

    @property
    def verdict(self) -> str:
        if not self.tested:
            return self.test
        word = "better" if self.difference < 0 else "worse"
        found, stands = self.p < LEVEL, not self.p_holm >= LEVEL
        if self.margin and -self.margin < self.low_90 and self.high_90 < self.margin:
            return f"{word}, by less than matters" if found and stands else SAME
        if not found:
            return "undecided"
        return word if stands else f"{word}, alone; undecided among all"


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
    rows = [
        row
        for group in groups
        for row in (
            _in_order(group) if group.pairs else _of_group(group, aggregate_only)
        )
    ]
    corrected = holm([nan if row.order else row.p for row in rows])
    return [
        replace(row, p_holm=p, margin=margin)
        for row, p in zip(rows, corrected, strict=True)
    ]


def _in_order(group: Group) -> list[Difference]:
    rows: list[Difference] = []
    scores = {c.name: c.scores[AGGREGATE] for c in group.configurations}
    for n, (one, other) in enumerate(group.pairs):
        blocks = find_blocks(scores, one.name, other.name)
        row = replace(_difference(group, AGGREGATE, one, other, blocks), order=n + 1)
        if rows and not rows[-1].p < LEVEL:
            row = replace(row, p=nan, test=AFTER)
        rows.append(row)
    return rows


def _of_group(group: Group, aggregate_only: bool) -> list[Difference]:
    # Rates are chosen by the aggregate, which alone is tested.
    chosen = any(c.best_rate for c in group.configurations)
    once = aggregate_only or chosen or len(group.measures) == 2
    scores = {c.name: c.scores[group.measures[0]] for c in group.configurations}
    rows = []
    for n, baseline in enumerate(group.baselines):
        # Two baselines are one pair, which is tested once.
        others = [c for c in group.configurations if c not in group.baselines[: n + 1]]
        blocks = {c: find_blocks(scores, c.name, baseline.name) for c in others}
        rows += [
            _difference(group, measure, other, baseline, blocks[other])
            for measure in (group.measures[:1] if once else group.measures)
            for other in others
        ]
    return rows


def _difference(
    group: Group,
    measure: str,
    other: Configuration,
    baseline: Configuration,
    blocks: SeedBlocks,
) -> Difference:
    in_blocks = [c for c in group.configurations if c.name in blocks.names]
    values = {c: [c.scores[measure][seed] for seed in blocks.seeds] for c in in_blocks}
    ours, theirs = values[other], values[baseline]
    seeds, edge = len(blocks.seeds), other.edge or baseline.edge
    mean = fmean(ours) - fmean(theirs) if seeds else nan
    row = Difference(group.name, measure, other.name, baseline.name, seeds, mean)
    if seeds < 2 or edge:
        why = "best rate at the edge, no test" if edge else "one seed, no test"
        return replace(row, test=why if seeds else "no seed in common, no test")
    if other.best_rate:
        return _of_best(row, other, baseline, in_blocks, blocks.seeds)
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


def _of_best(
    row: Difference,
    other: Configuration,
    baseline: Configuration,
    in_blocks: Sequence[Configuration],
    seeds: Sequence[int],
) -> Difference:
    """The test where rates were chosen: a row of the blocks is a configuration at one
    rate."""
    values = {
        c: [
            [by_seed[seed].scores[AGGREGATE] for seed in seeds]
            for by_seed in c.frame.values()
        ]
        for c in in_blocks
    }
    spread = block_spread([row for its in values.values() for row in its])
    ours, theirs = (
        (np.log(list(c.frame)), np.mean(values[c], 1)) for c in (other, baseline)
    )
    found = resampled(ours, theirs, spread.error / 2**0.5, spread.df)
    return replace(row, **found, test=BEST, configurations=len(values), df=spread.df)


Cost = tuple[str, Column, Callable[[Configuration], Any], str]


def _costs(wide: Configuration | None) -> list[Cost]:
    """What a configuration is and costs: columns of table.csv and of tables, with their
    notes."""
    return [
        ("alpha", Column("α", ".0f"), lambda c: c.alpha, "α in %"),
        ("loops", Column("K", "d"), lambda c: c.loops, ""),
        (
            "expected_loops",
            Column("loops", ".2f"),
            lambda c: c.expected_loops,
            "loops: expected by the router, as last logged in training",
        ),
        ("layers", Column("layers", "d"), lambda c: c.layers, ""),
        ("parameters", Column("params", count), lambda c: c.parameters, ""),
        ("active_parameters", Column("active\nparams", count), lambda c: c.active, ""),
        (
            "parameters_to_wide",
            Column("params\n/wide", ".2f"),
            lambda c: wide and c.parameters / wide.parameters,
            "",
        ),
        ("linear_flops", Column("linear\nFLOPs", count), lambda c: c.flops_linear, ""),
        (
            "total_flops",
            Column("total\nFLOPs", count),
            lambda c: c.flops_total,
            "FLOPs: per token and layer",
        ),
        (
            "kv_bytes_per_token",
            Column("KV bytes\n/token", count),
            lambda c: c.kv_bytes,
            "KV bytes: of a cache in bf16, all layers",
        ),
        (
            "trained_flops",
            Column("trained\nFLOPs", count),
            lambda c: c.flops_trained,
            "trained: mean of the total over training steps; compute is not equal here",
        ),
        ("training_tokens", Column("tokens", count), lambda c: c.tokens, ""),
        (
            "hours",
            Column("training", lambda hours: duration(3600 * hours)),
            lambda c: c.hours,
            "training: time of one run, its tokens at its measured speed",
        ),
        (
            "time_to_wide",
            Column("time\n/wide", ".2f"),
            lambda c: wide and c.seconds_per_token / wide.seconds_per_token,
            "time as measured",
        ),
        (
            "microseconds_per_token",
            Column("µs\n/token", _micro),
            lambda c: 1e6 * c.seconds_per_token,
            "time as measured",
        ),
        (
            "best_rate",
            Column("lr", ".2g"),
            lambda c: c.best_rate,
            "lr: lowest point of a parabola through rates; bits per byte are those at "
            "this rate",
        ),
        ("seeds", Column("seeds", "d"), lambda c: len(c.seeds), ""),
    ]


def group_tables(
    group: Group, errors: bool = True, result_first: bool = False
) -> list[Table]:
    """A row a configuration: its costs and aggregate, then each set, if there are
    several.

    Without `errors` the standard error of the aggregate alone. `result_first` puts the
    aggregate before the costs.
    """
    rows = group.configurations
    costs = _costs(group.wide)
    hidden = {key for key, _, value, _ in costs if all(value(c) is None for c in rows)}
    hidden |= {"layers", "microseconds_per_token"} if group.wide else {"layers"}
    if all(c.active == c.parameters for c in rows):
        hidden.add("active_parameters")
    if all(c.flops_trained == c.flops_total for c in rows):
        hidden.add("trained_flops")
    if len({c.tokens for c in rows}) == 1:
        hidden |= {"training_tokens", "hours"}
    shown = [cost for cost in costs if cost[0] not in hidden]
    marks = "the lowest of each column marked"
    if any(len(c.seeds) > 1 for c in rows):
        marks += "; ± one standard error over seeds, not that of a difference"
    notes = [f"bits per byte, {marks}", *(note for *_, note in shown)]
    if not group.baselines:
        notes.append(f"no tests: {group.untested}")
    caption = "; ".join(filter(None, notes))
    name: Columns[Configuration] = [(Column("configuration"), lambda c: c.name)]
    aggregate = [_score(group.measures[0], True)]
    columns = [(column, value) for _, column, value, _ in shown]
    columns = [*aggregate, *columns] if result_first else [*columns, *aggregate]
    found = [_shared(Table.of(rows, [*name, *columns], group.name, caption), "seeds")]
    if len(group.measures) > 2:
        scores = [*name, *(_score(measure, errors) for measure in group.measures[1:])]
        title = f"{group.name}: bits per byte by set"
        found.append(Table.of(rows, scores, title, marks if errors else ""))
    return found


def _score(measure: str, error: bool) -> tuple[Column, Callable[[Configuration], Any]]:
    return (
        Column(measure, with_error(".4f"), marks_lowest=True),
        lambda c: (c.mean(measure), c.standard_error(measure) if error else None),
    )


def tables_of_tests(rows: Sequence[Difference], total: int) -> list[Table]:
    """A table for each group and baseline, or its pairs; `total` tests were made in
    all."""
    parts: dict[tuple[str, str], list[Difference]] = {}
    for row in rows:
        parts.setdefault((row.group, "" if row.order else row.baseline), []).append(row)
    return [
        _of_tests(part, f"{total:,} {'test' if total == 1 else 'tests'}", baseline)
        for (_, baseline), part in parts.items()
    ]


def _of_tests(part: Sequence[Difference], tests: str, baseline: str) -> Table:
    ordered, margin = part[0].order is not None, part[0].margin

    def verdict(row: Difference) -> str:
        return row.verdict if ordered else row.verdict.partition(";")[0]

    verdicts = {verdict(row) for row in part}
    best = any(row.bend == row.bend for row in part)
    columns: Columns[Difference] = [
        (Column("pair"), lambda d: f"{d.configuration} less {d.baseline}")
        if ordered
        else (Column("configuration"), lambda d: d.configuration),
        (Column("verdict"), verdict),
        (Column("on"), lambda d: d.measure),
        (
            Column("difference, 95 % interval", with_interval("+.4f")),
            lambda d: (d.difference, d.low, d.high),
        ),
        (Column("90 % interval", interval("+.4f")), lambda d: (d.low_90, d.high_90)),
        (Column("p", ".2g"), lambda d: d.p),
        (Column("Holm", ".2g"), lambda d: d.p_holm),
        (Column("detectable", ".4f"), lambda d: d.detectable),
        (
            Column("bends", "{0[0]:.1f} and {0[1]:.1f}".format),
            lambda d: (d.bend, d.bend_baseline),
        ),
        (Column("test"), lambda d: d.test if d.tested else ""),
        (Column("df", ".0f"), lambda d: d.df if d.tested else nan),
        (Column("seeds", "d"), lambda d: d.seeds),
    ]
    tested = any(row.tested for row in part)
    hidden = {
        "p": not tested,
        "Holm": ordered or not tested,
        "90 % interval": margin is None,
        "bends": not best,
    }
    columns = [pair for pair in columns if not hidden.get(pair[0].heading)]
    caption = []
    if tested:
        caption += [
            "each pair is tested at 5 %, and only if every pair before it differed; "
            "the chance of any false difference is 5 % in all"
            if ordered
            else "Holm: p corrected for the number of tests",
            "detectable: the smallest true difference found at 5 % with 80 % power"
            + ("" if ordered else ", uncorrected"),
        ]
    if best:
        caption.append(
            "bends: rise of bits per byte one step of rates from the lowest point, in "
            "standard errors of a mean"
        )
    if named := " and ".join(
        f"{d.configuration} less {d.baseline}" for d in part if d.unlike
    ):
        caption.append(
            f"WARNING: the bends of {named} differ much: the interval is too narrow, "
            "and the flatter curve looks better than it is; train the steeper one at "
            "closer rates"
        )
    if any(word.endswith("alone") for word in verdicts):
        caption.append("alone: not significant after correction")
    if margin is not None:
        caption.append(
            f"margin {margin:g}; {SAME}: the 90 % interval, two one-sided tests at 5 "
            "%, lies within the margin; each test by itself, uncorrected"
        )
    if "undecided" in verdicts:
        caption.append("undecided: the 95 % interval holds 0")
    kind = "pairs in a fixed order" if ordered else f"less those of {baseline}"
    title = f"{part[0].group}: bits per byte {kind}, {tests} in all"
    table = Table.of(part, columns, title, "; ".join(caption))
    return _shared(table, "on", "detectable", "test", "df", "seeds")


def _shared(table: Table, *names: str) -> Table:
    """A table with what all rows share in its caption instead of those of its
    columns."""
    kept, same = [], []
    for place, column in enumerate(table.columns):
        texts = {column.text(row[place]) for row in table.rows}
        if column.heading not in names or len(texts) > 1:
            kept.append(place)
        elif any(texts):
            same.append(f"{column.heading} {texts.pop()}")
    rows = [[row[place] for place in kept] for row in table.rows]
    columns = [table.columns[place] for place in kept]
    shared = f"in all rows: {', '.join(same)}" if same else ""
    caption = "; ".join(filter(None, (table.caption, shared)))
    return replace(table, columns=columns, rows=rows, caption=caption)


def _micro(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def count(value: float) -> str:
    """Such as 719.0M, 1.361B, 602.1K."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= unit:
            return f"{value / unit:#.4g}{suffix}"
    return f"{value:.4g}"


def records_of_groups(
    groups: Sequence[Group],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of table.csv and their columns: groups differ in their measures."""
    records = [
        {"group": group.name, "configuration": c.name, "family": c.family}
        | {key: value(c) for key, _, value, _ in _costs(group.wide)}
        | {name: c.mean(name) for name in group.measures}
        | {f"{name}_standard_error": c.standard_error(name) for name in group.measures}
        for group in groups
        for c in group.configurations
    ]
    return records, list(
        dict.fromkeys(column for record in records for column in record)
    )


def records_of_tests(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    return [without_nan({**asdict(row), "verdict": row.verdict}) for row in rows]


def records_of_runs(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The frame: a row a run and set, from which all else can be computed again."""
    return [
        {
            "group": group.name,
            "configuration": c.name,
            "seed": run.seed,
            "lr": run.settings.optim.lr,
            "set": name,
            "bits_per_byte": run.scores[name],
            "tokens_per_second": run.tokens_per_second,
            "run": str(run.folder),
        }
        for group in groups
        for c in group.configurations
        for by_seed in c.frame.values()
        for run in by_seed.values()
        for name in group.measures
    ]
