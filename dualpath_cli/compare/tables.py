"""The tables of a comparison, as they are shown and as the records of its CSV files."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import nan
from typing import Any

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.differences import Difference
from dualpath_cli.files.csv_text import without_nan
from dualpath_cli.output.table import Column, Columns, Table, with_error, with_interval

TESTS = (
    "interval and p: each by itself; Holm: p corrected for the number of tests; alone: undecided "
    "after that; detectable: the smallest true difference found at 5 % with a probability of 80 %, "
    "before it; undecided: the interval holds 0"
)


def group_tables(group: Group, errors: bool = True) -> list[Table]:
    """A row a configuration: its costs and aggregate, then each set, if there are several.

    Without `errors` the standard error of the aggregate alone.
    """
    wide = group.wide
    lengths = len({c.tokens for c in group.configurations}) > 1
    routed = any(c.expected_loops is not None for c in group.configurations)
    name: Columns[Configuration] = [(Column("configuration"), lambda c: c.name)]
    columns: Columns[Configuration] = [
        *name,
        (Column("α", ".0f"), lambda c: c.alpha),
        (Column("K", "d"), lambda c: c.loops),
    ]
    if routed:
        columns.append((Column("loops", ".2f"), lambda c: c.expected_loops))
    columns.append((Column("params", count, importance=2), lambda c: c.parameters))
    if any(c.active is not None for c in group.configurations):
        columns.append((Column("active\nparams", count), lambda c: c.active or c.parameters))
    if wide:
        columns.append((Column("params\n/wide", ".2f"), lambda c: c.parameters / wide.parameters))
    columns += [
        (Column("linear\nFLOPs", count, importance=0), lambda c: c.flops_linear),
        (Column("total\nFLOPs", count), lambda c: c.flops_total),
    ]
    partly = any(c.flops_trained != c.flops_total for c in group.configurations)
    if partly:
        columns.append((Column("trained\nFLOPs", count), lambda c: c.flops_trained))
    if lengths:
        columns += [
            (Column("tokens", count, importance=2), lambda c: c.tokens),
            (Column("hours", ".3g", importance=2), lambda c: c.hours),
        ]
    if wide:
        columns.append((Column("time\n/wide", ".2f"),
                        lambda c: c.seconds_per_token / wide.seconds_per_token))  # fmt: skip
    else:
        columns.append((Column("µs\n/token", _micro), lambda c: 1e6 * c.seconds_per_token))
    columns += [
        (Column("seeds", "d", importance=2, once=True), lambda c: len(c.seeds)),
        _score(group.measures[0], True, importance=3),
    ]
    marks = "the lowest of each column marked"
    if any(len(c.seeds) > 1 for c in group.configurations):
        marks += "; ± one standard error over seeds, not that of a difference"
    caption = f"bits per byte, {marks}; α in %; FLOPs: per token and layer; time as measured"
    if partly:
        caption += "; trained: the total's mean over steps, by which compute is not equal here"
    if routed:
        caption += "; loops: that the router expects to make, as last logged in training"
    if lengths:
        caption += "; hours: of one run, its tokens at its measured speed"
    if group.note:
        caption += f"; {group.note}"
    found = [Table.of(group.configurations, columns, group.name, caption)]
    if len(group.measures) > 2:
        scores = [_score(measure, errors) for measure in group.measures[1:]]
        title = f"{group.name}: bits per byte by set"
        found.append(
            Table.of(group.configurations, [*name, *scores], title, marks if errors else "")
        )
    return found


def _score(
    measure: str, error: bool, importance: int = 1
) -> tuple[Column, Callable[[Configuration], Any]]:
    return (
        Column(measure, with_error(".4f"), importance=importance, marks_lowest=True),
        lambda c: (c.mean(measure), c.standard_error(measure) if error else None),
    )


def tables_of_tests(rows: Sequence[Difference], total: int) -> list[Table]:
    """A table for each group and baseline; `total` tests were made in all."""
    parts: dict[tuple[str, str], list[Difference]] = {}
    for row in rows:
        parts.setdefault((row.group, row.baseline), []).append(row)
    tests = f"{total:,} {'test' if total == 1 else 'tests'} in all"
    columns: Columns[Difference] = [
        (Column("configuration"), lambda d: d.configuration),
        (Column("on", once=True), lambda d: d.measure),
        (Column("verdict", importance=3), lambda d: d.verdict.partition(";")[0]),
        (
            Column("difference, 95 % interval", with_interval("+.4f"), importance=3),
            lambda d: (d.difference, d.low, d.high),
        ),
        (Column("p", ".2g"), lambda d: d.p),
        (Column("Holm", ".2g", importance=2), lambda d: d.p_holm),
        (Column("detectable", ".4f", once=True), lambda d: d.detectable),
        (Column("test", importance=0, once=True), lambda d: d.test if d.tested else ""),
        (Column("df", ".0f", importance=0, once=True), lambda d: d.df if d.tested else nan),
        (Column("seeds", "d", once=True), lambda d: d.seeds),
    ]
    return [
        Table.of(part, columns, f"{group}: bits per byte less those of {baseline}, {tests}", TESTS)
        for (group, baseline), part in parts.items()
    ]


def _micro(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def count(value: float) -> str:
    """Such as 719.0M, 1.361B, 602.1K."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= unit:
            return f"{value / unit:#.4g}{suffix}"
    return f"{value:.4g}"


def records_of_groups(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of table.csv and their columns: groups differ in their measures."""
    records = []
    sparse = any(c.active is not None for group in groups for c in group.configurations)
    for group in groups:
        for c in group.configurations:
            wide = group.wide
            record: dict[str, Any] = {
                "group": group.name, "configuration": c.name, "family": c.family,
                "alpha": c.alpha, "loops": c.loops, "expected_loops": c.expected_loops,
                "layers": c.layers,
                "parameters": c.parameters,
                **({"active_parameters": c.active or c.parameters} if sparse else {}),
                "parameters_to_wide": wide and c.parameters / wide.parameters,
                "linear_flops": c.flops_linear, "total_flops": c.flops_total,
                "trained_flops": c.flops_trained,
                "training_tokens": c.tokens, "seeds": len(c.seeds),
                "microseconds_per_token": 1e6 * c.seconds_per_token,
                "time_to_wide": wide and c.seconds_per_token / wide.seconds_per_token,
            }  # fmt: skip
            for measure in group.measures:
                record[measure] = c.mean(measure)
                record[f"{measure}_standard_error"] = c.standard_error(measure)
            records.append(record)
    return records, list(dict.fromkeys(column for record in records for column in record))


def records_of_tests(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    """Rows of tests.csv."""
    return [without_nan({**asdict(row), "verdict": row.verdict}) for row in rows]


def records_of_runs(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Rows of runs.csv: every run with its scores, from which all else can be computed again."""
    return [
        {"group": group.name, "configuration": c.name, "seed": run.seed, "run": str(run.folder),
         "tokens_per_second": run.tokens_per_second, **run.scores}
        for group in groups for c in group.configurations for run in c.runs
    ]  # fmt: skip
