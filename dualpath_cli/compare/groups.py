"""Runs as configurations, which differ in more than their seed, and these in groups of one budget.

All is derived from the runs' own recipes, so that runs of a sweep and others are treated alike.
Groups are of one number of tokens, kind of matching, and PureWide: a sweep may match some
configurations in linear and others in total FLOPs, and may vary a setting of PureWide as of all
others; each part of a budget then has its own PureWide. The paper's 26 configurations are groups of
single runs.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.flops import count, paper
from dualpath_cli.ranges import format_size
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.sweep.cells import TOTAL

Family = Literal["wide", "expanded", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "loop", "dual")
"""In the order of tables. expanded is a wide model with more layers than others of its budget."""


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
    line: str  # dual ones of a line differ in loops and widths, not in alpha (whole percents)
    scores: Mapping[str, Mapping[int, float]]  # bits per byte by measure and seed
    seconds_per_token: float  # of training, the median of the runs' medians
    place: int | None = None  # the only layer with a deep path, where all others are wide
    active: int | None = None  # parameters that a token uses; None where it is all, without experts
    expected_loops: float | None = None  # mean of runs; near 1, the loops paid for go unused
    runs: tuple[TrainedRun, ...] = ()  # in the order of their seeds; empty for the paper's models

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(next(iter(self.scores.values())))

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
    quality: str  # the measure of the parameter-quality figure
    configurations: tuple[Configuration, ...]
    wide: Configuration | None  # the configuration that parameters and time are relative to
    baselines: tuple[Configuration, ...] = ()  # for the tests; figures take the first
    note: str = ""  # why there is no baseline, or what the numbers are


def _configuration(name: str, runs: tuple[TrainedRun, ...], fewest: int) -> Configuration:
    model, steps = runs[0].settings.model, loop_counts(runs[0].settings.run)
    layers = count.flops_by_layer(model)
    kinds = set(model.block_kinds)
    family: Family = "dual" if "dual" in kinds else "loop"
    if kinds == {"wide"}:  # deeper than the shallowest of the budget, or as deep
        family = "expanded" if model.n_layers > fewest else "wide"
    deep = [n for n, kind in enumerate(model.block_kinds) if kind != "wide"]
    # Percent of the FLOPs of both paths, over all layers.
    of_deep, of_wide = sum(layer.deep for layer in layers), sum(layer.wide for layer in layers)
    alpha = 100 * of_deep / (of_deep + of_wide)
    logged = [run.expected_loops for run in runs if run.expected_loops is not None]
    sparse = any(own.n_experts for own in model.layers)
    return Configuration(
        name, family,
        alpha=alpha if family == "dual" else None,
        loops=model.most_loops if family in ("dual", "loop") else None,
        layers=model.n_layers, tokens=runs[0].tokens, parameters=count.parameters(model),
        flops_linear=sum(layer.linear_total for layer in layers) / fewest,
        flops_total=_total(model) / fewest,
        flops_trained=count.over_loops(_total, model, steps) / fewest,
        kv_bytes=count.kv_bytes(model),
        line=_line(runs[0], alpha) if family == "dual" else name,
        scores={name: {run.seed: run.scores[name] for run in runs} for name in runs[0].scores},
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        place=deep[0] if len(deep) == 1 < model.n_layers else None,
        active=count.active_parameters(model) if sparse else None,
        expected_loops=fmean(logged) if logged else None, runs=runs,
    )  # fmt: skip


def _total(model: ModelConfig) -> int:
    return sum(layer.total for layer in count.flops_by_layer(model))


def _line(run: TrainedRun, alpha: float) -> str:
    part, precision = json.loads(run.identity)
    for name in ("loops", "d_ffn", "d_ffn_wide"):
        del part["model"][name]
    return json.dumps([part, precision, round(alpha)], sort_keys=True)


def _names(parts: Sequence[Sequence[TrainedRun]]) -> list[str]:
    """The recipe's name; where several have it, with the run's or the folder in which they part."""
    runs = [part[0] for part in parts]
    of_runs = [run.settings.run for run in runs]
    candidates: tuple[list[str], ...] = (
        [run.recipe for run in of_runs], [f"{run.recipe}/{run.name}" for run in of_runs],
        [_with_folder(run, runs) for run in runs], [str(run.folder) for run in runs],
    )  # fmt: skip
    places = range(len(parts))
    return [next(names[n] for names in candidates if names.count(names[n]) == 1) for n in places]


def _with_folder(run: TrainedRun, runs: Sequence[TrainedRun]) -> str:
    recipe = run.settings.run.recipe
    folders = [other.folder.absolute() for other in runs if other.settings.run.recipe == recipe]
    shared = len(Path(os.path.commonpath(folders)).parts)
    return "/".join([*run.folder.absolute().parts[shared : shared + 1], recipe])


def _place_of(c: Configuration) -> tuple[int, float, int, int, str]:
    """Sorts rows as the paper's table does: by family, share of the deep path, loops."""
    place = -1 if c.place is None else c.place
    return FAMILIES.index(c.family), round(c.alpha or 0), c.loops or 0, place, c.name


