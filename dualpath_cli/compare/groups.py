"""Runs that differ in their seed alone are a configuration; configurations of a budget
are a group.

All of this is read from the runs' recipes, so runs of a sweep and of `fit` are treated
alike.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from statistics import fmean, median, stdev
from typing import Literal

import numpy as np

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.rates import lowest
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.flops import count
from dualpath_cli.recipe.keys import SCALED_RATES, has_effect
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.spec.config import ModelConfig

Family = Literal["wide", "expanded", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "loop", "dual")
"""In the order of tables. An expanded model is wide, with more layers than others of
its budget."""

Frame = Mapping[float, Mapping[int, TrainedRun]]
"""A configuration's runs by learning rate and seed; the rate is 0 where no best one is
chosen."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """The model and settings of one row of the table."""

    name: str
    family: Family
    # percent of both paths' FLOPs that the deep one has; None for one path
    alpha: float | None
    loops: int | None  # K; None without a deep path
    layers: int
    tokens: int  # training tokens
    parameters: int
    # per token and layer; of an expanded model over the layers of the others
    flops_linear: float
    flops_total: float  # the same with router and attention scores
    # mean of `flops_total` over steps, which may run other numbers of loops
    flops_trained: float
    kv_bytes: int  # keys and values of a token in all layers, in bf16
    scores: Mapping[str, Mapping[int, float]]  # bits per byte by measure and seed
    seconds_per_token: float  # of training, the median of the runs' medians
    active: int  # parameters that a token uses: all of them without experts
    # mean over runs; near 1, further loops go unused
    expected_loops: float | None = None
    frame: Frame = field(default_factory=dict)
    best_rate: float | None = None  # with --best lr
    # with --best lr, why the best rate may lie outside of the tried ones
    edge: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(next(iter(self.scores.values())))

    @property
    def runs(self) -> tuple[TrainedRun, ...]:
        """By seed; with --best lr those at the rate that is nearest to the best."""
        best = self.best_rate
        nearest = min(
            self.frame, key=lambda rate: abs(log(rate / best)) if best else 0, default=0
        )
        return tuple(self.frame.get(nearest, {}).values())

    @property
    def hours(self) -> float:
        return self.tokens * self.seconds_per_token / 3600

    def mean(self, measure: str) -> float:
        return fmean(self.scores[measure].values())

    def standard_error(self, measure: str) -> float | None:
        """None for one seed."""
        return mean_and_error(list(self.scores[measure].values()))[1]


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds, and its standard error, None for one seed."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return fmean(values), error


@dataclass(frozen=True)
class Group:
    """Configurations of one budget, to three digits, and usually of equally many
    tokens."""

    name: str
    measures: tuple[str, ...]  # the aggregate first
    configurations: tuple[Configuration, ...]
    wide: Configuration | None  # parameters and time are relative to this one
    baselines: tuple[Configuration, ...] = ()  # of the tests; figures take the first
    # the only tests, in this order
    pairs: tuple[tuple[Configuration, Configuration], ...] = ()
    # said without baselines
    untested: str = "--baseline NAMES chooses what to test against"


def groups_of(
    runs: Sequence[TrainedRun],
    baselines: Sequence[str] = (),
    any_length: bool = False,
    best: bool = False,
    pairs: Sequence[Sequence[str]] = (),
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `baselines` are names of configurations, or values in which they differ; `pairs` are
    names. `any_length` makes one group of each budget, for any number of tokens. `best`
    joins runs of several learning rates, with their scores at the best.
    """
    groups = [
        _group(*key, frames)
        for key, frames in frames_of(runs, any_length, best).items()
    ]
    if pairs:
        return _with_pairs(groups, pairs)
    if baselines:
        return _with_baselines(groups, baselines)
    return [
        replace(group, baselines=(group.wide,) if group.wide else ())
        for group in groups
    ]


def frames_of(
    runs: Sequence[TrainedRun], any_length: bool = False, best: bool = False
) -> dict[tuple[int, int], list[Frame]]:
    """The configurations' runs, by budget and number of tokens (0 with
    `any_length`)."""
    tables: dict[tuple[int, int], dict[str, dict[float, dict[int, TrainedRun]]]] = {}
    runs = [_without_rate(run) for run in runs] if best else runs
    for run in sorted(runs, key=lambda run: (run.rate, run.seed)):
        # To three digits: a third of a budget, thrice, is the same budget.
        budget = int(float(f"{run.settings.run.budget or 0:.3g}"))
        table = tables.setdefault((budget, 0 if any_length else run.tokens), {})
        frame = table.setdefault(json.dumps(run.keys), {})
        other = frame.setdefault(run.rate, {}).setdefault(run.seed, run)
        if other is not run:
            raise UserError(
                f"{other.folder} and {run.folder} are the same configuration with seed "
                f"{run.seed}; leave one of them out"
            )
    return {key: list(table.values()) for key, table in sorted(tables.items())}


