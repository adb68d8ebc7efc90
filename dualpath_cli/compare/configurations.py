"""Runs that differ only in their seed are a configuration; configurations of a budget
are a group.

All of this is read from the runs' recipes, so runs of a sweep and of `fit` are treated
alike. With `best`, runs that differ in their learning rate are one configuration, too,
whose scores are those at its best rate.
"""

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median, stdev
from typing import Literal, TypeVar

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.compare.tried_rates import (
    edge_of,
    rates_of,
    scores_at_best_rate,
    without_diverged_rates,
    without_rate,
)
from dualpath_cli.flops import count
from dualpath_cli.recipe.keys import has_effect
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec.config import ModelConfig

Family = Literal["wide", "expanded", "core", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "core", "loop", "dual")
"""In the order of tables. An expanded model is wide, with more layers than others of
its budget; one of family core is wide, with a stretch of layers that is repeated."""

SEED_NAME = re.compile(r"seed_\d+")  # as a sweep names its runs

MOST_CHARACTERS = 32  # of a value in a name; a hash stands for longer ones

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Configuration:
    """The model and settings of one row of the table."""

    name: str
    family: Family
    # percent of both paths' FLOPs that the deep one has; None for one path
    alpha: float | None
    # the same of configured widths, which Eq. heff has not rounded up
    configured_alpha: float | None
    loops: int | None  # K; None without a deep path
    layers: int
    tokens: int  # training tokens
    parameters: int
    # per token and layer; of an expanded model over the layers of the others
    flops_linear: float
    flops_total: float  # the same with router and attention scores
    # of training, as forward passes: the mean over steps, which may run other numbers
    # of loops, or train only the last
    flops_trained: float
    kv_bytes: int  # keys and values of a token in all layers, in bf16
    # bits per byte by set and seed; with --best lr at the best rate
    scores: Mapping[str, Mapping[int, float]]
    seconds_per_token: float  # of training, the median of the runs' medians
    active: int  # parameters that a token uses: all of them without experts
    all_runs: tuple[TrainedRun, ...] = ()  # by learning rate and seed
    best_rate: float | None = None  # with --best lr
    # with --best lr, why the best rate may lie outside of the tried ones
    edge: str = ""
    # with --best lr, rates that are left out, as runs went wrong there
    diverged: tuple[float, ...] = ()
    # layers that are repeated, and how repetitions are joined: 4-11 linear
    core: str | None = None
    core_loops: int | None = None  # R; None without a core
    steps: str | None = None  # where steps of deep paths share other than usual

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.scores[AGGREGATE])

    @property
    def runs(self) -> tuple[TrainedRun, ...]:
        """By seed; with --best lr those at the rate that is nearest to the best."""
        if self.best_rate is None:
            return self.all_runs

        best = self.best_rate
        nearest = min(rates_of(self.all_runs), key=lambda rate: abs(log(rate / best)))
        return tuple(run for run in self.all_runs if run.rate == nearest)

    @property
    def share(self) -> float | None:
        """The alpha that widths were solved for, in steps of 2.5 %.

        Solved widths miss it by a different amount at each budget, seldom by more than
        one percentage point. Effective widths may add three: the paper solved in
        multiples of 64, and rounds up to 256.
        """
        alpha = self.configured_alpha
        return None if alpha is None else 2.5 * round(alpha / 2.5)

    @property
    def expected_loops(self) -> float | None:
        """The mean over runs; near 1, further loops go unused."""
        logged = [run.expected_loops for run in self.runs]
        known = [loops for loops in logged if loops is not None]
        return fmean(known) if known else None

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
    # printed without baselines
    untested: str = "--baseline NAMES chooses what to test against"


@dataclass(frozen=True)
class Siblings:
    """The runs of one configuration, by learning rate and seed."""

    budget: int  # to three digits
    tokens: int  # of training; 0 where runs of any length are compared
    runs: tuple[TrainedRun, ...]


