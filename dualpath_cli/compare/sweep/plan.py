"""The cost of a sweep: parameters, FLOPs, tokens and hours of each configuration. Torch-free.

Hours follow from the speed that is given, or from the speed of the first run of each family.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dualpath_cli.base.ranges import format_size
from dualpath_cli.base.system import read_csv
from dualpath_cli.compare.sweep.runs import PlannedRun
from dualpath_cli.flops import count
from dualpath_cli.flops.widths import Match
from dualpath_cli.report.console import duration
from dualpath_cli.report.table import Column, Columns, Table


@dataclass(frozen=True)
class Cost:
    configuration: str
    family: str
    budget: int
    alpha: float | None
    loops: int
    parameters: int
    non_embedding: int
    relative: float | None  # to PureWide of the same budget and matching, if it is in the sweep
    linear_flops: float  # per token and layer of the backbone, with model.loops
    total_flops: float
    spent: float  # matched FLOPs over the FLOPs that they should be
    tokens: int
    training_flops: float  # of one run
    seeds: int
    left: int  # unfinished runs
    hours: float | None  # hours of one run


def measured(runs: Iterable[PlannedRun]) -> dict[str, float]:
    """FLOP/s of training by family, of the first run of each that has logged a step here."""
    known: dict[str, float] = {}
    for run in runs:
        rows = read_csv(run.folder / "metrics.csv")
        speeds = [1e12 * float(row.get("tflops_per_second") or 0) for row in rows]
        speed = median(speeds[len(speeds) // 2 :] or [0.0])  # the first steps compile
        if speed > 0:
            known.setdefault(run.cell.family, speed)
    return known


def costs(runs: Sequence[PlannedRun], speeds: Mapping[str, float]) -> list[Cost]:
    """A row for each configuration; `speeds` are FLOP/s of training by family."""
    by_name: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_name.setdefault(run.configuration, []).append(run)
    # Parameters of PureWide by budget and matching; of a dense one, where there is one.
    wides = {
        (run.cell.budget, match): count.parameters(run.settings.model)
        for run in sorted(runs, key=lambda run: count.has_experts(run.settings.model))[::-1]
        for match in run.cell.matches
        if run.cell.family == "wide"
    }
    return [_cost(seeds, wides, speeds) for seeds in by_name.values()]


def _cost(
    seeds: Sequence[PlannedRun], wides: Mapping[tuple[int, Match], int], speeds: Mapping[str, float]
) -> Cost:
    run = seeds[0]
    cell, model = run.cell, run.settings.model
    layer, parameters = count.mean_layer_flops(model), count.parameters(model)
    speed = speeds.get(cell.family)
    wide = next((wides[cell.budget, m] for m in cell.matches if (cell.budget, m) in wides), None)
    return Cost(
        run.configuration, cell.family, cell.budget, cell.alpha,
        loops=1 if cell.model["block"] == "wide" else model.most_loops,
        parameters=parameters, non_embedding=count.parameters_non_embedding(model),
        relative=None if wide is None else parameters / wide,
        linear_flops=layer["linear_total"] * cell.layers_times,
        total_flops=layer["total"] * cell.layers_times, spent=cell.spent,
        tokens=run.tokens, training_flops=run.flops,
        seeds=len(seeds), left=sum(not run.is_finished for run in seeds),
        hours=None if speed is None else run.flops / speed / 3600,
    )  # fmt: skip


def plan_table(rows: Sequence[Cost], jobs: int) -> Table:
    """The plan as it is shown before anything runs; `jobs` runs at a time slow none down."""
    runs, left = sum(row.seeds for row in rows), sum(row.left for row in rows)
    caption = "M: million FLOPs per token and layer; of due: FLOPs relative to the budget"
    due = [row for row in rows if row.left]
    known = [row.hours * row.left for row in due if row.hours is not None]
    if left and len(known) == len(due):
        caption += f"; in all {duration(3600 * sum(known) / jobs)}"
        caption += f", {jobs} side by side" if jobs > 1 else ""
    elif left:
        caption += "; hours are known once a run of each family has begun, or by --tflops"
    columns: Columns[Cost] = [
        (Column("configuration"), lambda row: row.configuration),
        (Column("parameters", "{:.2f}M".format), lambda row: row.parameters / 1e6),
        (Column("of wide", ".2f"), lambda row: row.relative),
        (Column("linear M", ".3f"), lambda row: row.linear_flops / 1e6),
        (Column("total M", ".3f"), lambda row: row.total_flops / 1e6),
        (Column("of due", ".4f"), lambda row: row.spent),
        (Column("tokens", _tokens), lambda row: row.tokens),
        (Column("runs", "d"), lambda row: row.seeds),
        (Column("each", lambda hours: duration(3600 * hours)), lambda row: row.hours),
    ]
    if len({row.budget for row in rows}) > 1:
        columns.insert(1, (Column("budget"), lambda row: format_size(row.budget)))
    title = f"{len(rows)} configurations, {runs} runs"
    title += f", {left} of them left" if left < runs else ""
    return Table.of(rows, columns, title, caption)


def _tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 100_000 else f"{tokens:,}"
