"""Runs, read once from their folders: settings, scores after the last step, speed,
data."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, harmonic_mean, median
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import near_sibling, read_text
from dualpath_cli.flops import count
from dualpath_cli.recipe.keys import has_effect
from dualpath_cli.recipe.schedule import loop_counts, step_loops
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run.exported_folder import is_exported
from dualpath_cli.run.run_folder import (
    RECIPE,
    TOKENIZER,
    decisive_part,
    facts_now,
    mapping_of,
    read_recipe,
    settings_of_parts,
)
from dualpath_cli.run.tables import (
    METRICS,
    ROUTING,
    VALIDATION,
    TableRow,
    lost,
    read_table,
)

AGGREGATE = "aggregate"  # the mean of a run's validation sets
MOST_POINTS = 200  # points of a curve; of more rows each point is a mean

SPELLINGS: Mapping[Any, str] = {32: "32-true", 64: "64-true", "bf16": "bf16-mixed"}
"""Lightning's full names of precisions, by their short ones."""

CurvePoint = tuple[float, float, float]  # tokens, loss in nats per token, hours


@dataclass(frozen=True, eq=False)
class SeededRun:
    """A run of a configuration: planned by a sweep, or trained."""

    folder: Path
    settings: Settings

    @property
    def seed(self) -> int:
        return self.settings.seed_everything

    @property
    def tokens(self) -> int:
        """Training tokens: those of whole optimizer steps."""
        return self.settings.run.trained_tokens

    @property
    def flops(self) -> float:
        """FLOPs of the whole training."""
        run = self.settings.run
        counted = count.training_flops_of(run)
        each = count.over_loops(counted, self.settings.model, loop_counts(run))
        return each * self.tokens


@dataclass(frozen=True, eq=False)
class TrainedRun(SeededRun):
    """A run that has reached its last step."""

    # `decisive_values`: two configurations differ in some of them
    key_values: dict[str, Any]
    # bits per byte at the end by set, with `aggregate`, their mean
    scores: dict[str, float]
    tokens_per_second: float
    """Median over the rows of metrics.csv. Under a schedule of loops the harmonic mean
    of the phases' medians."""
    curve: tuple[CurvePoint, ...]
    # by the router, mean over looped layers, as last logged
    expected_loops: float | None
    data: dict[str, str | float]
    """The data that the run read, by name; comparable runs have the same."""
    lost: tuple[str, ...] = ()  # lines on rows that its tables lack
    rate: float = 0  # the learning rate, where the best one is chosen
    diverged: tuple[float, ...] = ()
    """Learning rates at which runs went wrong that differ only in rate and seed."""


def find_folders(paths: Sequence[str]) -> list[Path]:
    """The run folders that some paths mean, each once, in the order of the paths."""
    found: list[Path] = []
    for path in map(Path, paths):
        recipes = _recipes_in(path)
        if not recipes:
            raise UserError(f"no run at '{path}'{_hint(path)}")
        found += [recipe.parent for recipe in recipes]
    return list({folder.resolve(): folder for folder in found}.values())


def _recipes_in(path: Path) -> list[Path]:
    """The recipe of a run, or those of a folder of runs."""
    if (path / RECIPE).is_file():
        return [path / RECIPE]
    if of_sweep := sorted(path.glob(f"runs/*/*/{RECIPE}")):
        return of_sweep

    # of fit, or of fit's runs of one recipe; an exported folder, or what lies inside a
    # run's folder, is not another run
    found = [*path.glob(f"*/{RECIPE}"), *path.glob(f"*/*/{RECIPE}")]
    return sorted(
        recipe
        for recipe in found
        if not (recipe.parents[1] / RECIPE).is_file() and not is_exported(recipe.parent)
    )


def _hint(path: Path) -> str:
    if not path.exists() and (meant := near_sibling(path)):
        return meant
    return (
        f"; a run folder holds {RECIPE}, a folder of runs NAME, RECIPE/NAME or "
        "runs/RECIPE/NAME"
    )


