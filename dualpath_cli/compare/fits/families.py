"""Families of configurations to which a scaling law is fitted, and why some have none.

Its members differ only in size, training tokens, and how often parameters are applied.
Models without loops are a family by themselves, and also members of those families
whose looped models are otherwise like them: PureWide of PureLoop and repeated cores,
dual models with K = 1 of those with more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dualpath_cli.base.output import amount
from dualpath_cli.compare.configurations import (
    FAMILIES,
    Configuration,
    Group,
    different_keys,
    partition,
    word_of,
)
from dualpath_cli.compare.fits.law import NAMES, Cells, Mask
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.flops import count
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.spec.config import ModelConfig

CountedParameters = Literal["all", "non_embedding"]

SIZES = {
    "model.n_layers",
    "model.d_model",
    "model.n_heads",
    "model.n_kv_heads",
    "model.d_ffn",
    "model.d_ffn_wide",
    "model.ffn_multiple_of",
    "run.budget",
}
LOOPS = {"model.loops", "model.core", "model.core_loops"}
TOKENS = {"run.max_tokens"}
JOINED = SIZES | LOOPS | TOKENS
"""Keys in which the configurations of a family may differ."""

LEAST_SPAN = 8  # of training FLOPs
LEAST_VALUES = 3  # different numbers of parameters, and of tokens
ALIKE = 1.02  # numbers within this factor count as the same
LEAST_SPREAD = 0.05  # standard deviation of log D around its line over log N


@dataclass(frozen=True, eq=False)
class ScalingFamily:
    """Configurations of one kind, each a cell of the fit."""

    name: str
    configurations: tuple[Configuration, ...]  # by training FLOPs
    cells: Cells
    flops: Floats  # (C,), of the whole training, head included

    @property
    def losses(self) -> Floats:
        """Bits per byte (C,), means over seeds."""
        return np.array([c.mean(AGGREGATE) for c in self.configurations])

    @property
    def scores(self) -> list[Floats]:
        """Bits per byte of each configuration's seeds."""
        return [
            np.array(list(c.scores[AGGREGATE].values())) for c in self.configurations
        ]

    @property
    def runs(self) -> int:
        """The runs that the scores rest on: of best rates, those at all rates."""
        return sum(
            run.seed in c.seeds for c in self.configurations for run in c.all_runs
        )

    @property
    def fitted(self) -> list[str]:
        """The names of the values that are fitted."""
        return [name for name, of in zip(NAMES, self.cells.fitted, strict=True) if of]

    def take(self, chosen_C: Mask) -> "ScalingFamily":
        """The family of some of its configurations, by a mask."""
        kept = zip(self.configurations, chosen_C, strict=True)
        return replace(
            self,
            configurations=tuple(c for c, its in kept if its),
            cells=self.cells.take(chosen_C),
            flops=self.flops[chosen_C],
        )


def families_of(
    groups: Sequence[Group], counted: CountedParameters
) -> list[ScalingFamily]:
    """The families of all groups, in the order of tables.

    A best learning rate at the edge of its grid is not the best: its configuration is
    left out.
    """
    every = [c for group in groups for c in group.configurations if not c.edge]
    members = partition(every, _family_key)
    unlooped = [c for c in every if not _is_looped(c)]
    for alike in members.values():
        if _is_looped(alike[0]):
            alike += [c for c in unlooped if _is_without_loops_of(c, alike[0])]

    ordered = sorted(members.values(), key=lambda alike: _place(alike[0]))
    return [
        _family(name, alike, counted)
        for name, alike in zip(_names(ordered), ordered, strict=True)
    ]


def _family_key(c: Configuration) -> tuple[Any, ...]:
    return c.family, c.share, str(sorted(_own_keys(c).items()))


def _own_keys(c: Configuration) -> dict[str, Any]:
    """The values that members of a family share."""
    run = c.all_runs[0]
    joined = set(JOINED)
    if isinstance(run.settings.model.block, str):
        joined.add("model.block")  # the family says which
    return {key: value for key, value in run.key_values.items() if key not in joined}


def _is_looped(c: Configuration) -> bool:
    """Whether a pass applies some parameters more than once."""
    return max(applied_parameters(c.all_runs[0].settings.model, "all")) > 1