Part = tuple[str, list[Configuration]]  # words that a title adds to the budget's, configurations


def groups_of(
    runs: Sequence[TrainedRun], baselines: Sequence[str] = (), any_length: bool = False
) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    `any_length`: a group of each budget, whatever the number of tokens.
    """
    by_budget: dict[tuple[int, int], list[TrainedRun]] = {}
    for run in runs:
        # A third of a budget, thrice, is the same budget.
        budget = int(float(f"{run.settings.run.budget or 0:.3g}"))
        by_budget.setdefault((budget, 0 if any_length else run.tokens), []).append(run)
    ordered = sorted(by_budget.items(), key=lambda item: item[0])
    groups = [
        group
        for (budget, tokens), of_one in ordered
        for group in _groups(budget, tokens, of_one, split=not (baselines or any_length))
    ]
    if not baselines:
        return [_with_wide_baseline(group) for group in groups]
    names = {c.name for group in groups for c in group.configurations}
    names |= set(map(_without_budget, names))
    for baseline in baselines:
        if baseline not in names:
            hint = did_you_mean(baseline, names) or f"; there are {', '.join(sorted(names))}"
            raise UserError(f"no configuration '{baseline}' for --baseline{hint}")
    return [_with_baselines(group, baselines) for group in groups]


def _groups(budget: int, tokens: int, runs: Sequence[TrainedRun], split: bool) -> list[Group]:
    by_identity: dict[str, dict[int, TrainedRun]] = {}
    for run in runs:
        of_one = by_identity.setdefault(run.identity, {})
        if run.seed in of_one:
            raise UserError(
                f"{of_one[run.seed].folder} and {run.folder} are the same configuration with seed "
                f"{run.seed}; leave one of them out"
            )
        of_one[run.seed] = run
    parts = [tuple(of_one[seed] for seed in sorted(of_one)) for of_one in by_identity.values()]
    fewest = min(run.settings.model.n_layers for run in runs)
    configurations = [
        _configuration(name, part, fewest) for name, part in zip(_names(parts), parts, strict=True)
    ]
    name = f"budget {format_size(budget)}" if budget else "no budget"
    length = f"{tokens:,} tokens" if tokens else ""
    return [
        _group(", ".join(filter(None, (name, length, match, settings))), tuple(runs[0].scores), own)
        for match, of_match in _by_match(configurations)
        for settings, own in (_by_wide(of_match) if split else [("", of_match)])
    ]


def _group(name: str, measures: tuple[str, ...], configurations: Sequence[Configuration]) -> Group:
    wides = _pure_wides(configurations)  # of several, the one that is called so, as `f4m_wide`
    named = [c for c in wides if c.name.rpartition("_")[2] == "wide"] or wides
    wide = named[0] if len(named) == 1 else None
    return Group(name, measures, AGGREGATE, tuple(sorted(configurations, key=_place_of)), wide)


def _with_wide_baseline(group: Group) -> Group:
    if group.wide is not None:
        return replace(group, baselines=(group.wide,))
    wides = [c.name for c in group.configurations if c.family == "wide"]
    found = f"{len(wides)} PureWide, {', '.join(wides)}" if wides else "no PureWide"
    return replace(group, note=f"no tests: {found}; --baseline NAMES chooses what to test against")


def _with_baselines(group: Group, names: Sequence[str]) -> Group:
    named = {_without_budget(c.name): c for c in group.configurations}
    named |= {c.name: c for c in group.configurations}
    found = {name: named.get(name) for name in names}
    chosen = tuple({c.name: c for c in found.values() if c is not None}.values())
    missing = ", ".join(f"'{name}'" for name, c in found.items() if c is None)
    if missing:
        group = replace(group, note=f"no tests against {missing}: there is none here")
    wide = next((c for c in chosen if c.family == "wide"), group.wide)
    return replace(group, baselines=chosen, wide=wide)


def _by_match(configurations: Sequence[Configuration]) -> list[Part]:
    """Those of equal linear FLOPs, then those of equal total FLOPs in training, if there are both.

    A sweep's names say which were matched in total FLOPs (`wide_total`); others belong there, too,
    where their total FLOPs are the same, unless one of them was matched so itself.
    """
    totals = [c for c in configurations if _cell(c).endswith(TOTAL)]
    if not totals or len(totals) == len(configurations):
        return [("", list(configurations))]
    due = median(c.flops_trained for c in totals)
    linear = [c for c in configurations if c not in totals]
    matched = {_cell(c).removesuffix(TOTAL) for c in totals}
    # FLOPs that differ by less than 2 % are equal: twice what a sweep allows from the budget.
    near = [c for c in linear if abs(c.flops_trained / due - 1) <= 0.02]
    equal = [c for c in near if _cell(c) not in matched]
    return [("equal linear FLOPs", linear), ("equal total FLOPs", [*totals, *equal])]


def _cell(configuration: Configuration) -> str:
    """Its recipe's name without the settings that a sweep varies."""
    return configuration.runs[0].settings.run.recipe.partition("-")[0]