def read_trained_run(folder: Path) -> TrainedRun | str:
    """Reads a run folder. Of an unfinished run, returns the step it has reached, in
    words.

    Raises UserError for a damaged file.
    """
    settings = settings_of(folder)
    sets = settings.data.val

    # The run may be training meanwhile: a last step that is validated has its rows in
    # all tables, so validation.csv is read first.
    last = settings.run.steps
    validation = read_table(folder / VALIDATION)
    final = {row["set"]: row for row in validation if row.step == last}
    rows = read_table(folder / METRICS)
    routing = read_table(folder / ROUTING)

    unscored = sorted(set(sets) - final.keys())
    if unscored or not rows:
        return _reached(rows, last, unscored)

    scores = {name: final[name].measured("bits_per_byte") for name in sets}
    _check_finite(folder / VALIDATION, last, scores)
    facts = facts_now(folder)
    data = _data(folder, settings, facts)
    # Of a data folder the loss counts end-of-text too, but its fingerprint is known.
    texts = {name: final[name] for name in sets if f"validation set {name}" not in data}
    data |= _bytes_per_token(texts)

    tables = {METRICS: rows, ROUTING: routing}
    return TrainedRun(
        folder,
        settings,
        key_values=decisive_values(settings, mapping_of(folder, facts, "classes")),
        scores={AGGREGATE: fmean(scores.values()), **scores},
        tokens_per_second=_speed(rows, settings),
        curve=_curve(rows),
        expected_loops=_expected_loops(routing),
        data=data,
        lost=tuple(lost(folder, settings, last, tables)),
    )


def settings_of(folder: Path) -> Settings:
    """The settings of a run with validation sets that can be compared: of its first
    part, and of its newest one the section data, by which the last step was scored."""
    try:
        first = settings_from(read_recipe(folder))
        *_, newest = settings_of_parts(folder, first).values()
        settings = replace(first, data=newest.data)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None

    sets = settings.data.val
    if not sets:
        raise UserError(
            f"run '{folder}' has no validation set to compare; leave it out"
        )
    if AGGREGATE in sets:
        raise UserError(
            f"run '{folder}' has a validation set '{AGGREGATE}', as their mean is "
            "called"
        )
    return settings


def _reached(rows: Sequence[TableRow], last: int, unscored: Sequence[str]) -> str:
    """The step that an unfinished run has reached, and what it lacks at its last
    one."""
    reached = rows[-1].step if rows else 0
    words = f"step {reached:,} of {last:,}"
    if not unscored:
        return f"{words}: {METRICS} has no rows"
    if reached == last:
        return f"{words}: {VALIDATION} has no row of {', '.join(unscored)}"
    return words


def _check_finite(table: Path, step: int, scores: Mapping[str, float]) -> None:
    for name, score in scores.items():
        if not math.isfinite(score):
            raise UserError(
                f"{table} step {step}: {name} has {score} bits per byte; leave it out"
            )


def _speed(rows: Sequence[TableRow], settings: Settings) -> float:
    loops = step_loops(settings.run)
    phases: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        phase = () if loops is None else loops.choices(row.step - 1)
        phases.setdefault(phase, []).append(row.number("tokens_per_second"))

    # Rows have equally many tokens: this is all tokens over their time.
    medians = [median(speeds) for speeds in phases.values()]
    lengths = [len(speeds) for speeds in phases.values()]
    return harmonic_mean(medians, weights=lengths)


def _curve(rows: Sequence[TableRow]) -> tuple[CurvePoint, ...]:
    size = math.ceil(len(rows) / MOST_POINTS)

    # Parts of equally many rows, so that the points of all seeds have the same tokens.
    curve = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        losses = [row.measured("loss") for row in part]
        # nan where every micro-batch was left out
        known = [loss for loss in losses if not math.isnan(loss)]
        if known:
            tokens = part[-1].number("tokens")
            hours = part[-1].number("seconds") / 3600
            curve.append((tokens, fmean(known), hours))
    return tuple(curve)


