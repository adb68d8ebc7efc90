"""The configurations of a sweep, each solved for the budget. Torch-free.

Of each budget there are, by their names:

    wide             PureWide
    loop_k4          PureLoop
    a50_k4           dual, alpha 50 %, K = 4
    expanded_k4      PureWide of K times as many layers, each with a K-th of the budget
    a50_k4_layer2    PureWide but for layer 2, which is dual: --positions, for each
                     layer

All of a budget have one width multiple: the coarsest, by halves of the recipe's, that
brings each of them to within 1 % of it (`widths.TOLERANCE`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.groups import Family
from dualpath_cli.flops.count import gate_flops
from dualpath_cli.flops.widths import TOLERANCE, Match, Target, solve_widths
from dualpath_cli.spec.config import ModelConfig

CONTROLS = ("wide", "loop", "expanded")  # as --controls names them


@dataclass(frozen=True)
class Cell:
    """One configuration, without seed and settings."""

    name: str
    family: Family
    budget: int  # F_M, FLOPs per token and layer, of the backbone's number of layers
    match: Match  # the FLOPs that meet the budget
    alpha: float | None  # percent of the FLOPs on the deep path; None for a single path
    model: dict[str, Any]  # fields of the model section that make it this configuration
    # matched FLOPs per token and layer, over the FLOPs that they should be
    spent: float
    # its layers over those of the backbone, which share the budget
    layers_times: int = 1


@dataclass(frozen=True)
class Wanted:
    """The request for cells."""

    budgets: Sequence[int]
    alphas: Sequence[float]
    loops: Sequence[int]
    controls: Sequence[str]
    match: Match = "linear"
    # one layer at a time is dual or loop, and all others PureWide
    positions: bool = False


def solve(wanted: Wanted, backbone: ModelConfig) -> tuple[list[Cell], list[str]]:
    """Returns the cells, and a line for each that cannot be or is not within 1 % of the
    budget.

    `backbone` gives everything but block, loops, widths and experts.
    """
    cells: list[Cell] = []
    notes: list[str] = []
    for budget in wanted.budgets:
        kinds = []
        for kind in _kinds(wanted, budget, backbone):
            try:
                solve_widths(kind.target)
                kinds.append(kind)
            except UserError as error:
                notes.append(f"{kind.name} cannot be: {error}")
        cells += _solved(kinds, backbone.ffn_multiple_of)
    if "expanded" in wanted.controls and wanted.match == "total":
        notes.append("expanded is matched in linear FLOPs alone: left out")
    if {"loop", "expanded"} & {*wanted.controls} and 1 in wanted.loops:
        notes.append("no loop or expanded cell at K = 1: that is PureWide")
    if not cells:
        reason = notes[0] if notes else "neither --alphas nor --controls names one"
        raise UserError(f"no configuration can be: {reason}")
    for cell in cells:
        try:
            replace(backbone, **cell.model)
        except ValueError as error:
            which = f"--budget {format_size(cell.budget)} and {cell.name}"
            raise UserError(f"{which}: {error}; give a smaller one") from None
        if abs(cell.spent - 1) > TOLERANCE:
            spends = f"{cell.name} spends {cell.spent:.4f} of the budget"
            notes.append(f"{spends}: no width comes nearer")
    if len(wanted.budgets) > 1:
        cells = [
            replace(c, name=f"f{format_size(c.budget).lower()}_{c.name}") for c in cells
        ]
    return cells, notes


@dataclass(frozen=True)
class _Kind:
    """A cell before its widths are solved."""

    name: str
    family: Family
    budget: int  # of the backbone's layers
    target: Target
    n_layers: int  # layers of the backbone
    # times the backbone's layers, among which the budget is divided
    layers_times: int = 1
    # the only layer of this kind, among PureWide ones; None: all layers
    place: int | None = None

    def solved(self, multiple: int) -> Cell:
        """The cell with widths in a multiple."""
        target, n = replace(self.target, multiple_of=multiple), self.n_layers
        widths = solve_widths(target)
        spent = Fraction(
            target.spent(widths.d_ffn, widths.d_ffn_wide), target.matched_budget
        )
        model: dict[str, Any] = {
            "block": target.block,
            "loops": target.loops,
            "d_ffn": widths.d_ffn,
            "d_ffn_wide": widths.d_ffn_wide,
            "ffn_multiple_of": multiple,
        }
        if self.place is not None:
            beside = replace(target, block="wide", loops=1)
            other = solve_widths(beside).d_ffn_wide
            kinds, wides = ["wide"] * n, [other] * n
            kinds[self.place], wides[self.place] = target.block, widths.d_ffn_wide
            model |= {
                "block": kinds,
                "d_ffn_wide": wides if target.block == "dual" else other,
            }
            others = Fraction(beside.spent(None, other), target.matched_budget)
            spent = (spent + (n - 1) * others) / n
        if self.layers_times > 1:
            model["n_layers"] = n * self.layers_times
        alpha = target.alpha if self.family == "dual" else None
        return Cell(
            self.name,
            self.family,
            self.budget,
            target.match,
            alpha,
            model,
            float(spent),
            self.layers_times,
        )


def _kinds(wanted: Wanted, budget: int, backbone: ModelConfig) -> Iterator[_Kind]:
    looped = [k for k in wanted.loops if k > 1]
    dual = Target(
        budget,
        match=wanted.match,
        reference_loops=max(wanted.loops),
        d_model=backbone.d_model,
        n_heads=backbone.n_heads,
        n_kv_heads=backbone.n_kv_heads,
        seq_len=backbone.max_seq_len,
        gate_flops=gate_flops(backbone),
    )
    wide = replace(dual, block="wide", loops=1)

    def kind(name: str, family: Family, target: Target, **more: Any) -> _Kind:
        return _Kind(name, family, budget, target, backbone.n_layers, **more)

    def kinds(name: str, family: Family, target: Target) -> Iterator[_Kind]:
        """All layers of this kind, or each in turn."""
        if not wanted.positions:
            yield kind(name, family, target)
        else:
            for n in range(backbone.n_layers):
                yield kind(f"{name}_layer{n}", family, target, place=n)

    if "wide" in wanted.controls:
        yield kind("wide", "wide", wide)
    if "loop" in wanted.controls:
        for k in looped:
            yield from kinds(f"loop_k{k}", "loop", replace(dual, block="loop", loops=k))
    for alpha, k in product(wanted.alphas, wanted.loops):
        yield from kinds(
            f"a{alpha:g}_k{k}", "dual", replace(dual, alpha=alpha, loops=k)
        )
    if "expanded" in wanted.controls and wanted.match == "linear":
        # A layer more is an attention pass more: beside K loops the scores are alike.
        for k in looped:
            target = replace(wide, budget=budget // k)
            yield kind(f"expanded_k{k}", "expanded", target, layers_times=k)


def _solved(kinds: Sequence[_Kind], multiple: int) -> list[Cell]:
    """The cells in the coarsest of a multiple and its halves that brings all within the
    tolerance.

    In the finest one where none does.
    """
    while True:
        cells = [kind.solved(multiple) for kind in kinds]
        if multiple % 2 or all(abs(cell.spent - 1) <= TOLERANCE for cell in cells):
            return cells
        multiple //= 2
