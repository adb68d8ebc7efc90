"""The runs of a sweep, a recipe each, readable and runnable alone; and what they cost.
Torch-free.

OUT/
    sweep.yaml       the cells, and what was asked for
    plan.csv         parameters, FLOPs, tokens and estimated hours of each configuration
    recipes/         a recipe for each run: a50_k4-seed_0.yaml
    runs/            their run folders: a50_k4/seed_0
    logs/            their output

Hours follow from the speed that is given, or from the speed of the first run of each
family.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.locks import FIT, is_held
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.groups import Family
from dualpath_cli.compare.runs import SeededRun
from dualpath_cli.compare.sweep.cells import Cell
from dualpath_cli.compare.sweep.request import Design
from dualpath_cli.flops import count
from dualpath_cli.recipe.keys import has_effect
from dualpath_cli.recipe.recipes import Recipe, dump, merge
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.report.console import duration
from dualpath_cli.report.table import Column, Columns, Table
from dualpath_cli.run import run_folder
from dualpath_cli.run.tables import METRICS, is_validated, read_table
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_checks import import_classes

RATE = "optim.lr"


@dataclass(frozen=True, eq=False)
class PlannedRun(SeededRun):
    """A cell with varied settings, which make a configuration, and a seed."""

    configuration: str  # its name: a50_k4
    cell: Cell
    varied: Mapping[str, Any]  # its values of the keys that --set varies
    recipe: Recipe
    path: Path  # the recipe's file
    log: Path  # the output of its process

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def steps(self) -> int:
        return self.settings.run.steps

    @property
    def flops(self) -> float:
        loops = loop_counts(self.settings.run)
        each = count.over_loops(
            count.training_flops_per_token, self.settings.model, loops
        )
        return each * self.tokens

    @property
    def share_done(self) -> float:
        """The share of its steps that the run has logged; 0 from a damaged log."""
        with suppress(UserError):  # no run stops the others
            rows = read_table(self.folder / METRICS)
            return rows[-1].step / self.steps if rows else 0
        return 0

    @property
    def is_finished(self) -> bool:
        """Whether the last step is saved and validated, or the run's numbers went
        wrong.

        A validated run whose checkpoints were all removed is finished. One whose
        checkpoints are all damaged, or whose validation.csv is, is not: `fit` says so.
        """
        if self.went_wrong:
            return True
        with suppress(UserError):  # of the damage
            newest = run_folder.newest_checkpoint(self.folder)
            saved = newest is None or run_folder.step_of(newest) >= self.steps
            return saved and is_validated(
                self.folder, self.steps, self.settings.data.val
            )
        return False

    @property
    def went_wrong(self) -> bool:
        return (self.folder / run_folder.WENT_WRONG).is_file()

    @property
    def is_being_written(self) -> bool:
        return is_held(self.folder / FIT)


def files_of(out: Path, configuration: str, seed: object) -> tuple[Path, Path, Path]:
    """The run folder of a planned run, its recipe and its log."""
    name = f"{configuration}-seed_{seed}"
    folder = out / "runs" / configuration / f"seed_{seed}"
    return folder, out / "recipes" / f"{name}.yaml", out / "logs" / f"{name}.log"


def planned_in(out: Path) -> Iterator[tuple[Path, Path, Path]]:
    """`files_of` each run that sweeps have planned in a folder, also of earlier
    commands."""
    for recipe in sorted((out / "recipes").glob("*-seed_*.yaml")):
        configuration, _, seed = recipe.stem.rpartition("-seed_")
        yield files_of(out, configuration, seed)


def plan_runs(
    cells: Sequence[Cell], design: Design, shared: Settings
) -> list[PlannedRun]:
    """Every cell with every combination of the settings that matter to it; writes
    nothing.

    All have the settings `shared`. The first seed of all configurations comes first: a
    sweep that is stopped early has compared all of them once.
    """
    varied, found = design.varied, dict[str, tuple[str, Cell, dict[str, Any]]]()
    for dense, values in product(cells, product(*varied.values())):
        own = dict(zip(varied, values, strict=True))
        model = _model(dense, own, design.recipe)
        cell = _with_experts(dense, model)
        own = {key: value for key, value in own.items() if has_effect(key, model)}
        found.setdefault(f"{cell} {own}", (_name(cell, own), cell, own))
    for name, times in Counter(name for name, _, _ in found.values()).items():
        if times > 1:
            raise UserError(
                f"{times} configurations would have the name '{name}'; leave some out"
            )
    runs, out = [], design.out
    for seed, (name, cell, own) in product(design.seeds, found.values()):
        run = {"recipe": name, "name": f"seed_{seed}", "dir": str(out / "runs")}
        run["budget"] = cell.budget
        recipe = _with_rate(
            design.recipe, shared, float(own.get(RATE, shared.optim.lr))
        )
        for key, value in own.items():
            if key != RATE:  # set already, with the rates at both ends
                for part in reversed(key.split(".")):
                    value = {part: value}
                recipe = merge(recipe, value)
        recipe = merge(
            recipe, {"model": cell.model, "seed_everything": seed, "run": run}
        )
        folder, path, log = files_of(out, name, seed)
        runs.append(
            PlannedRun(
                folder, settings_from(recipe), name, cell, own, recipe, path, log
            )
        )
    for one in runs[: len(found)]:  # the first seed's
        import_classes(one.settings.model, allowed=True)
    return runs


def _model(cell: Cell, own: Mapping[str, Any], recipe: Recipe) -> ModelConfig:
    """The cell's model with its own experts, or the recipe's, where it has a wide
    path."""
    keys = {f"model.{name}": name for name in ("n_experts", "top_k")}
    experts = {name: own[key] for key, name in keys.items() if key in own}
    section = merge(recipe, {"model": experts | cell.model})["model"]
    kinds, n = section["block"], section.get("n_experts", 0)
    if kinds == "loop":
        section["n_experts"] = 0
    elif "loop" in kinds and isinstance(n, int):  # a list of kinds
        section["n_experts"] = [0 if kind == "loop" else n for kind in kinds]
    return settings_from({"model": section}).model


def _with_experts(cell: Cell, model: ModelConfig) -> Cell:
    """The cell with the experts of its model, and the share of the budget that they
    spend."""
    counted = "linear_total" if cell.match == "linear" else "total"
    sparse, dense = (
        count.mean_layer_flops(each)[counted]
        for each in (model, replace(model, n_experts=0))
    )
    experts = {"n_experts": model.n_experts}
    return replace(cell, model=cell.model | experts, spent=cell.spent * sparse / dense)


def _name(cell: Cell, settings: Mapping[str, Any]) -> str:
    return "-".join([cell.name, *(_word(k, v) for k, v in settings.items())])


def _word(key: str, value: Any) -> str:
    """A setting as part of a name: `gate_convex`, `lr_scale_gate_0.5`, pairs as
    `0_1+0.5_4`."""
    if isinstance(value, dict):
        value = list(value.items())
    text = str(value)
    if isinstance(value, list):  # of pairs, maybe
        text = "+".join(
            re.sub("[][()']", "", str(part)).replace(", ", "_") for part in value
        )
    if value is None or isinstance(value, bool):
        text = json.dumps(value)  # as a recipe has it
    name = key.partition(".")[2].replace(".", "_")
    return f"{name}_" + re.sub(r"[^\w.+-]", "_", text)


def _with_rate(recipe: Recipe, settings: Settings, lr: float) -> Recipe:
    """A recipe at another peak rate; the rates at both ends and Muon's keep their ratio
    to it."""
    optim = settings.optim
    names = ("lr_start", "lr_end", *(["muon_lr"] if optim.muon_lr is not None else []))
    rates = {
        name: float(f"{getattr(optim, name) * lr / optim.lr:.6g}") for name in names
    }
    return merge(recipe, {"optim": {"lr": lr, **rates}})


def write_recipes(runs: Iterable[PlannedRun]) -> None:
    """Writes the recipes, each with its configuration in words as the first line."""
    for run in runs:
        cell = run.cell
        words = (
            f"{run.configuration}, seed {run.seed}: {cell.family}; {cell.spent:.4f} of "
            f"the budget of {cell.budget:,} FLOPs per token and layer, matched in "
            f"{cell.match} FLOPs"
        )
        write_text(run.path, f"# {words}\n{dump(run.recipe)}")


@dataclass(frozen=True)
class Cost:
    configuration: str
    family: Family
    budget: int
    alpha: float | None
    loops: int
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


def measured(runs: Iterable[PlannedRun]) -> dict[Family, float]:
    """FLOP/s of training by family, of the first run of each with a whole log of a step
    here."""
    known: dict[Family, float] = {}
    for run in runs:
        speeds: list[float] = []
        # hours are an estimate: `fit` and `compare` name the damage
        with suppress(UserError):
            rows = read_table(run.folder / METRICS)
            speeds = [1e12 * row.number("tflops_per_second") for row in rows]
        if speeds:
            speed = median(speeds[len(speeds) // 2 :])  # the first steps compile
            known.setdefault(run.cell.family, speed)
    return known


def costs(runs: Sequence[PlannedRun], speeds: Mapping[Family, float]) -> list[Cost]:
    """A row for each configuration; `speeds` are FLOP/s of training by family."""
    by_name: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_name.setdefault(run.configuration, []).append(run)
    # Parameters of PureWide by budget; of a dense one, where there is one.
    wides = {
        run.cell.budget: count.parameters(run.settings.model)
        for run in sorted(runs, key=lambda run: count.has_experts(run.settings.model))[
            ::-1
        ]
        if run.cell.family == "wide"
    }
    found = []
    for name, seeds in by_name.items():
        run, cell, model = seeds[0], seeds[0].cell, seeds[0].settings.model
        layer, parameters = count.mean_layer_flops(model), count.parameters(model)
        wide, speed = wides.get(cell.budget), speeds.get(cell.family)
        found.append(
            Cost(
                name,
                cell.family,
                cell.budget,
                cell.alpha,
                loops=1 if cell.model["block"] == "wide" else model.most_loops,
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
        )
    return found


def plan_table(rows: Sequence[Cost], jobs: int) -> Table:
    """The plan as it is shown before anything runs; `jobs` runs at a time slow none
    down."""
    runs, left = sum(row.seeds for row in rows), sum(row.left for row in rows)
    caption = (
        "M: million FLOPs per token and layer; of due: FLOPs relative to the budget"
    )
    due = [row for row in rows if row.left]
    known = [row.hours * row.left for row in due if row.hours is not None]
    if left and len(known) == len(due):
        caption += f"; in all {duration(3600 * sum(known) / jobs)}"
        caption += f", {jobs} side by side" if jobs > 1 else ""
    elif left:
        caption += (
            "; hours are known once a run of each family has begun, or by --tflops"
        )
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
