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

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import parse_size
from dualpath_cli.base.system import FIT, has_step, is_held, write_text
from dualpath_cli.compare.sweep.cells import Cell
from dualpath_cli.compare.sweep.request import Varied
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.recipes import Recipe, dump
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.spec.own_checks import import_classes

LENGTH, RATE = "run.max_tokens", "optim.lr"


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
class PlannedRun:
    """A cell with varied settings, which make a configuration, and a seed."""

    configuration: str  # its name: a50_k4
    cell: Cell
    varied: Mapping[str, Any]  # its values of the keys that --set varies
    seed: int
    recipe: Recipe
    settings: Settings  # the recipe, checked
    path: Path  # the recipe's file
    log: Path  # the output of its process

    @property
    def name(self) -> str:
        return self.path.stem

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
        validated = has_step(self.folder / run_folder.VALIDATION, self.steps)
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


def plan_runs(
    cells: Sequence[Cell],
    varied: Varied,
    recipe: Recipe,
    settings: Settings,
    seeds: Iterable[int],
    out: Path,
    branches: bool = False,
) -> list[PlannedRun]:
    """Every cell with every combination of the settings that make a difference to it, seed by seed;
    writes nothing.

    All share `recipe`, with `settings`. The first seed of all configurations comes first: a sweep
    that is stopped early has compared all of them once. `branches`: those that differ in
    `run.max_tokens` alone, which is then varied, take their first part from the longest
    (run.branch_from), which comes before them.
    """
    if branches:
        lengths = sorted(varied[LENGTH], key=lambda text: -parse_size(str(text), LENGTH))
        varied = {LENGTH: lengths} | {k: v for k, v in varied.items() if k != LENGTH}
    found = []
    for cell in cells:
        keys = [key for key in varied if _matters(key, cell)]
        for values in product(*(varied[key] for key in keys)):
            own = dict(zip(keys, values, strict=True))
            found.append((_name(cell, own), cell, own))
    for name, times in Counter(name for name, _, _ in found).items():
        if times > 1:
            raise UserError(f"--set gives {times} configurations the name '{name}'; leave some out")
    runs, folder = [], out / "runs"
    for seed, (name, cell, own) in product(seeds, found):
        run = {"recipe": name, "name": f"seed_{seed}", "dir": str(folder), "budget": cell.budget}
        trunk = _name(cell, own | {LENGTH: varied[LENGTH][0]}) if branches else None
        if trunk == name:
            run["keep"] = 0
        elif trunk is not None:
            run["branch_from"] = str(folder / trunk / f"seed_{seed}")
        whole = _with_rate(recipe, settings, float(own.get(RATE, settings.optim.lr)))
        whole = recipes.merge(whole, {"model": cell.model})
        for key, value in own.items():
            if key != RATE:  # set already, with the rates at both ends
                for part in reversed(key.split(".")):
                    value = {part: value}
                whole = recipes.merge(whole, value)
        whole = recipes.merge(whole, {"seed_everything": seed, "run": run})
        path = out / f"recipes/{name}-seed_{seed}.yaml"
        log = out / f"logs/{name}-seed_{seed}.log"
        runs.append(PlannedRun(name, cell, own, seed, whole, settings_from(whole), path, log))
    for one in runs[: len(found)]:  # the first seed's
        import_classes(one.settings.model, allowed=True)
    return runs


def _with_rate(recipe: Recipe, settings: Settings, lr: float) -> Recipe:
    """A recipe at another peak rate; the rates at both ends and Muon's keep their ratio to it."""
    optim = settings.optim
    names = ("lr_start", "lr_end", *(["muon_lr"] if optim.muon_lr is not None else []))
    rates = {name: float(f"{getattr(optim, name) * lr / optim.lr:.6g}") for name in names}
    return recipes.merge(recipe, {"optim": {"lr": lr, **rates}})


def write_recipes(runs: Iterable[PlannedRun]) -> None:
    """Writes the recipes, each with its configuration in words as the first line."""
    for run in runs:
        cell, how = run.cell, " and ".join(run.cell.matches)
        words = (
            f"{run.configuration}, seed {run.seed}: {cell.family}; {cell.spent:.4f} of the budget "
            f"of {cell.budget:,} FLOPs per token and layer, matched in {how} FLOPs"
        )
        write_text(run.path, f"# {words}\n{dump(run.recipe)}")
