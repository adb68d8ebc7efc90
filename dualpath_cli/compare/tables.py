"""The tables of a comparison.

A table is shown, written in Markdown, and put on the page; CSV files have records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import nan
from typing import Any

from dualpath_cli.base.output import amount, printable
from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.differences import (
    SAME,
    Difference,
    pair_of,
    shown_together,
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


def count(value: float) -> str:
    """Such as 719.0M, 1.361B, 602.1K; 1.000M from 999,950 on."""
    rounded = float(f"{value:.4g}")
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if rounded >= unit:
            return f"{rounded / unit:#.4g}{suffix}"
    return f"{rounded:.4g}"


def hours_text(hours: float) -> str:
    return duration(3600 * hours)


def _microseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


COSTS = {
    "alpha": Column("α", ".0f"),
    "loops": Column("K", "d"),
    "steps": Column("steps"),
    "core": Column("core"),
    "core_loops": Column("R", "d"),
    "expected_loops": Column("loops", ".2f"),
    "layers": Column("layers", "d"),
    "parameters": Column("params", count),
    "active_parameters": Column("active\nparams", count),
    "parameters_to_wide": Column("params\n/wide", ".2f"),
    "linear_flops": Column("linear\nFLOPs", count),
    "total_flops": Column("total\nFLOPs", count),
    "kv_bytes_per_token": Column("KV bytes\n/token", count),
    "trained_flops": Column("trained\nFLOPs", count),
    "training_tokens": Column("tokens", count),
    "hours": Column("training", hours_text),
    "time_to_wide": Column("time\n/wide", ".2f"),
    "microseconds_per_token": Column("µs\n/token", _microseconds),
    "best_rate": Column("lr", ".2g"),
    "seeds": Column("seeds", "d"),
}
"""What a configuration is and costs: columns of table.csv, and of tables."""

OF_LOOPS = ("steps", "core", "core_loops")
"""Columns of table.csv only where a configuration has a value."""

NOTES = {
    "alpha": "α in %",
    "core": "core: layers that are applied R times",
    "expected_loops": "loops: expected by the router, as last logged in training",
    "total_flops": "FLOPs: per token and layer",
    "kv_bytes_per_token": "KV bytes: of a cache in bf16, all layers",
    "trained_flops": (
        "trained: mean of the total over training steps; compute is not equal here"
    ),
    "hours": "training: time of one run, its tokens at its measured speed",
    "time_to_wide": "time as measured",
    "microseconds_per_token": "time as measured",
    "best_rate": (
        "lr: lowest point of a parabola through rates; bits per byte are those at "
        "this rate"
    ),
}
"""Notes on columns of costs, for the captions of tables."""


def costs_of(c: Configuration, wide: Configuration | None) -> dict[str, Any]:
    """The values of COSTS; those relative to PureWide are None without it."""
    return {
        "alpha": c.alpha,
        "loops": c.loops,
        "steps": c.steps,
        "core": c.core,
        "core_loops": c.core_loops,
        "expected_loops": c.expected_loops,
        "layers": c.layers,
        "parameters": c.parameters,
        "active_parameters": c.active,
        "parameters_to_wide": wide and c.parameters / wide.parameters,
        "linear_flops": c.flops_linear,
        "total_flops": c.flops_total,
        "kv_bytes_per_token": c.kv_bytes,
        "trained_flops": c.flops_trained,
        "training_tokens": c.tokens,
        "hours": c.hours,
        "time_to_wide": wide and c.seconds_per_token / wide.seconds_per_token,
        "microseconds_per_token": 1e6 * c.seconds_per_token,
        "best_rate": c.best_rate,
        "seeds": len(c.seeds),
    }


def group_tables(
    group: Group, errors: bool = True, result_first: bool = False
) -> list[Table]:
    """A row a configuration: its costs and aggregate, then each set, if there are
    several.

    Without `errors` only the standard error of the aggregate. `result_first` puts the
    aggregate before the costs.
    """
    aggregate, *sets = group.measures
    costs = {c: costs_of(c, group.wide) for c in group.configurations}
    shown = _shown_costs(group, list(costs.values()))

    name = Column("configuration")
    columns = [name, *(COSTS[key] for key in shown)]
    rows = [[c.name, *(its[key] for key in shown)] for c, its in costs.items()]
    place = 1 if result_first else len(columns)
    columns.insert(place, _score_column(aggregate))
    for c, row in zip(costs, rows, strict=True):
        row.insert(place, _score(c, aggregate, error=True))

    caption = _caption_of_group(group, shown)
    table = Table(columns, rows, group.name, caption)
    tables = [_with_shared_in_caption(table, "seeds")]
    if len(sets) > 1:
        columns = [name, *(_score_column(measure) for measure in sets)]
        rows = []
        for c in costs:
            scores = [_score(c, measure, errors) for measure in sets]
            rows.append([c.name, *scores])
        title = f"{group.name}: bits per byte by set"
        caption = _caption_of_marks(group) if errors else ""
        tables.append(Table(columns, rows, title, caption))
    return tables


def _shown_costs(group: Group, costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The costs that tell configurations of a table apart."""
    rows = group.configurations
    hidden = {"layers"}
    if group.wide:
        hidden.add("microseconds_per_token")  # it has the time relative to PureWide
    if all(c.active == c.parameters for c in rows):
        hidden.add("active_parameters")
    if all(c.flops_trained == c.flops_total for c in rows):
        hidden.add("trained_flops")
    if len({c.tokens for c in rows}) == 1:
        hidden |= {"training_tokens", "hours"}

    return [
        key
        for key in COSTS
        if key not in hidden and any(own[key] is not None for own in costs)
    ]