def group_runs(
    runs: Sequence[TrainedRun], any_length: bool = False, best: bool = False
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `any_length` makes one group of each budget, for any number of tokens. `best` joins
    runs of several learning rates, with their scores at the best.
    """
    siblings = siblings_of(runs, any_length, best)
    by_group = partition(siblings, lambda its: (its.budget, its.tokens))
    return [
        _group(budget, tokens, members)
        for (budget, tokens), members in by_group.items()
    ]


def siblings_of(
    runs: Sequence[TrainedRun], any_length: bool = False, best: bool = False
) -> list[Siblings]:
    """The runs of each configuration, by budget and number of tokens.

    Raises UserError for two runs of a configuration with one seed.
    """
    if best:
        runs = [without_rate(run) for run in runs]

    def key_of(run: TrainedRun) -> tuple[int, int, str]:
        tokens = 0 if any_length else run.tokens
        return _budget_of(run), tokens, json.dumps(run.key_values)

    # Rates and seeds ascend in every configuration.
    in_order = sorted(runs, key=lambda run: (run.rate, run.seed))
    found = []
    for (budget, tokens, _), alike in partition(in_order, key_of).items():
        _check_seeds_differ(alike)
        found.append(Siblings(budget, tokens, tuple(alike)))
    return sorted(found, key=lambda its: (its.budget, its.tokens))


def _budget_of(run: TrainedRun) -> int:
    """The budget to three digits, so that three times its third is the same budget."""
    budget = run.settings.run.budget or 0
    return int(float(f"{budget:.3g}"))


def partition(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their keys; keys and items in the order in which they come."""
    parts: dict[K, list[T]] = {}
    for item in items:
        parts.setdefault(key(item), []).append(item)
    return parts


def _check_seeds_differ(alike: Sequence[TrainedRun]) -> None:
    seen: dict[tuple[float, int], TrainedRun] = {}
    for run in alike:
        other = seen.setdefault((run.rate, run.seed), run)
        if other is not run:
            raise UserError(
                f"{other.folder} and {run.folder} are the same configuration with seed "
                f"{run.seed}; leave one of them out (a folder in a sweep's runs/ is a "
                "RUN, too)"
            )


def _group(budget: int, tokens: int, members: Sequence[Siblings]) -> Group:
    firsts = [siblings.runs[0] for siblings in members]
    layers = [run.settings.model.n_layers for run in firsts]
    if budget:
        # A deeper model is a shallower one of the same FLOPs, expanded.
        layers = [min(layers)] * len(layers)
    configurations = [
        _configuration(name, siblings.runs, its_layers)
        for name, siblings, its_layers in zip(
            _names(firsts), members, layers, strict=True
        )
    ]

    name = f"budget {format_size(budget)}" if budget else "no budget"
    if tokens:
        name += f", {tokens:,} tokens"

    # Of several PureWide models, the one that is called so: `f4m_wide`, `tiny/wide`.
    wides = [c for c in configurations if c.family == "wide"]
    named = [c for c in wides if re.split("[_/]", c.name)[-1] == "wide"] or wides
    return Group(
        name,
        measures=tuple(firsts[0].scores),
        configurations=tuple(sorted(configurations, key=_place_of)),
        wide=named[0] if len(named) == 1 else None,
    )


def _place_of(c: Configuration) -> tuple[int, float, int, int, list[int], str]:
    """Sorts rows as the paper's table does: by family, share of the deep path, loops;
    layers."""
    numbers = [int(digits) for digits in re.findall(r"_layer(\d+)", c.name)]
    return (
        FAMILIES.index(c.family),
        c.share or 0,
        c.loops or 0,
        c.core_loops or 0,
        numbers,
        c.name,
    )


def _configuration(
    name: str, runs: tuple[TrainedRun, ...], layers: int
) -> Configuration:
    """The runs as a row of tables, whose FLOPs are divided by `layers`."""
    model = runs[0].settings.model
    family = _family(model, layers)

    is_dual = family == "dual"
    linear = sum(layer.linear_total for layer in count.all_flops(model))

    # Runs have a rate of their own only with --best lr.
    best_rate: float | None = None
    edge = ""
    diverged: tuple[float, ...] = ()
    if runs[0].rate:
        diverged = runs[0].diverged
        runs = without_diverged_rates(runs)
        best_rate, scores = scores_at_best_rate(name, runs, diverged)
        edge = edge_of(runs)
    else:
        scores = {
            measure: {run.seed: run.scores[measure] for run in runs}
            for measure in runs[0].scores
        }

    return Configuration(
        name,
        family,
        alpha=_alpha(model) if is_dual else None,
        configured_alpha=_alpha(_as_configured(model)) if is_dual else None,
        loops=model.most_loops if family in ("loop", "dual") else None,
        core=_core(model),
        core_loops=None if model.core is None else model.core_loops,
        steps=_steps(model),
        layers=model.n_layers,
        tokens=runs[0].tokens,
        parameters=count.parameters(model),
        flops_linear=linear / layers,
        flops_total=count.total_flops(model) / layers,
        flops_trained=_trained_flops(runs[0].settings) / layers,
        kv_bytes=count.kv_bytes(model),
        scores=scores,
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        active=count.active_parameters(model),
        all_runs=runs,
        best_rate=best_rate,
        edge=edge,
        diverged=diverged,
    )


def _family(model: ModelConfig, layers: int) -> Family:
    kinds = set(model.block_kinds)
    if "dual" in kinds:
        return "dual"
    if "loop" in kinds:
        return "loop"
    if model.repeats_core:
        return "core"
    return "expanded" if model.n_layers > layers else "wide"


def _alpha(model: ModelConfig) -> float:
    """The deep paths' percent of the FLOPs of both paths, in all layers."""
    flops = count.all_flops(model)
    of_deep = sum(layer.deep for layer in flops)
    of_wide = sum(layer.wide for layer in flops)
    return 100 * of_deep / (of_deep + of_wide)


def _as_configured(model: ModelConfig) -> ModelConfig:
    """The model with effective widths that are not rounded up (Eq. heff).

    Experts have the FLOPs of the dense path in their place, which may be too narrow for
    them without the rounding, and so stands for them.
    """
    return replace(model, ffn_multiple_of=1, n_experts=0)


def _core(model: ModelConfig) -> str | None:
    """Such as `4-11`, or `4-11 linear router`."""
    if model.core is None:
        return None

    first, last = model.core
    words = [f"{first}-{last}"]
    if model.injection != "none":
        words.append(model.injection)
    if model.routes_core:
        words.append("router")
    return " ".join(words)


def _steps(model: ModelConfig) -> str | None:
    """Such as `untied, first k/v, no FFN`; None where steps share as usual."""
    several = [layer for layer in model.deep_layers if layer.loops > 1]

    words = []
    if any(layer.untied_steps for layer in several):
        words.append("untied")
    if any(layer.step_kv == "first" for layer in several):
        words.append("first k/v")
    if any(not layer.deep_ffn for layer in model.deep_layers):
        words.append("no FFN")
    return ", ".join(words) or None


def _trained_flops(settings: Settings) -> float:
    """FLOPs per token of training, as those of forward passes, without the head.

    The mean over steps. A step costs three forward passes if all gets gradients.
    """
    run = settings.run
    counted = count.training_flops_of(run)

    def as_forward(model: ModelConfig) -> float:
        heads = model.core_loops if run.loop_losses else 1
        return counted(model) / 3 - heads * count.head_flops(model)

    steps = loop_counts(run)
    return count.over_loops(as_forward, settings.model, steps)


def _names(runs: Sequence[TrainedRun]) -> list[str]:
    """A name for each configuration, by its first run."""
    of_recipe = partition(runs, lambda run: run.settings.run.recipe)
    return [_name_of(run, of_recipe[run.settings.run.recipe]) for run in runs]


def _name_of(run: TrainedRun, alike: Sequence[TrainedRun]) -> str:
    """The recipe's name. Where several configurations are `alike` in it, the run's name
    follows, or the values in which they differ: in a sweep a run's name is only its
    seed."""
    recipe = run.settings.run.recipe
    if len(alike) == 1:
        return recipe

    run_names = {other.settings.run.name for other in alike}
    all_differ = len(run_names) == len(alike)
    if all_differ and not any(map(SEED_NAME.fullmatch, run_names)):
        return f"{recipe}/{run.settings.run.name}"

    keys = {key for other in alike for key in different_keys(run, other)}
    words = [word_of(run, key) for key in sorted(keys)]
    return " ".join([recipe, *words])


def different_keys(one: TrainedRun, other: TrainedRun) -> set[str]:
    """The keys in which two runs differ: those that have an effect on both, if there
    are any."""
    keys = one.key_values.keys() | other.key_values.keys()
    differing = {
        key for key in keys if one.key_values.get(key) != other.key_values.get(key)
    }

    both = (one.settings, other.settings)
    shared = {
        key
        for key in differing
        if all(has_effect(key, each.model, each.run) for each in both)
    }
    return shared or differing


def word_of(run: TrainedRun, key: str) -> str:
    """A value of a recipe: `two_gates`, or with its key, `loops=4`."""
    value = run.key_values.get(key)
    text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
    # Commas would separate names, and colons the names of a pair.
    text = text.translate(str.maketrans("", "", ",:"))
    if len(text) > MOST_CHARACTERS:  # as the source of a class
        text = hashlib.sha256(text.encode()).hexdigest()[:8]
    return text if isinstance(value, str) else f"{key.rpartition('.')[2]}={text}"