def _pure_wides(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those that may be what others are relative to: without experts, where there are such."""
    wides = [c for c in configurations if c.family == "wide"]
    return [c for c in wides if c.active is None] or wides


def _by_wide(configurations: Sequence[Configuration]) -> list[Part]:
    """A part for each PureWide, with the configurations whose settings are nearest to its own.

    All in one where there is one PureWide, or none, or a configuration is as near to several.
    """
    wides = _pure_wides(configurations)
    if len(wides) < 2:
        return [("", list(configurations))]
    settings = {c.name: _settings(c) for c in configurations}
    parts: dict[str, list[Configuration]] = {wide.name: [] for wide in wides}
    for c in configurations:
        apart = {name: len(_different(settings[c.name], settings[name])) for name in parts}
        nearest = [name for name, n in apart.items() if n == min(apart.values())]
        if len(nearest) > 1:
            return [("", list(configurations))]
        parts[nearest[0]].append(c)
    of_wides = [settings[wide.name] for wide in wides]
    varied = sorted({key for one in of_wides for key in _different(one, of_wides[0])})

    def words(key: str, value: Any) -> str:
        shown = "+".join(map(str, value)) if isinstance(value, list) else str(value)
        return f"{key.partition('.')[2]} {shown}"

    return [
        (", ".join(words(key, settings[name].get(key)) for key in varied), members)
        for name, members in parts.items()
    ]


def _settings(configuration: Configuration) -> dict[str, Any]:
    """The settings of a configuration that a sweep may have varied, by key."""
    made = {  # make a configuration of a sweep, or are tuned for it
        "model": {"block", "loops", "d_ffn", "d_ffn_wide", "ffn_multiple_of", "n_layers",
                  "n_experts"},
        "optim": {"lr", "lr_start", "lr_end", "muon_lr"},
    }  # fmt: skip
    recipe, precision = json.loads(configuration.runs[0].identity)
    flat = {"trainer.precision": precision}
    for name, section in recipe.items():
        values = section if isinstance(section, dict) else {"": section}
        for key in values.keys() - made.get(name, set()):
            value = values[key]
            entries = {f".{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
            flat |= {f"{name}.{key}{k}": v for k, v in (entries or {"": value}).items()}
    return flat


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def _without_budget(name: str) -> str:
    """A configuration's name without the budget before it: `loop_k2` of `f600k_loop_k2`."""
    return re.sub(r"^f[0-9.]+[kmbt]?_", "", name)


def paper_groups() -> list[Group]:
    """One of each budget, from the paper's printed tables.

    Models are counted as trained, which gives the paper's *Params*.
    """
    return [_of_paper(budget) for budget in paper.BUDGETS]


def _of_paper(budget: str) -> Group:
    results, mean_of_17 = paper.results(budget), "mean of 17"
    measures = {  # the aggregate is the mean of the four after it
        AGGREGATE: paper.aggregate_bpb(budget), "C4": results["C4"],
        "WikiText-103": results["WikiText-103"], "commonsense": results["Commonsense BPB"],
        "math": results["Easy math avg BPB"], mean_of_17: paper.mean_bpb(budget),
    }  # fmt: skip
    rows = [
        _of_row(row, {name: values[row.label] for name, values in measures.items()})
        for row in paper.configurations(budget)
    ]
    return Group(
        f"{budget} of the paper, {paper.TRAINING_TOKENS:,} tokens",
        tuple(measures),
        mean_of_17,  # as in the parameter-quality figure
        tuple(rows),
        next(c for c in rows if c.family == "wide"),
        note="single runs, no error known, no tests; α as the paper names it; parameters and FLOPs "
        f"counted as trained; time of all {paper.GPUS} GPUs together",
    )


def _of_row(row: paper.Configuration, scores: dict[str, float]) -> Configuration:
    model = row.model_config("as_trained")
    flops = count.mean_layer_flops(model)
    return Configuration(
        row.recipe, row.block, row.alpha, None if row.block == "wide" else row.loops,
        model.n_layers, paper.TRAINING_TOKENS, count.parameters(model),
        flops_linear=flops["linear_total"], flops_total=flops["total"],
        flops_trained=flops["total"], kv_bytes=count.kv_bytes(model), line=f"{row.alpha}",
        scores={name: {0: value} for name, value in scores.items()},  # the paper gives no seed
        seconds_per_token=row.hours_on_64_gpus * 3600 / paper.TRAINING_TOKENS,
    )  # fmt: skip