def _caption_of_group(group: Group, shown: Sequence[str]) -> str:
    notes = [f"bits per byte, {_caption_of_marks(group)}"]
    notes += [NOTES[key] for key in shown if key in NOTES]
    if not group.baselines:
        notes.append(f"no tests: {group.untested}")
    return "; ".join(notes)


def _caption_of_marks(group: Group) -> str:
    marks = "the lowest of each column marked"
    if any(len(c.seeds) > 1 for c in group.configurations):
        marks += "; ± one standard error over seeds, not that of a difference"
    return marks


def _score_column(measure: str) -> Column:
    return Column(measure, with_error(".4f"), marks_lowest=True)


def _score(c: Configuration, measure: str, error: bool) -> tuple[float, float | None]:
    return c.mean(measure), c.standard_error(measure) if error else None


DETECTABLE = "detectable: the smallest true difference found at 5 % with 80 % power"


def tables_of_tests(rows: Sequence[Difference], total: int) -> list[Table]:
    """A table for each group and baseline, or its pairs; `total` tests were made in
    all."""
    return [_table_of_tests(part, total) for part in shown_together(rows)]


def _table_of_tests(part: Sequence[Difference], total: int) -> Table:
    """Tests against one baseline, corrected together with all others, or of pairs in a
    fixed order."""
    first = part[0]
    columns: Columns[Difference]
    if first.order is None:
        columns = [(Column("configuration"), lambda d: d.configuration)]
        against = f" minus those of {first.baseline}"
        corrected = "Holm: p corrected for the number of tests"
        notes = [corrected, f"{DETECTABLE}, uncorrected"]
    else:
        columns = [(Column("pair"), pair_of)]
        against = ", pairs in a fixed order"
        notes = [
            "each pair is tested at 5 %, and only if every pair before it differed; "
            "the chance of any false difference is 5 % in all",
            DETECTABLE,
        ]
    if not any(row.tested for row in part):
        notes = []

    columns += [(Column("verdict"), _first_words), *_columns_of_tests(part)]
    title = f"{first.group}: bits per byte{against}, {amount('tests', total)} in all"
    caption = "; ".join([*notes, *_notes_on_tests(part)])
    table = Table.of(part, columns, title, caption)
    return _with_shared_in_caption(table, "on", "detectable", "test", "df", "seeds")


