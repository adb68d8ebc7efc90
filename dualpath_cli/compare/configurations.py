"""Runs as configurations, which differ in more than their seed, and these as groups of one budget.

All is derived from the runs' own recipes, so that runs of a sweep and others are treated alike.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Literal

from dualpath_cli.compare.runs import AGGREGATE, TrainedRun
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.flops.count import flops_by_layer, parameters
from dualpath_cli.sizes import format_size

Family = Literal["wide", "expanded", "loop", "dual"]
FAMILIES: tuple[Family, ...] = ("wide", "expanded", "loop", "dual")
"""In the order of tables. expanded is a wide model with more layers than others of its budget."""
WIDE = "wide"
"""What the name of the PureWide ends in, as `f4m_wide`, where several are wide."""


@dataclass(frozen=True)
class Configuration:
    """What one row of the table is about."""

    name: str
    family: Family
    alpha: float | None
    """Percent of the FLOPs of both paths that the deep one has; None for one path."""
    loops: int | None
    """K; None without a deep path."""
    layers: int
    parameters: int
    flops_linear: float
    """Per token, and layer of the models with the fewest layers."""
    flops_total: float
    """The same with router and attention scores."""
    line: str
    """Dual configurations of one line differ in loops and the deep path's width alone."""
    scores: Mapping[str, Mapping[int, float]]
    """Bits per byte by measure and seed."""
    seconds_per_token: float
    """Of training: the median of the runs' medians."""
    runs: tuple[TrainedRun, ...] = ()
    """Of growing seed; none of what the paper trained."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of its runs."""
        return tuple(next(iter(self.scores.values())))

    def mean(self, measure: str) -> float:
        """Over seeds."""
        return fmean(self.scores[measure].values())

    def standard_error(self, measure: str) -> float | None:
        """Of the mean over seeds; None for one seed."""
        values = list(self.scores[measure].values())
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


@dataclass(frozen=True)
class Group:
    """Configurations of one budget, to three digits, and as many training tokens."""

    name: str
    tokens: int
    measures: tuple[str, ...]
    """The aggregate first."""
    quality: str
    """The measure of the parameter-quality figure."""
    configurations: tuple[Configuration, ...]
    wide: Configuration | None
    """What parameters and time are relative to."""
    baseline: Configuration | None
    """What the others are tested against."""
    note: str = ""
    """Why there is no baseline, or what the numbers are."""


def groups_of(runs: Sequence[TrainedRun], baseline: str | None = None) -> list[Group]:
    """Sorts runs into configurations and groups, those of the smallest budget first.

    Raises:
        UserError: for two runs of one configuration and seed, and a baseline that there is not.
    """
    by_budget: dict[tuple[int, int], list[TrainedRun]] = {}
    for run in runs:
        settings = run.settings.run
        tokens = settings.max_tokens // settings.batch_tokens * settings.batch_tokens
        budget = int(float(f"{settings.budget or 0:.3g}"))  # a third of one, thrice, is the same
        by_budget.setdefault((budget, tokens), []).append(run)
    groups = [_group(budget, tokens, of_one) for (budget, tokens), of_one in
              sorted(by_budget.items(), key=lambda item: item[0])]  # fmt: skip
    if baseline is None:
        return [_with_wide_baseline(group) for group in groups]
    names = {c.name for group in groups for c in group.configurations}
    if baseline not in names:
        hint = did_you_mean(baseline, names) or f"; there are {', '.join(sorted(names))}"
        raise UserError(f"no configuration '{baseline}' for --baseline{hint}")
    return [_with_baseline(group, baseline) for group in groups]


def _group(budget: int, tokens: int, runs: Sequence[TrainedRun]) -> Group:
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
    wides = [c for c in configurations if c.family == "wide"]
    named = [c for c in wides if c.name.rpartition("_")[2] == WIDE] or wides
    return Group(
        name=f"{f'budget {format_size(budget)}' if budget else 'no budget'}, {tokens:,} tokens",
        tokens=tokens,
        measures=tuple(runs[0].scores),
        quality=AGGREGATE,
        configurations=tuple(sorted(configurations, key=_place)),
        wide=named[0] if len(named) == 1 else None,
        baseline=None,
    )


def _configuration(name: str, runs: tuple[TrainedRun, ...], fewest: int) -> Configuration:
    model = runs[0].settings.model
    layers = flops_by_layer(model)
    family = family_of(model, fewest)
    return Configuration(
        name=name,
        family=family,
        alpha=alpha_of(model) if family == "dual" else None,
        loops=model.loops if family in ("dual", "loop") else None,
        layers=model.n_layers,
        parameters=parameters(model),
        flops_linear=sum(layer.linear_total for layer in layers) / fewest,
        flops_total=sum(layer.total for layer in layers) / fewest,
        line=_line(runs[0]),
        scores={
            measure: {run.seed: run.scores[measure] for run in runs} for measure in runs[0].scores
        },
        seconds_per_token=median(1 / run.tokens_per_second for run in runs),
        runs=runs,
    )


def family_of(model: ModelConfig, fewest: int) -> Family:
    """The family of a model; `fewest` are the layers of the shallowest model of its budget."""
    kinds = set(model.block_kinds)
    if kinds == {"wide"}:
        return "expanded" if model.n_layers > fewest else "wide"
    return "loop" if kinds == {"loop"} else "dual"


def alpha_of(model: ModelConfig) -> float:
    """Percent of the FLOPs of both paths that the deep ones have, over all layers."""
    layers = flops_by_layer(model)
    deep, wide = sum(layer.deep for layer in layers), sum(layer.wide for layer in layers)
    return 100 * deep / (deep + wide)


def _line(run: TrainedRun) -> str:
    part, precision = json.loads(run.identity)
    for name in ("loops", "d_ffn"):
        del part["model"][name]
    return json.dumps([part, precision], sort_keys=True)


def _names(parts: Sequence[Sequence[TrainedRun]]) -> list[str]:
    """A name a configuration: its recipe's, or where others have the same, with the first run's."""
    runs = [part[0] for part in parts]
    candidates: tuple[list[str], ...] = (
        [run.settings.run.recipe for run in runs],
        [f"{run.settings.run.recipe}/{run.settings.run.name}" for run in runs],
        [str(run.folder) for run in runs],
    )
    return [
        next(names[n] for names in candidates if names.count(names[n]) == 1)
        for n in range(len(parts))
    ]


def _place(configuration: Configuration) -> tuple[int, float, int, str]:
    """Of a row: as in the paper's table, by family, share of the deep path, loops."""
    c = configuration
    return FAMILIES.index(c.family), round(c.alpha or 0), c.loops or 0, c.name


def _with_wide_baseline(group: Group) -> Group:
    if group.wide is not None:
        return replace(group, baseline=group.wide)
    wides = [c.name for c in group.configurations if c.family == "wide"]
    found = f"{len(wides)} PureWide, {', '.join(wides)}" if wides else "no PureWide"
    return replace(group, note=f"no tests: {found}; --baseline NAME chooses what to test against")


def _with_baseline(group: Group, name: str) -> Group:
    chosen = _named(group.configurations, name)
    if chosen is None:
        return replace(group, note=f"no tests: it has no configuration '{name}'")
    wide = chosen if chosen.family == "wide" else group.wide
    return replace(group, baseline=chosen, wide=wide)


def _named(configurations: Iterable[Configuration], name: str) -> Configuration | None:
    return next((c for c in configurations if c.name == name), None)
