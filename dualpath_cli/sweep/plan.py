"""What a sweep costs: parameters, FLOPs, tokens and hours of each configuration. Torch-free."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from dualpath_cli.flops import count
from dualpath_cli.flops.widths import Match
from dualpath_cli.output.progress import duration
from dualpath_cli.schedule import cooldown_start
from dualpath_cli.settings import Settings
from dualpath_cli.sizes import format_size
from dualpath_cli.study.tables import table_of
from dualpath_cli.sweep.runs import Run

Wide = tuple[int, Match]
"""A PureWide by its budget and what meets that in it."""


@dataclass(frozen=True)
class Cost:
    """A row of the plan: a configuration, one run of it."""

    configuration: str
    family: str
    budget: int
    alpha: float | None
    loops: int
    parameters: int
    non_embedding: int
    relative: float | None
    """Parameters over those of PureWide of the same budget, matched in the same FLOPs, as far as it
    is in the sweep."""
    linear_flops: float
    """Per token and layer of the backbone; of sampled loops those of model.loops."""
    total_flops: float
    spent: float
    """Matched FLOPs over what was to be matched."""
    gate_excess: float
    """FLOPs of its gate beyond those that widths were solved for, over the budget."""
    tokens: int
    training_flops: float
    """Of the run; of a branch those after the checkpoint that it takes over."""
    seeds: int
    left: int
    """Runs of it that are not finished."""
    hours: float | None
    """Of one run."""


def costs(runs: Sequence[Run], speeds: Mapping[str, float]) -> list[Cost]:
    """A row for each configuration; `speeds` are FLOP/s of training by family."""
    firsts = {run.configuration.name: run for run in reversed(runs)}
    seeds = Counter(run.configuration.name for run in runs)
    wides = {
        (run.configuration.cell.budget, match): count.parameters(run.settings.model)
        for run in runs
        if run.configuration.cell.family == "wide"
        for match in run.configuration.cell.matches
    }
    left = Counter(run.configuration.name for run in runs if not run.is_finished)
    ordered = dict.fromkeys(run.configuration.name for run in runs)
    return [_cost(firsts[name], seeds[name], left[name], wides, speeds) for name in ordered]


def _cost(
    run: Run, seeds: int, left: int, wides: Mapping[Wide, int], speeds: Mapping[str, float]
) -> Cost:
    cell, model = run.configuration.cell, run.settings.model
    layer, times = count.mean_layer_flops(model), cell.layers_times
    tokens = run.steps * run.settings.run.batch_tokens
    batch = run.settings.run.batch_tokens
    taken_over, every = 0, run.settings.run.save_every
    if run.settings.run.branch_from is not None:
        taken_over = cooldown_start(run.steps, run.settings.optim) // every * every
    own = tokens - batch * taken_over
    flops = own * training_flops(run.settings)
    speed, parameters = speeds.get(cell.family), count.parameters(model)
    wide = next((wides[cell.budget, m] for m in cell.matches if (cell.budget, m) in wides), None)
    return Cost(
        run.configuration.name, cell.family, cell.budget, cell.alpha,
        1 if cell.model["block"] == "wide" else model.loops, parameters,
        count.parameters_non_embedding(model),
        None if wide is None else parameters / wide,
        layer["linear_total"] * times, layer["total"] * times, cell.spent,
        (count.gate_flops(model) - cell.gate_flops) / cell.budget if cell.family == "dual" else 0.0,
        tokens, flops, seeds, left,
        None if speed is None else flops / speed / 3600,
    )  # fmt: skip


def training_flops(settings: Settings) -> float:
    """FLOPs of training on one token."""
    loops = settings.run.train_loops or [settings.model.loops]
    return count.sampled_training_flops_per_token(settings.model, loops)


def records(rows: Sequence[Cost]) -> list[dict[str, object]]:
    """Rows as plan.csv has them."""
    return [asdict(row) for row in rows]


def plan_table(rows: Sequence[Cost], jobs: int) -> Table:
    """The plan as it is shown before anything runs; `jobs` at a time slow each other not down."""
    runs, left = sum(row.seeds for row in rows), sum(row.left for row in rows)
    caption = "M: million FLOPs per token and layer; of due: of the sum that is matched"
    # Of what is finished no speed need be known.
    due = [row for row in rows if row.left]
    known = [row.hours * row.left for row in due if row.hours is not None]
    if len(known) == len(due):
        caption += f"; in all {duration(3600 * sum(known) / jobs)}" if left else ""
        caption += f", {jobs} side by side" if left and jobs > 1 else ""
    several = len({row.budget for row in rows}) > 1
    columns = ["parameters", "of wide", "linear M", "total M", "of due", "tokens", "runs", "each"]
    title = f"{len(rows)} configurations, {runs} runs"
    table = table_of(
        title + (f", {left} of them left" if left < runs else ""),
        ["configuration", *["budget"] * several], columns, caption,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.configuration, *[format_size(row.budget)] * several, f"{row.parameters / 1e6:.2f}M",
            "" if row.relative is None else f"{row.relative:.2f}", f"{row.linear_flops / 1e6:.3f}",
            f"{row.total_flops / 1e6:.3f}", f"{row.spent:.4f}", f"{row.tokens / 1e6:.1f}M",
            str(row.seeds), "" if row.hours is None else duration(3600 * row.hours),
        )  # fmt: skip
    return table
