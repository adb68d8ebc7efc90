"""The runs of a sweep: a recipe each, readable and runnable alone. Torch-free.

OUT/
    sweep.yaml       the cells, and what was asked for
    plan.csv         parameters, FLOPs, tokens and estimated hours of each configuration
    recipes/         a recipe for each run: a50_k4-seed_0.yaml
    runs/            their run folders: a50_k4/seed_0
    logs/            what each of them printed
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError
from dualpath_cli.own_classes.checks import import_classes
from dualpath_cli.ranges import parse_size
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.recipes import Recipe, dump
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.run_folder import check_tables
from dualpath_cli.sweep.cells import Cell
from dualpath_cli.sweep.request import Varied
from dualpath_cli.system import FIT, is_held, read_csv, write_text

LENGTH, RATE = "run.max_tokens", "optim.lr"


@dataclass(frozen=True)
class Configuration:
    """A cell with its varied settings, which is trained with several seeds."""

    name: str
    cell: Cell
    settings: Mapping[str, Any]  # values of the keys that --set varies
    trunk: str | None = None
    """The longest configuration of those that differ in tokens alone, from which the others take
    their first part (run.branch_from); None where each is trained from the start."""

    def recipe(self, shared: Recipe, seed: int, folder: Path) -> Recipe:
        """The recipe of a run with a seed, whose run folder lies in `folder`."""
        recipe = recipes.merge(shared, {"model": self.cell.model})
        for key, value in self.settings.items():
            if key == RATE:
                continue  # `runs_of` has set it, with the rates at both ends
            for name in reversed(key.split(".")):
                value = {name: value}
            recipe = recipes.merge(recipe, value)
        run = {"recipe": self.name, "name": f"seed_{seed}", "dir": str(folder),
               "budget": self.cell.budget}  # fmt: skip
        if self.trunk == self.name:
            run["keep"] = 0
        elif self.trunk is not None:
            run["branch_from"] = str(folder / self.trunk / f"seed_{seed}")
        return recipes.merge(recipe, {"seed_everything": seed, "run": run})


def configurations(
    cells: Sequence[Cell], varied: Varied, branches: bool = False
) -> list[Configuration]:
    """Every cell with every combination of the settings that make a difference to it.

    `branches`: those that differ in `run.max_tokens` alone, which is then varied, are branches of
    the longest, which comes before them.
    """
    if branches:
        lengths = sorted(varied[LENGTH], key=lambda text: -parse_size(str(text), LENGTH))
        varied = {LENGTH: lengths} | {k: v for k, v in varied.items() if k != LENGTH}
    found = []
    for cell in cells:
        keys = [key for key in varied if _matters(key, cell)]
        for values in product(*(varied[key] for key in keys)):
            settings = dict(zip(keys, values, strict=True))
            trunk = None
            if branches:
                trunk = _name(cell, {**settings, LENGTH: varied[LENGTH][0]})
            found.append(Configuration(_name(cell, settings), cell, settings, trunk))
    for name, times in Counter(configuration.name for configuration in found).items():
        if times > 1:
            raise UserError(f"--set gives {times} configurations the name '{name}'; leave some out")
    return found


def _name(cell: Cell, settings: Mapping[str, Any]) -> str:
    return "-".join([cell.name, *(_word(k, v) for k, v in settings.items())])


def _matters(key: str, cell: Cell) -> bool:
    """Whether a setting has an effect on the blocks of a cell."""
    experts, block = cell.model["n_experts"], cell.model["block"]
    sparse = any(experts) if isinstance(experts, list) else experts > 0
    deep = block != "wide"
    looped = deep and cell.model["loops"] > 1
    effects = {
        "model.gate": "dual" in block, "optim.lr_scale.gate": "dual" in block,
        "model.balance": sparse, "model.balance_rate": sparse,
        "optim.lr_scale.router": looped or sparse,  # of steps and of experts
        "model.step_conditioning": deep, "optim.lr_scale.conditioning": deep,
        "model.combination": looped, "model.step_index": looped,
        "run.train_loops": looped, "run.loop_schedule": looped,
    }  # fmt: skip
    return effects.get(key, True)


def _word(key: str, value: Any) -> str:
    """A setting as part of a name: `gate_convex`, `lr_scale_gate_0.5`, pairs as `0_1+0.5_4`."""
    if isinstance(value, dict):
        value = list(value.items())
    text = str(value)
    if isinstance(value, list):  # of pairs, maybe
        text = "+".join(re.sub("[][()']", "", str(part)).replace(", ", "_") for part in value)
    if value is None or isinstance(value, bool):
        text = json.dumps(value)  # as a recipe has it
    name = key.partition(".")[2].replace(".", "_")
    return f"{name}_" + re.sub(r"[^\w.+-]", "_", text)


@dataclass(frozen=True, eq=False)
class Run:
    name: str  # a50_k4-seed_0
    configuration: Configuration
    seed: int
    recipe: Recipe
    settings: Settings  # the recipe, checked
    path: Path  # the recipe's file
    log: Path  # the output of its process

    @property
    def folder(self) -> Path:
        run = self.settings.run
        return Path(run.dir) / run.recipe / run.name

    @property
    def steps(self) -> int:
        return self.settings.run.steps

    @property
    def begins(self) -> int:
        """The step of the checkpoint that it begins from: 0, or a branch's."""
        run = self.settings.run
        if run.branch_from is None:
            return 0
        return stable_steps(self.settings) // run.save_every * run.save_every

    @property
    def metrics(self) -> list[dict[str, str]]:
        """The rows that it has logged; none before the first one, or where they are damaged."""
        try:
            check_tables(self.folder, ["metrics.csv"])
        except UserError:  # half written at this moment
            return []
        return read_csv(self.folder / "metrics.csv")

    @property
    def is_finished(self) -> bool:
        """Whether its last step is saved, and validated where there is something to validate on.

        One whose numbers went wrong is. One whose checkpoints were all removed, as fit never does,
        is finished if it was validated. One whose checkpoints are all damaged is not: `fit` is left
        to say so.
        """
        if self.went_wrong:
            return True
        if not (self.folder / run_folder.RECIPE).is_file():
            return False
        sets = self.settings.data.val
        check_tables(self.folder, ["validation.csv"])
        rows = read_csv(self.folder / "validation.csv")
        validated = any(int(row["step"]) == self.steps for row in rows)
        try:
            checkpoint = run_folder.newest_checkpoint(self.folder)
        except UserError:
            return False
        if checkpoint is None:
            return validated
        return run_folder.step_of(checkpoint) >= self.steps and (validated or not sets)

    @property
    def went_wrong(self) -> bool:
        """Whether its numbers ended it, or its trunk before the step that it would begin from."""
        own = self.folder if self.is_ready else Path(str(self.settings.run.branch_from))
        return (own / run_folder.WENT_WRONG).is_file()

    @property
    def is_ready(self) -> bool:
        """Whether the run that it branches from, if it does, is there to be taken over."""
        trunk = self.settings.run.branch_from
        if trunk is None or self.folder.exists():
            return True
        steps = [run_folder.step_of(p) for p in run_folder.complete_checkpoints(Path(trunk))]
        return max(steps, default=0) >= stable_steps(self.settings)

    @property
    def is_being_written(self) -> bool:
        return is_held(self.folder / FIT)


