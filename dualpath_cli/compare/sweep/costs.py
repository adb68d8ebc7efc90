"""The costs of a sweep, before and while it runs. Torch-free.

Hours follow from a speed that the user gives, or from the speed of the first run of
each family.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import amount
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.configurations import Family, partition
from dualpath_cli.compare.sweep.runs import PlannedRun
from dualpath_cli.compare.tables import count as count_text
from dualpath_cli.compare.tables import hours_text
from dualpath_cli.flops import count
from dualpath_cli.report.table import Column, Columns, Table
from dualpath_cli.run.tables import METRICS, read_table


@dataclass(frozen=True)
class ConfigurationCost:
    """A row of plan.csv."""

    configuration: str
    family: Family
    budget: int
    alpha: float | None
    loops: int
    core_loops: int  # R; in plan.csv if a model repeats layers
    parameters: int
    non_embedding: int
    relative: float | None  # to PureWide of the same budget, if it is in the sweep
    linear_flops: float  # per token and layer of the backbone, with model.loops
    total_flops: float
    spent: float  # matched FLOPs over the FLOPs that they should be
    tokens: int
    training_flops: float  # of one run
    seeds: int
    left: int  # unfinished runs
    hours: float | None  # hours of one run


def measured_speeds(runs: Iterable[PlannedRun]) -> dict[Family, float]:
    """FLOP/s of training by family, of the first run of each that has logged a step."""
    speeds: dict[Family, float] = {}
    for run in runs:
        logged: list[float] = []
        # hours are an estimate: `fit` and `compare` name the damage
        with suppress(UserError):
            rows = read_table(run.folder / METRICS)
            logged = [1e12 * row.number("tflops_per_second") for row in rows]
        if logged:
            steady = logged[len(logged) // 2 :]  # the first steps compile
            speeds.setdefault(run.cell.family, median(steady))
    return speeds


def costs_of(
    runs: Sequence[PlannedRun], speeds: Mapping[Family, float]
) -> list[ConfigurationCost]:
    """A row for each configuration; `speeds` are FLOP/s of training by family."""
    wides = _wide_parameters(runs)
    costs = []
    for seeds in partition(runs, lambda run: run.configuration).values():
        cell = seeds[0].cell
        costs.append(_cost(seeds, wides.get(cell.budget), speeds.get(cell.family)))
    return costs


def _cost(
    seeds: Sequence[PlannedRun], wide: int | None, speed: float | None
) -> ConfigurationCost:
    """`wide` are the parameters of PureWide of the budget, if it is in the sweep."""
    run = seeds[0]
    cell = run.cell
    model = run.settings.model
    layer = count.mean_layer_flops(model)
    parameters = count.parameters(model)
    return ConfigurationCost(
        run.configuration,
        cell.family,
        cell.budget,
        cell.alpha,
        loops=model.most_loops,
        core_loops=model.core_loops,
        parameters=parameters,
        non_embedding=count.parameters_non_embedding(model),
        relative=wide and parameters / wide,
        linear_flops=layer["linear_total"] * cell.layers_times,
        total_flops=layer["total"] * cell.layers_times,
        spent=cell.spent,
        tokens=run.tokens,
        training_flops=run.flops,
        seeds=len(seeds),
        left=sum(not run.is_finished for run in seeds),
        hours=speed and run.flops / speed / 3600,
    )


def _wide_parameters(runs: Iterable[PlannedRun]) -> dict[int, int]:
    """Parameters of PureWide by budget; of a dense one, where there is one."""
    wides = [run for run in runs if run.cell.family == "wide"]
    wides.sort(key=lambda run: run.settings.model.has_experts)
    found: dict[int, int] = {}
    for run in wides:
        found.setdefault(run.cell.budget, count.parameters(run.settings.model))
    return found


def records_of(rows: Sequence[ConfigurationCost]) -> list[dict[str, Any]]:
    """The rows of plan.csv."""
    records = [asdict(row) for row in rows]
    if all(row.core_loops == 1 for row in rows):
        for record in records:
            del record["core_loops"]
    return records


def plan_table(rows: Sequence[ConfigurationCost], jobs: int) -> Table:
    """The plan as it is shown before anything runs; `jobs` runs at a time slow none
    down."""
    columns: Columns[ConfigurationCost] = [
        (Column("configuration"), lambda row: row.configuration),
        (Column("parameters", "{:.2f}M".format), lambda row: row.parameters / 1e6),
        (Column("params\n/wide", ".2f"), lambda row: row.relative),
        (Column("linear M", ".3f"), lambda row: row.linear_flops / 1e6),
        (Column("total M", ".3f"), lambda row: row.total_flops / 1e6),
        (Column("FLOPs / budget", ".4f"), lambda row: row.spent),
        (Column("tokens", count_text), lambda row: row.tokens),
        (Column("runs", "d"), lambda row: row.seeds),
        (Column("time a run", hours_text), lambda row: row.hours),
    ]
    if len({row.budget for row in rows}) > 1:
        columns.insert(1, (Column("budget"), lambda row: format_size(row.budget)))

    configurations = amount("configurations", len(rows))
    runs = sum(row.seeds for row in rows)
    left = sum(row.left for row in rows)
    title = f"{configurations}, {amount('runs', runs)}"
    if left < runs:
        title += f", {left} of them left"

    caption = ["M: million FLOPs per token and layer"]
    if left:
        caption.append(_time_left(rows, jobs))
    return Table.of(rows, columns, title, "; ".join(caption))


def _time_left(rows: Sequence[ConfigurationCost], jobs: int) -> str:
    hours = longest = 0.0
    for row in rows:
        if not row.left:
            continue
        if row.hours is None:
            return "hours are known once a run of each family has begun, or by --tflops"
        hours += row.left * row.hours
        longest = max(longest, row.hours)

    # Where there are fewer runs than jobs, some jobs have no work.
    text = f"in all {hours_text(max(hours / jobs, longest))}"
    if jobs > 1:
        text += f", {jobs} in parallel"
    return text
