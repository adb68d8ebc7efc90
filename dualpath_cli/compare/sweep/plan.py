"""From the cells of a sweep to its runs: each with its settings, seed and recipe.
Torch-free."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import LONGEST_NAME
from dualpath_cli.compare.sweep.cells import SHAPING, Shape, SweepCell
from dualpath_cli.compare.sweep.request import Design, Varied
from dualpath_cli.compare.sweep.runs import PlannedRun, files_of
from dualpath_cli.flops import count
from dualpath_cli.recipe.keys import has_effect
from dualpath_cli.recipe.recipes import Recipe, merge, nested
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_checks import import_classes

RATE = "optim.lr"


@dataclass(frozen=True)
class Variant:
    """A configuration of the sweep, without its seeds."""

    cell: SweepCell  # with its experts
    values: Mapping[str, Any]  # of those keys of --set that matter to the cell's model

    @property
    def name(self) -> str:
        words = [_word(key, value) for key, value in self.values.items()]
        return "-".join([self.cell.name, *words])


def shapes_of(design: Design) -> list[Shape]:
    """The combinations of those varied keys for whose values widths are solved."""
    varied = {
        name: design.varied[f"model.{name}"]
        for name in SHAPING
        if f"model.{name}" in design.varied
    }
    return [
        dict(zip(varied, values, strict=True)) for values in product(*varied.values())
    ]


def plan_runs(
    cells: Sequence[SweepCell], design: Design, shared: Settings
) -> list[PlannedRun]:
    """Every cell with every combination of the settings that matter to it; writes
    nothing.

    All have the settings `shared`. The first seed of all configurations comes first: a
    sweep that is stopped early has compared all of them once.
    """
    variants = _variants(cells, design)
    runs = [
        _planned_run(variant, seed, design, shared)
        for seed in design.seeds
        for variant in variants
    ]
    for run in runs[: len(variants)]:  # the first seed's
        import_classes(run.settings.model, allowed=True)
    return runs


def _variants(cells: Sequence[SweepCell], design: Design) -> list[Variant]:
    """Raises UserError for two variants of one name, and for a name too long for a
    recipe."""
    found: dict[str, Variant] = {}
    for cell, combination in product(cells, product(*design.varied.values())):
        values = dict(zip(design.varied, combination, strict=True))
        if any(values[f"model.{name}"] != cell.shape[name] for name in cell.shape):
            continue  # its widths were solved for another value

        model = _model_of(cell, values, design.recipe)
        own = _own_values(cell, values, model, design.varied)
        variant = Variant(_with_experts(replace(cell, shape={}), model), own)
        # By its text: True equals 1, but is another setting.
        found.setdefault(repr(variant), variant)

    variants = list(found.values())
    for name, times in Counter(variant.name for variant in variants).items():
        if times > 1:
            raise UserError(
                f"{times} configurations would have the name '{name}'; leave some out"
            )
        if len(name.encode()) > LONGEST_NAME:
            raise UserError(
                f"a configuration's name '{name:.60}...' has {len(name.encode())} "
                f"bytes, above {LONGEST_NAME}; give --set fewer keys or shorter "
                "values, or run a sweep for each value of a key, given without --set"
            )
    return variants


def _own_values(
    cell: SweepCell, values: Mapping[str, Any], model: ModelConfig, varied: Varied
) -> dict[str, Any]:
    """The values of those keys that matter to a cell's model and are not the cell's."""
    own = {}
    for key, value in values.items():
        is_of_cell = key.removeprefix("model.") in cell.model
        if is_of_cell or not has_effect(key, model):
            continue

        if not isinstance(value, Mapping):
            own[key] = value
            continue

        # Such as `gate: 0.5` of optim.lr_scale, which a model without gates lacks. The
        # key varies if any of its mappings has an entry that matters.
        mappings = [each for each in varied[key] if isinstance(each, Mapping)]
        if any(_with_effect(key, each, model) for each in mappings):
            own[key] = _with_effect(key, value, model)
    return own


def _with_effect(
    key: str, value: Mapping[str, Any], model: ModelConfig
) -> dict[str, Any]:
    """The entries of a mapping, such as `gate` of `optim.lr_scale`, that have an
    effect."""
    return {
        entry: part
        for entry, part in value.items()
        if has_effect(f"{key}.{entry}", model)
    }


def _planned_run(
    variant: Variant, seed: int, design: Design, shared: Settings
) -> PlannedRun:
    name = variant.name
    recipe = design.recipe
    if RATE in variant.values:
        recipe = _with_rate(recipe, shared, float(variant.values[RATE]))
    for key, value in variant.values.items():
        if key != RATE:  # set already, with the rates at both ends
            recipe = merge(recipe, nested(key, value))

    run = {
        "recipe": name,
        "name": f"seed_{seed}",
        "dir": str(design.out / "runs"),
        "budget": variant.cell.budget,
    }
    own = {"model": variant.cell.model, "seed_everything": seed, "run": run}
    recipe = merge(recipe, own)

    files = files_of(design.out, name, seed)
    return PlannedRun(
        files.folder,
        settings_from(recipe),
        configuration=name,
        cell=variant.cell,
        varied=variant.values,
        recipe=recipe,
        path=files.recipe,
        log=files.log,
    )


def _model_of(
    cell: SweepCell, values: Mapping[str, Any], recipe: Recipe
) -> ModelConfig:
    """The cell's model, with its own experts, or the recipe's, where it has a wide
    path."""
    varied = {
        name: values[f"model.{name}"]
        for name in ("n_experts", "top_k", *SHAPING)
        if f"model.{name}" in values
    }
    section = merge(recipe, {"model": varied | cell.model})["model"]

    kinds = section["block"]
    n = section.get("n_experts", 0)
    if cell.family == "expanded" and isinstance(n, list):
        raise UserError(
            "model.n_experts is a list by layer, and expanded models have more layers; "
            "leave expanded out of --controls"
        )
    # A loop block has no wide path, and so no experts.
    if kinds == "loop":
        section["n_experts"] = 0
    elif "loop" in kinds and isinstance(n, int):  # a list of kinds
        section["n_experts"] = [0 if kind == "loop" else n for kind in kinds]
    return settings_from({"model": section}).model


def _with_experts(cell: SweepCell, model: ModelConfig) -> SweepCell:
    """The cell with the experts of its model, and the share of the budget that they
    spend."""
    counted = "linear_total" if cell.match == "linear" else "total"
    sparse = count.mean_layer_flops(model)[counted]
    dense = count.mean_layer_flops(replace(model, n_experts=0))[counted]
    return replace(
        cell,
        model=cell.model | {"n_experts": model.n_experts},
        spent=cell.spent * sparse / dense,
    )


def _word(key: str, value: Any) -> str:
    """A setting as part of a name: `gate_convex`, `lr_scale_gate_0.5`, pairs as
    `0_1+0.5_4`."""
    if isinstance(value, dict):
        value = list(value.items())

    if value is None or isinstance(value, bool):
        text = json.dumps(value)  # as a recipe has it
    elif isinstance(value, list):
        text = "+".join(map(_part_of_word, value))
    else:
        text = str(value)

    name = key.partition(".")[2].replace(".", "_")
    return f"{name}_" + re.sub(r"[^\w.+-]", "_", text)


def _part_of_word(part: Any) -> str:
    """A value, or a pair such as `(0.5, 4)` as `0.5_4`."""
    return re.sub("[][()']", "", str(part)).replace(", ", "_")


def _with_rate(recipe: Recipe, settings: Settings, lr: float) -> Recipe:
    """A recipe at another peak rate; the rates at both ends and Muon's keep their ratio
    to it."""
    optim = settings.optim
    names = ["lr_start", "lr_end"]
    if optim.muon_lr is not None:
        names.append("muon_lr")

    rates = {"lr": lr}
    for name in names:
        scaled = getattr(optim, name) * lr / optim.lr
        rates[name] = float(f"{scaled:.6g}")
    return merge(recipe, {"optim": rates})