def _expected_loops(rows: Sequence[TableRow]) -> float | None:
    last = [row for row in rows if row.step == rows[-1].step]
    values = [
        row.number("expected_loops") for row in last if row.text("expected_loops")
    ]
    return fmean(values) if values else None


def decisive_values(
    settings: Settings, classes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values that decide a run's numbers, but for the seed, by dotted key.

    Two runs with equal values belong to one configuration. The sources of custom
    `classes` are among the values; keys without effect on the model's blocks are not.
    """
    recipe = settings.as_recipe()
    recipe["run"]["max_tokens"] = settings.run.trained_tokens
    part = decisive_part(recipe)

    trainer = recipe["trainer"]
    precision = trainer["precision"]
    part["trainer"] = {"precision": SPELLINGS.get(precision, precision)}
    # Of Lightning's classes, these may change numbers.
    for name in ("callbacks", "plugins"):
        given = trainer[name]
        if given:  # one class may be given without a list
            part["trainer"][name] = given if isinstance(given, list) else [given]

    if classes:
        part["model"]["classes"] = dict(classes)

    names = ("seed_everything", "run.recipe")
    return {
        key: value
        for key, value in _flat(part).items()
        if key not in names
        and has_effect(key, settings.model, settings.run)
        # An empty mapping is as good as one whose entries have no effect.
        and value != {}
    }


def _flat(recipe: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key, in the keys' order."""
    found: dict[str, Any] = {}
    for name, value in sorted(recipe.items()):
        key = f"{before}{name}"
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{key}.")
        else:
            found[key] = value
    return found


def _data(
    folder: Path, settings: Settings, facts: dict[str, Any]
) -> dict[str, str | float]:
    """The data by name; no run folder keeps validation texts, so these have names and
    sizes."""
    sets = sorted(settings.data.validation_sets.items())
    data: dict[str, str | float] = {
        "validation sets": ", ".join(f"{name}={its.public_name}" for name, its in sets),
        "data.val_tokens": str(settings.data.val_tokens),
        "data.val_seed": str(settings.data.val_seed),
        "training data": str(facts.get("data_fingerprint", "not known"))[:12],
        "first step on these data": str(facts.get("data_since", 0)),
    }

    # Only data folders have fingerprints.
    for name, fingerprint in mapping_of(folder, facts, "val_fingerprints").items():
        data[f"validation set {name}"] = str(fingerprint)[:12]

    # A folder that was kept only for its numbers has no tokenizer.
    tokenizer = folder / TOKENIZER
    if tokenizer.exists():
        digest = hashlib.sha256(read_text(tokenizer).encode()).hexdigest()
        data["tokenizer"] = digest[:12]
    return data


def _bytes_per_token(rows: Mapping[str, TableRow]) -> dict[str, float]:
    """Nats per token over nats per byte, by which a text is known; from the row of each
    text."""
    found = {}
    for name, row in rows.items():
        score = row.measured("bits_per_byte")
        length = row.measured("loss") / (score or math.inf) / math.log(2)
        found[f"bytes a token of {name}"] = length
    return found


def check_same_data(runs: Sequence[TrainedRun]) -> None:
    """Raises UserError for two runs whose data differ."""
    first: dict[str, TrainedRun] = {}
    for run in runs:
        for name, here in run.data.items():
            other = first.setdefault(name, run)
            there = other.data[name]
            if other is run or _same(here, there):
                continue
            raise UserError(
                f"{other.folder} and {run.folder} cannot be compared: {name} "
                f"{_shown(there)} there, {_shown(here)} here; leave one of them out"
            )


def _same(here: str | float, there: str | float) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return math.isclose(here, there, rel_tol=1e-4)  # of the digits of a table
    return here == there


def _shown(value: str | float) -> str:
    return f"{value:.4f}" if isinstance(value, float) else value
