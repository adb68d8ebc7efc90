"""Runs as configurations, which differ in more than their seed.

All is derived from the runs' own recipes, so that runs of a sweep and others are treated alike.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Literal

from dualpath_cli.compare.runs import TrainedRun
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops import count
from dualpath_cli.recipe.schedule import loop_counts

Family = Literal["wide", "expanded", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "loop", "dual")
"""In the order of tables. expanded is a wide model with more layers than others of its budget."""
WIDE = "wide"  # the end of the name of the PureWide, as in `f4m_wide`, where several are wide


@dataclass(frozen=True)
class Configuration:
    """The model and settings of one row of the table."""

    name: str
    family: Family
    alpha: float | None
    """Percent of the FLOPs of both paths that the deep one has; None for one path."""
    loops: int | None  # K; None without a deep path
    layers: int
    tokens: int  # training tokens
    parameters: int
    flops_linear: float  # per token, and layer of the models with the fewest layers
    flops_total: float  # the same with router and attention scores
    flops_trained: float
    """`flops_total`, mean over the steps of training, if these run fewer loops or others."""
    kv_bytes: int  # keys and values of a token in all layers, in bf16
    line: str
    """Dual configurations of one line differ in loops and widths, not in alpha (whole percents)."""
    scores: Mapping[str, Mapping[int, float]]  # bits per byte by measure and seed
    seconds_per_token: float  # of training, the median of the runs' medians
    place: int | None = None  # the only layer with a deep path, where all others are wide
    active: int | None = None  # parameters that a token uses; None where it is all, without experts
    expected_loops: float | None = None
    """Mean over the runs that logged it: near 1, the loops that are paid for are not used."""
    runs: tuple[TrainedRun, ...] = ()  # in the order of their seeds; empty for the paper's models

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(next(iter(self.scores.values())))

    @property
    def hours(self) -> float:
        return self.tokens * self.seconds_per_token / 3600

    def mean(self, measure: str) -> float:
        """Over seeds."""
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
    baselines: tuple[Configuration, ...] = ()
    """The configurations that the others are tested against; figures take the first."""
    note: str = ""  # why there is no baseline, or what the numbers are


def configuration_of(name: str, runs: tuple[TrainedRun, ...], fewest: int) -> Configuration:
    model, steps = runs[0].settings.model, loop_counts(runs[0].settings.run)
    layers = count.flops_by_layer(model)
    family = family_of(model, fewest)
    logged = [run.expected_loops for run in runs if run.expected_loops is not None]
    sparse = any(own.n_experts for own in model.layers)
    return Configuration(
        name=name,
        family=family,
        alpha=alpha_of(model) if family == "dual" else None,
        loops=model.most_loops if family in ("dual", "loop") else None,
        layers=model.n_layers,
        tokens=runs[0].tokens,
        parameters=count.parameters(model),
        flops_linear=sum(layer.linear_total for layer in layers) / fewest,
        flops_total=_total(model) / fewest,
        flops_trained=count.over_loops(_total, model, steps) / fewest,
        kv_bytes=count.kv_bytes(model),
        line=_line(runs[0], alpha_of(model)) if family == "dual" else name,
        scores={
            measure: {run.seed: run.scores[measure] for run in runs} for measure in runs[0].scores
        },
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        place=_place(model),
        active=count.active_parameters(model) if sparse else None,
        expected_loops=fmean(logged) if logged else None,
        runs=runs,
    )


def _total(model: ModelConfig) -> int:
    return sum(layer.total for layer in count.flops_by_layer(model))


def family_of(model: ModelConfig, fewest: int) -> Family:
    """The family of a model; `fewest` are the layers of the shallowest model of its budget."""
    kinds = set(model.block_kinds)
    if kinds == {"wide"}:
        return "expanded" if model.n_layers > fewest else "wide"
    return "dual" if "dual" in kinds else "loop"


def _place(model: ModelConfig) -> int | None:
    deep = [n for n, kind in enumerate(model.block_kinds) if kind != "wide"]
    return deep[0] if len(deep) == 1 < model.n_layers else None


def alpha_of(model: ModelConfig) -> float:
    """Percent of the FLOPs of both paths that the deep ones have, over all layers."""
    layers = count.flops_by_layer(model)
    deep, wide = sum(layer.deep for layer in layers), sum(layer.wide for layer in layers)
    return 100 * deep / (deep + wide)


def _line(run: TrainedRun, alpha: float) -> str:
    part, precision = json.loads(run.identity)
    for name in ("loops", "d_ffn", "d_ffn_wide"):
        del part["model"][name]
    return json.dumps([part, precision, round(alpha)], sort_keys=True)


def names_of(parts: Sequence[Sequence[TrainedRun]]) -> list[str]:
    """A name a configuration: its recipe's, or where others have the same, with the first run's,

    or with the folder in which they part, as `first/wide` and `second/wide` of two sweeps.
    """
    runs = [part[0] for part in parts]
    candidates: tuple[list[str], ...] = (
        [run.settings.run.recipe for run in runs],
        [f"{run.settings.run.recipe}/{run.settings.run.name}" for run in runs],
        [_with_folder(run, runs) for run in runs],
        [str(run.folder) for run in runs],
    )
    return [
        next(names[n] for names in candidates if names.count(names[n]) == 1)
        for n in range(len(parts))
    ]


def _with_folder(run: TrainedRun, runs: Sequence[TrainedRun]) -> str:
    recipe = run.settings.run.recipe
    folders = [other.folder.absolute() for other in runs if other.settings.run.recipe == recipe]
    shared = len(Path(os.path.commonpath(folders)).parts)
    return "/".join([*run.folder.absolute().parts[shared : shared + 1], recipe])


def place_of(configuration: Configuration) -> tuple[int, float, int, int, str]:
    """Sorts rows as the paper's table does: by family, share of the deep path, loops."""
    c = configuration
    place = -1 if c.place is None else c.place
    return FAMILIES.index(c.family), round(c.alpha or 0), c.loops or 0, place, c.name