def first_of(frame: Frame) -> TrainedRun:
    return next(iter(next(iter(frame.values())).values()))


def _without_rate(run: TrainedRun) -> TrainedRun:
    """The run with its learning rate in `rate` alone."""
    # as a sweep names it
    recipe = re.sub(r"-lr_[\d.]+(e-?\d+)?", "", run.settings.run.recipe)
    return replace(
        run,
        rate=run.settings.optim.lr,
        settings=replace(run.settings, run=replace(run.settings.run, recipe=recipe)),
        keys={key: value for key, value in run.keys.items() if key not in SCALED_RATES},
    )


def _group(budget: int, tokens: int, frames: Sequence[Frame]) -> Group:
    firsts = [first_of(frame) for frame in frames]
    fewest = min(run.settings.model.n_layers for run in firsts)
    configurations = [
        _configuration(name, frame, fewest)
        for name, frame in zip(_names(firsts), frames, strict=True)
    ]
    name = f"budget {format_size(budget)}" if budget else "no budget"
    wides = [c for c in configurations if c.family == "wide"]
    # Of several, the one that is called so, as `f4m_wide`.
    named = [c for c in wides if c.name.rpartition("_")[2] == "wide"] or wides
    return Group(
        f"{name}, {tokens:,} tokens" if tokens else name,
        tuple(firsts[0].scores),
        tuple(sorted(configurations, key=_place_of)),
        named[0] if len(named) == 1 else None,
    )


def _place_of(c: Configuration) -> tuple[int, float, int, list[int], str]:
    """Sorts rows as the paper's table does: by family, share of the deep path, loops;
    layers."""
    numbers = [int(digits) for digits in re.findall(r"_layer(\d+)", c.name)]
    return FAMILIES.index(c.family), round(c.alpha or 0), c.loops or 0, numbers, c.name


def _configuration(name: str, frame: Frame, fewest: int) -> Configuration:
    runs = [run for by_seed in frame.values() for run in by_seed.values()]
    model, steps = runs[0].settings.model, loop_counts(runs[0].settings.run)
    layers = count.flops_by_layer(model)
    kinds = set(model.block_kinds)
    family: Family = "dual" if "dual" in kinds else "loop"
    if kinds == {"wide"}:
        family = "expanded" if model.n_layers > fewest else "wide"
    of_deep, of_wide = (
        sum(layer.deep for layer in layers),
        sum(layer.wide for layer in layers),
    )
    logged = [run.expected_loops for run in runs if run.expected_loops is not None]
    found = Configuration(
        name,
        family,
        alpha=100 * of_deep / (of_deep + of_wide) if family == "dual" else None,
        loops=model.most_loops if kinds != {"wide"} else None,
        layers=model.n_layers,
        tokens=runs[0].tokens,
        parameters=count.parameters(model),
        flops_linear=sum(layer.linear_total for layer in layers) / fewest,
        flops_total=_total(model) / fewest,
        flops_trained=count.over_loops(_total, model, steps) / fewest,
        kv_bytes=count.kv_bytes(model),
        scores={
            name: {run.seed: run.scores[name] for run in runs}
            for name in runs[0].scores
        },
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        active=count.active_parameters(model),
        expected_loops=fmean(logged) if logged else None,
        frame=frame,
    )
    return _at_best_rate(found) if runs[0].rate else found


def _total(model: ModelConfig) -> int:
    return sum(layer.total for layer in count.flops_by_layer(model))


def _at_best_rate(c: Configuration) -> Configuration:
    """With its scores at the lowest point of a parabola over the log of the learning
    rate."""
    seeds, rates = _shared_seeds(c.frame), list(c.frame)
    if len(rates) < 3 or not seeds:
        raise UserError(
            f"--best lr needs three learning rates of a seed in common; '{c.name}' has "
            f"{', '.join(f'{rate:g}' for rate in rates)}; train it at others, or leave "
            "it out"
        )
    scores_KS = {
        name: np.array(
            [[by[seed].scores[name] for seed in seeds] for by in c.frame.values()]
        )
        for name in c.scores
    }
    means, logs = scores_KS[AGGREGATE].mean(1), np.log(rates)
    middle = min(max(int(means.argmin()), 1), len(rates) - 2)
    near = slice(middle - 1, middle + 2)
    place = float(lowest(logs, means)[0])
    at_best = {
        name: np.polyval(np.polyfit(logs[near], values[near], 2), place).tolist()
        for name, values in scores_KS.items()
    }
    return replace(
        c,
        best_rate=float(np.exp(place)),
        edge=edge_of(c.frame),
        scores={
            name: dict(zip(seeds, values, strict=True))
            for name, values in at_best.items()
        },
    )


