"""Runs as configurations, which differ in more than their seed, and these in tables of one budget.

All is derived from the runs' own recipes, so that runs of a sweep and others are treated alike.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from statistics import fmean, median, stdev
from typing import Any, Literal

import numpy as np

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.rates import lowest
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.flops import count
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.spec.config import ModelConfig

Family = Literal["wide", "expanded", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "loop", "dual")
"""In the order of tables. expanded is a wide model with more layers than others of its budget."""

RATES = {f"optim.{name}" for name in ("lr", "lr_start", "lr_end", "muon_lr")}
"""Those that a sweep scales with optim.lr."""

Frame = Mapping[float, Mapping[int, TrainedRun]]
"""A configuration's runs by learning rate and seed; the rate is 0 where it is not chosen."""


@dataclass(frozen=True)
class Configuration:
    """The model and settings of one row of the table."""

    name: str
    family: Family
    alpha: float | None  # percent of both paths' FLOPs that the deep one has; None for one path
    loops: int | None  # K; None without a deep path
    layers: int
    tokens: int  # training tokens
    parameters: int
    flops_linear: float  # per token, and layer of the models with the fewest layers
    flops_total: float  # the same with router and attention scores
    flops_trained: float  # `flops_total`, mean over steps, if these run fewer loops or others
    kv_bytes: int  # keys and values of a token in all layers, in bf16
    scores: Mapping[str, Mapping[int, float]]  # bits per byte by measure and seed
    seconds_per_token: float  # of training, the median of the runs' medians
    active: int  # parameters that a token uses: all of them without experts
    place: int | None = None  # the only layer with a deep path, where all others are wide
    expected_loops: float | None = None  # mean of runs; near 1, the loops paid for go unused
    frame: Frame = field(default_factory=dict)  # its runs
    best_rate: float | None = None  # where several were trained
    edge: str = ""  # a line where that is the lowest or highest one trained: then nothing is tested

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(next(iter(self.scores.values())))

    @property
    def runs(self) -> tuple[TrainedRun, ...]:
        """In the order of their seeds; of several rates those at the nearest to the best."""
        best = self.best_rate
        nearest = min(self.frame, key=lambda rate: abs(log(rate / best)) if best else 0, default=0)
        return tuple(self.frame.get(nearest, {}).values())

    @property
    def hours(self) -> float:
        return self.tokens * self.seconds_per_token / 3600

    def mean(self, measure: str) -> float:
        return fmean(self.scores[measure].values())

    def standard_error(self, measure: str) -> float | None:
        """Standard error of the mean over seeds; None for one seed."""
        values = list(self.scores[measure].values())
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


@dataclass(frozen=True)
class Group:
    """Configurations of one budget, to three digits, and usually as many training tokens."""

    name: str
    measures: tuple[str, ...]  # the aggregate first
    configurations: tuple[Configuration, ...]
    wide: Configuration | None  # the configuration that parameters and time are relative to
    baselines: tuple[Configuration, ...] = ()  # for the tests; figures take the first
    pairs: tuple[tuple[Configuration, Configuration], ...] = ()  # the only tests, in this order
    note: str = ""  # why there is no baseline


def _configuration(name: str, frame: Frame, fewest: int) -> Configuration:
    runs = tuple(run for by_seed in frame.values() for run in by_seed.values())
    model, steps = runs[0].settings.model, loop_counts(runs[0].settings.run)
    layers = count.flops_by_layer(model)
    kinds = set(model.block_kinds)
    family: Family = "dual" if "dual" in kinds else "loop"
    if kinds == {"wide"}:  # deeper than the shallowest of the budget, or as deep
        family = "expanded" if model.n_layers > fewest else "wide"
    deep = [n for n, kind in enumerate(model.block_kinds) if kind != "wide"]
    # Percent of the FLOPs of both paths, over all layers.
    of_deep, of_wide = sum(layer.deep for layer in layers), sum(layer.wide for layer in layers)
    logged = [run.expected_loops for run in runs if run.expected_loops is not None]
    found = Configuration(
        name, family,
        alpha=100 * of_deep / (of_deep + of_wide) if family == "dual" else None,
        loops=model.most_loops if family in ("dual", "loop") else None,
        layers=model.n_layers, tokens=runs[0].tokens, parameters=count.parameters(model),
        flops_linear=sum(layer.linear_total for layer in layers) / fewest,
        flops_total=_total(model) / fewest,
        flops_trained=count.over_loops(_total, model, steps) / fewest,
        kv_bytes=count.kv_bytes(model),
        scores={name: {run.seed: run.scores[name] for run in runs} for name in runs[0].scores},
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        place=deep[0] if len(deep) == 1 < model.n_layers else None,
        active=count.active_parameters(model),
        expected_loops=fmean(logged) if logged else None, frame=frame,
    )  # fmt: skip
    return _at_best_rate(found) if runs[0].rate else found