def _first_words(row: Difference) -> str:
    """The verdict without its second half, which the caption explains."""
    return row.verdict.partition(";")[0]


def _columns_of_tests(part: Sequence[Difference]) -> Columns[Difference]:
    columns: Columns[Difference] = [
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
    hidden = set()
    if not tested:
        hidden.add("p")
    if not tested or part[0].order is not None:
        hidden.add("Holm")
    if part[0].margin is None:
        hidden.add("90 % interval")
    if not _has_bends(part):
        hidden.add("bends")
    return [pair for pair in columns if pair[0].heading not in hidden]


def _has_bends(part: Sequence[Difference]) -> bool:
    return any(row.bend == row.bend for row in part)  # not nan


def _notes_on_tests(part: Sequence[Difference]) -> list[str]:
    """The parts of a caption that follow from the rows and their verdicts."""
    verdicts = {_first_words(row) for row in part}
    notes = []
    if _has_bends(part):
        notes.append(
            "bends: rise of bits per byte one step of rates from the lowest point, in "
            "standard errors of a mean"
        )

    unlike = [pair_of(row) for row in part if row.unlike]
    if unlike:
        notes.append(
            f"WARNING: the bends of {' and '.join(unlike)} differ much: the interval "
            "is too narrow, and the flatter curve looks better than it is; train the "
            "steeper one at closer rates"
        )

    if any(verdict.endswith("uncorrected") for verdict in verdicts):
        notes.append("uncorrected: not significant after correction")
    margin = part[0].margin
    if margin is not None:
        notes.append(
            f"margin {margin:g}; {SAME}: the 90 % interval, two one-sided tests at 5 "
            "%, lies within the margin; each test by itself, uncorrected"
        )
    if "undecided" in verdicts:
        notes.append("undecided: the 95 % interval includes 0")
    return notes


def _with_shared_in_caption(table: Table, *headings: str) -> Table:
    """A table whose caption has the texts that all rows share, instead of those of its
    columns."""
    kept = []
    shared = []
    for place, column in enumerate(table.columns):
        texts = {column.text(row[place]) for row in table.rows}
        if column.heading not in headings or len(texts) > 1:
            kept.append(place)
        elif any(texts):
            shared.append(f"{column.heading} {texts.pop()}")

    captions = [table.caption] if table.caption else []
    if shared:
        captions.append(f"in all rows: {', '.join(shared)}")
    return replace(
        table,
        columns=[table.columns[place] for place in kept],
        rows=[[row[place] for place in kept] for row in table.rows],
        caption="; ".join(captions),
    )


def records_of_groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Rows of table.csv."""
    records = []
    for group in groups:
        for c in group.configurations:
            means = {name: c.mean(name) for name in group.measures}
            errors = {
                f"{name}_standard_error": c.standard_error(name)
                for name in group.measures
            }
            names = {"group": group.name, "configuration": c.name, "family": c.family}
            records.append(names | costs_of(c, group.wide) | means | errors)

    for name in OF_LOOPS:
        if all(record[name] is None for record in records):
            for record in records:
                del record[name]
    return records


def records_of_tests(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    return [without_nan({**asdict(row), "verdict": row.verdict}) for row in rows]


def records_of_runs(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A row a run and set, from which scores and tests can be computed again."""
    return [
        {
            "group": group.name,
            "configuration": c.name,
            "seed": run.seed,
            "lr": run.settings.optim.lr,
            "set": name,
            "bits_per_byte": run.scores[name],
            "tokens_per_second": run.tokens_per_second,
            "run": printable(str(run.folder)),
        }
        for group in groups
        for c in group.configurations
        for run in c.all_runs
        for name in group.measures
    ]