def _shared_seeds(frame: Frame) -> list[int]:
    return sorted(set.intersection(*map(set, frame.values())))


def edge_of(frame: Frame) -> str:
    """Says that the rate with the lowest mean is the lowest or highest one; else
    empty."""
    seeds, rates = _shared_seeds(frame), sorted(frame)
    if len(rates) < 2 or not seeds:
        return ""
    best = min(
        rates, key=lambda rate: fmean(frame[rate][s].scores[AGGREGATE] for s in seeds)
    )
    edges = {rates[0]: ("lowest", "lower"), rates[-1]: ("highest", "higher")}
    edge, further = edges.get(best, ("", ""))
    return (
        f"best at {best:g}, its {edge} learning rate; train it at a {further} one"
        if edge
        else ""
    )


def _names(runs: Sequence[TrainedRun]) -> list[str]:
    """The recipe's name. Where several runs have one name, the run's name follows, or
    the values in which they differ."""
    names = []
    for run in runs:
        recipe, name = run.settings.run.recipe, run.settings.run.name
        alike = [other for other in runs if other.settings.run.recipe == recipe]
        own = {other.settings.run.name for other in alike}
        keys = sorted({key for other in alike for key in _different(run, other)})
        if len(own) < len(alike):
            names.append(" ".join([recipe, *(word_of(run, key) for key in keys)]))
        else:
            names.append(recipe if len(alike) == 1 else f"{recipe}/{name}")
    return names


def _different(one: TrainedRun, other: TrainedRun) -> set[str]:
    keys = one.keys.keys() | other.keys.keys()
    return {key for key in keys if one.keys.get(key) != other.keys.get(key)}


def word_of(run: TrainedRun, key: str) -> str:
    """A value of a recipe: `two_gates`, or with its key, `loops=4`. Commas would
    separate names."""
    value = run.keys.get(key)
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    if len(text) > 32:  # as the source of a class
        text = hashlib.sha256(text.encode()).hexdigest()[:8]
    return text if isinstance(value, str) else f"{key.rpartition('.')[2]}={text}"


def _with_pairs(groups: Sequence[Group], pairs: Sequence[Sequence[str]]) -> list[Group]:
    names = {name for pair in pairs for name in pair}
    _check_known(
        "--pairs", names, {c.name for group in groups for c in group.configurations}
    )
    having = [
        group for group in groups if names <= {c.name for c in group.configurations}
    ]
    if len(having) != 1:
        raise UserError(
            f"--pairs: {len(having)} of {len(groups)} tables have all of its "
            "configurations; give RUNs of one budget and number of tokens"
        )
    by_name = {c.name: c for c in having[0].configurations}
    found = tuple((by_name[one], by_name[other]) for one, other in pairs)
    tested = replace(having[0], pairs=found, baselines=found[0][1:])
    others = "--pairs names configurations of another table"
    return [tested if g is having[0] else replace(g, untested=others) for g in groups]


def _check_known(option: str, asked: Collection[str], known: Collection[str]) -> None:
    for name in asked:
        if name not in known:
            hint = (
                did_you_mean(name, known) or f"; there are {', '.join(sorted(known))}"
            )
            raise UserError(f"no configuration '{name}' for {option}{hint}")


def _with_baselines(groups: Sequence[Group], asked: Sequence[str]) -> list[Group]:
    """The groups with their baselines. A word that is no name is a value in which runs
    differ."""
    every = [c for group in groups for c in group.configurations]
    firsts = {c: first_of(c.frame) for c in every}
    keys = {key for run in firsts.values() for key in _different(firsts[every[0]], run)}
    words = {
        c: {word_of(run, key) for key in keys if has_effect(key, run.settings.model)}
        for c, run in firsts.items()
    }
    names = {c.name for c in every}
    _check_known("--baseline", asked, names.union(*words.values()))
    found = []
    for group in groups:
        chosen = [
            c
            for word in dict.fromkeys(asked)
            for c in group.configurations
            if word == c.name or (word not in names and word in words[c])
        ]
        wide = next((c for c in chosen if c.family == "wide"), group.wide)
        found.append(
            replace(
                group,
                baselines=tuple(dict.fromkeys(chosen)),
                wide=wide,
                untested="no configuration of --baseline is in this table",
            )
        )
    return found