def _total(model: ModelConfig) -> int:
    return sum(layer.total for layer in count.flops_by_layer(model))


def _names(runs: Sequence[TrainedRun], by: Sequence[str]) -> list[str]:
    """The keys of `by`, or the recipe's name; where several have it with the run's, or the keys in
    which they differ."""
    recipes = Counter(run.settings.run.recipe for run in runs)
    own = Counter((run.settings.run.recipe, run.settings.run.name) for run in runs)
    names = []
    for run in runs:
        recipe, name = run.settings.run.recipe, run.settings.run.name
        keys = {key for other in runs if other.settings.run.recipe == recipe
                for key in _different(run, other)}  # fmt: skip
        found = recipe if recipes[recipe] == 1 else f"{recipe}/{name}"
        if own[recipe, name] > 1:
            found = f"{recipe} {_words(run.decisive, sorted(keys))}"
        names.append(_words(run.keys, by) if by else found)
    return names


def _words(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Such as `dual loops=4`, without commas, which separate names."""
    found = []
    for key in keys:
        value = settings.get(key)
        text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        if len(text) > 32:  # as the source of a class
            text = hashlib.sha256(text.encode()).hexdigest()[:8]
        found.append(text if isinstance(value, str) else f"{key.rpartition('.')[2]}={text}")
    return " ".join(found)


def _different(one: TrainedRun, other: TrainedRun) -> set[str]:
    """Keys of recipes by which two runs are two configurations."""
    ours, theirs = one.decisive, other.decisive
    return {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}


def _place_of(c: Configuration) -> tuple[int, float, int, int, str]:
    """Sorts rows as the paper's table does: by family, share of the deep path, loops."""
    place = -1 if c.place is None else c.place
    return FAMILIES.index(c.family), round(c.alpha or 0), c.loops or 0, place, c.name


def groups_of(
    runs: Sequence[TrainedRun],
    baselines: Sequence[str] = (),
    any_length: bool = False,
    by: Sequence[str] = (),
    best: bool = False,
    pairs: Sequence[Sequence[str]] = (),
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `any_length`: a group of each budget, whatever the number of tokens. `by`: keys of recipes; runs
    that have the same there are one configuration. `best`: so are those of several learning rates,
    with their scores at the best. `pairs`: names of configurations of one table.
    """
    if best:
        runs = [_without_rate(run) for run in runs]
    known = {key for run in runs for key in run.keys}
    for key in by:
        if key not in known:
            hint = did_you_mean(key, known) or "; dualpath fit --help-recipe lists the keys"
            raise UserError(f"--by: no recipe has the key '{key}'{hint}")
    tables: dict[tuple[int, int], dict[str, dict[float, dict[int, TrainedRun]]]] = {}
    for run in sorted(runs, key=lambda run: (run.rate, run.seed)):
        # A third of a budget, thrice, is the same budget.
        budget = int(float(f"{run.settings.run.budget or 0:.3g}"))
        table = tables.setdefault((budget, 0 if any_length else run.tokens), {})
        identity = json.dumps([run.keys.get(key) for key in by] if by else run.decisive)
        _add(table.setdefault(identity, {}), run)
    groups = [
        _group(budget, tokens, list(frames.values()), by)
        for (budget, tokens), frames in sorted(tables.items())
    ]
    names = {c.name for group in groups for c in group.configurations}
    option, asked = "--pairs", [name for pair in pairs for name in pair]
    if not pairs:
        option, asked = "--baseline", list(baselines)
    for name in asked:
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"
            raise UserError(f"no configuration '{name}' for {option}{hint}")
    if pairs:
        return _with_pairs(groups, pairs)
    return [_with_baselines(group, baselines) for group in groups]


def _add(frame: dict[float, dict[int, TrainedRun]], run: TrainedRun) -> None:
    """Refuses two runs of a seed in a configuration, and several models or lengths."""
    first = next((other for seeds in frame.values() for other in seeds.values()), run)
    other = frame.setdefault(run.rate, {}).setdefault(run.seed, run)
    if other is run:
        other = first
        if other.settings.model == run.settings.model and other.tokens == run.tokens:
            return
    if keys := ", ".join(sorted(_different(other, run))):
        raise UserError(
            f"--by makes one configuration of {other.folder} and {run.folder}; add a key in which "
            f"they differ: {keys}"
        )
    raise UserError(
        f"{other.folder} and {run.folder} are the same configuration with seed {run.seed}; leave "
        "one of them out"
    )


def _group(budget: int, tokens: int, frames: Sequence[Frame], by: Sequence[str]) -> Group:
    firsts = [next(iter(next(iter(frame.values())).values())) for frame in frames]
    fewest = min(run.settings.model.n_layers for run in firsts)
    configurations = [
        _configuration(name, frame, fewest)
        for name, frame in zip(_names(firsts, by), frames, strict=True)
    ]
    name = f"budget {format_size(budget)}" if budget else "no budget"
    wides = [c for c in configurations if c.family == "wide"]
    # Of several, the one that is called so, as `f4m_wide`.
    named = [c for c in wides if c.name.rpartition("_")[2] == "wide"] or wides
    return Group(
        f"{name}, {tokens:,} tokens" if tokens else name, tuple(firsts[0].scores),
        tuple(sorted(configurations, key=_place_of)), named[0] if len(named) == 1 else None,
    )  # fmt: skip


def _without_rate(run: TrainedRun) -> TrainedRun:
    """One that differs from those of other learning rates in `rate` alone."""
    recipe = re.sub(r"-lr_[\d.]+(e-?\d+)?", "", run.settings.run.recipe)  # as a sweep names it
    return replace(
        run, rate=run.settings.optim.lr,
        settings=replace(run.settings, run=replace(run.settings.run, recipe=recipe)),
        decisive={key: value for key, value in run.decisive.items() if key not in RATES},
    )  # fmt: skip


def _at_best_rate(c: Configuration) -> Configuration:
    """With its scores at the lowest point of a parabola over the log of the learning rate."""
    seeds, rates = sorted(set.intersection(*map(set, c.frame.values()))), list(c.frame)
    if len(rates) < 3 or not seeds:
        raise UserError(
            f"--best lr needs three learning rates of a seed in common; '{c.name}' has "
            f"{', '.join(f'{rate:g}' for rate in rates)}; train it at others, or leave it out"
        )
    scores = {
        name: np.array([[by[seed].scores[name] for by in c.frame.values()] for seed in seeds])
        for name in c.scores
    }
    means = scores[AGGREGATE].mean(0)
    at = int(means.argmin())
    edge = "" if 0 < at < len(rates) - 1 else (
        f"'{c.name}' is best at {rates[at]:g}, the edge of its learning rates, and is not tested; "
        f"train it at a {'higher' if at else 'lower'} one"
    )  # fmt: skip
    at = min(max(at, 1), len(rates) - 2)
    logs, near = np.log(rates), slice(at - 1, at + 2)
    place = float(lowest(logs, means)[0])
    at_best = {
        name: np.polyval(np.polyfit(logs[near], values[:, near].T, 2), place).tolist()
        for name, values in scores.items()
    }
    return replace(
        c, best_rate=float(np.exp(place)), edge=edge,
        scores={name: dict(zip(seeds, values, strict=True)) for name, values in at_best.items()},
    )  # fmt: skip


def _with_pairs(groups: Sequence[Group], pairs: Sequence[Sequence[str]]) -> list[Group]:
    names = {name for pair in pairs for name in pair}
    having = [group for group in groups if names <= {c.name for c in group.configurations}]
    if len(having) != 1:
        raise UserError(
            f"--pairs: {len(having)} of {len(groups)} tables have all of its configurations; give "
            "RUNs of one budget and number of tokens"
        )
    by_name = {c.name: c for c in having[0].configurations}
    found = tuple((by_name[one], by_name[other]) for one, other in pairs)
    return [
        replace(group, pairs=found, baselines=found[0][1:]) if group is having[0]
        else replace(group, note="no tests: --pairs are of another table")
        for group in groups
    ]  # fmt: skip


def _with_baselines(group: Group, names: Sequence[str]) -> Group:
    if not names:
        if group.wide is not None:
            return replace(group, baselines=(group.wide,))
        wides = [c.name for c in group.configurations if c.family == "wide"]
        found = f"{len(wides)} PureWide, {', '.join(wides)}" if wides else "no PureWide"
        note = f"no tests: {found}; --baseline NAMES chooses what to test against"
        return replace(group, note=note)
    by_name = {c.name: c for c in group.configurations}
    chosen = tuple(by_name[name] for name in dict.fromkeys(names) if name in by_name)
    missing = ", ".join(f"'{name}'" for name in names if name not in by_name)
    note = f"no tests against {missing}: there is none here" if missing else ""
    wide = next((c for c in chosen if c.family == "wide"), group.wide)
    return replace(group, baselines=chosen, wide=wide, note=note)