def runs_of(
    found: Sequence[Configuration],
    recipe: Recipe,
    settings: Settings,
    seeds: Iterable[int],
    out: Path,
) -> list[Run]:
    """The runs of configurations in a folder, seed by seed; writes nothing.

    All share `recipe`, with `settings`. The first seed of all configurations comes first: a sweep
    that is stopped early has compared all of them once.
    """
    runs, base = [], recipe
    for seed, one in product(seeds, found):
        shared = _with_rate(base, settings, float(one.settings.get(RATE, settings.optim.lr)))
        recipe, name = one.recipe(shared, seed, out / "runs"), f"{one.name}-seed_{seed}"
        path, log = out / "recipes" / f"{name}.yaml", out / "logs" / f"{name}.log"
        runs.append(Run(name, one, seed, recipe, settings_from(recipe), path, log))
    for run in runs[: len(found)]:  # the first seed's
        import_classes(run.settings.model, allowed=True)
    return runs


def _with_rate(recipe: Recipe, settings: Settings, lr: float) -> Recipe:
    """A recipe at another peak rate; the rates at both ends and Muon's keep their ratio to it."""
    optim = settings.optim
    names = ("lr_start", "lr_end", *(["muon_lr"] if optim.muon_lr is not None else []))
    rates = {name: float(f"{getattr(optim, name) * lr / optim.lr:.6g}") for name in names}
    return recipes.merge(recipe, {"optim": {"lr": lr, **rates}})


def write_recipes(runs: Iterable[Run]) -> None:
    for run in runs:
        text = dump(run.recipe)
        write_text(run.path, f"# {_heading(run.configuration, run.seed)}\n{text}")


def _heading(configuration: Configuration, seed: int) -> str:
    """The first line of a recipe: its configuration in words."""
    cell = configuration.cell
    alpha = "" if cell.alpha is None else f", alpha {cell.alpha:g} %"
    loops = "" if cell.model["block"] == "wide" else f", K = {cell.model['loops']}"
    how = " and ".join(cell.matches)
    return (
        f"{configuration.name}, seed {seed}: {cell.family}{alpha}{loops}; {cell.spent:.4f} of the "
        f"budget of {cell.budget:,} FLOPs per token and layer, matched in {how} FLOPs"
    )