def _is_without_loops_of(c: Configuration, looped: Configuration) -> bool:
    """Whether a model differs from `looped` only in that everything is applied once."""
    unlooped = "dual" if looped.family == "dual" else "wide"
    if c.family != unlooped or c.share != looped.share:
        return False
    # Values that matter to only one of them cannot tell them apart, but for experts:
    # a loop block has none.
    ours = _own_keys(c)
    theirs = {"model.n_experts": 0} | _own_keys(looped)
    return all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())


def _place(c: Configuration) -> tuple[int, float]:
    return FAMILIES.index(c.family), c.share or 0


def _names(ordered: Sequence[Sequence[Configuration]]) -> list[str]:
    """`wide`, `dual α 50`; where several are called so, the values in which they
    differ."""
    firsts = [alike[0] for alike in ordered]
    of_kind = partition(firsts, _kind)
    names = []
    for c in firsts:
        kind = _kind(c)
        run = c.all_runs[0]
        keys: set[str] = set()
        for other in of_kind[kind]:
            keys |= different_keys(run, other.all_runs[0])
        words = [word_of(run, key) for key in sorted(keys & _own_keys(c).keys())]
        names.append(" ".join([kind, *words]))
    return names


def _kind(c: Configuration) -> str:
    """Such as `wide`, `loop core`, `dual α 50 K 1`."""
    words: list[str] = [c.family]
    if c.share is not None:
        words.append(f"α {c.share:g}")
    if c.family != "core" and (c.core_loops or 1) > 1:
        words.append("core")
    if c.loops == 1:
        words.append("K 1")
    return " ".join(words)


def _family(
    name: str, alike: Sequence[Configuration], counted: CountedParameters
) -> ScalingFamily:
    configurations = sorted(alike, key=lambda c: c.all_runs[0].flops)
    sizes = [
        applied_parameters(c.all_runs[0].settings.model, counted)
        for c in configurations
    ]
    times = sorted(set().union(*sizes))
    cells = Cells(
        sizes=np.array([[its.get(t, 0) / 1e6 for t in times] for its in sizes]),
        times=np.array(times, dtype=float),
        tokens=np.array([c.tokens / 1e9 for c in configurations]),
        weights=np.array([float(len(c.seeds)) for c in configurations]),
    )
    flops_C = np.array([c.all_runs[0].flops for c in configurations])
    return ScalingFamily(name, tuple(configurations), cells, flops_C)


def applied_parameters(
    model: ModelConfig, counted: CountedParameters
) -> dict[int, int]:
    """Parameters by how often a pass applies them, with or without embedding and
    head."""
    by_times = count.parameters_by_applications(model)
    if counted == "non_embedding":
        parts = count.parameters_by_part(model)
        by_times[1] -= parts["embedding"] + parts["head"]
    return by_times


def refusal(family: ScalingFamily) -> str:
    """Why no law is fitted to a family; empty if one can be."""
    if reason := unidentified(family):
        return reason

    span = family.flops.max() / family.flops.min()
    if span < LEAST_SPAN:
        return (
            f"its training FLOPs span a factor of {span:.1f}, and a fit needs "
            f"{LEAST_SPAN}; train a larger or a smaller budget"
        )
    return ""


def unidentified(family: ScalingFamily) -> str:
    """Why configurations, over whatever span, cannot tell a law's values apart."""
    n = len(family.configurations)
    fewest = len(family.fitted) + 1
    if n < fewest:
        return (
            f"it has {amount('configurations', n)}, and a fit of "
            f"{len(family.fitted)} values needs {fewest}"
        )

    sizes_C = family.cells.sizes.sum(1)
    tokens_C = family.cells.tokens
    for numbers_C, what, values in (
        (sizes_C, "parameters", "E, A and a"),
        (tokens_C, "training tokens", "E, B and b"),
    ):
        different = _different(numbers_C)
        if different < LEAST_VALUES:
            return (
                f"it has {amount('numbers', different)} of {what}, too few to fit "
                f"{values}; train it at {LEAST_VALUES}"
            )

    line = np.polyfit(np.log(sizes_C), np.log(tokens_C), 1)
    beside_C = np.log(tokens_C) - np.polyval(line, np.log(sizes_C))
    if beside_C.std() < LEAST_SPREAD:
        return (
            "its tokens follow from its parameters, so their effects cannot be "
            "separated; train one size on several numbers of tokens"
        )
    return ""


def _different(numbers_C: Floats) -> int:
    ordered = np.sort(numbers_C)
    return 1 + int((ordered[1:] / ordered[:-1] > ALIKE).sum())
