"""The configurations of a sweep, each solved for the budget. Torch-free.

Of each budget there are, by their names:

    wide             PureWide
    loop_k4          PureLoop
    a50_k4           dual, alpha 50 %, K = 4
    expanded_k4      PureWide of K times as many layers, each with a K-th of the budget
    min_deep_k4      dual whose deep path has the smallest width there is
    a50_k4_e8        a50_k4 with 8 experts in its wide path: --experts
    a50_k4_layer2    PureWide but for layer 2, which is dual: --positions, for each layer

All of a budget have one width multiple: the coarsest, by halves of the recipe's, that brings each
of them to within 1 % of it (`widths.TOLERANCE`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, product
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size
from dualpath_cli.flops.count import gate_flops, mean_layer_flops
from dualpath_cli.flops.widths import TOLERANCE, Match, Target, Widths, largest_width, solve_widths
from dualpath_cli.spec.config import ModelConfig

FAMILIES = ("wide", "loop", "dual", "expanded")
TOTAL = "_total"  # the end of a name matched in total FLOPs, where a sweep matches both kinds
CONTROLS = {
    "wide": "PureWide",
    "loop": "PureLoop",
    "expanded": "PureWide of K times the layers",
    "min-deep": "dual with the narrowest deep path",
}
"""Controls by the name that --controls gives them."""


@dataclass(frozen=True)
class Cell:
    """One configuration, without seed and settings."""

    name: str
    family: str  # one of FAMILIES
    budget: int  # F_M, FLOPs per token and layer, of the backbone's number of layers
    matches: tuple[Match, ...]
    """The FLOPs that meet the budget: linear or total ones; both where the widths are equal."""
    alpha: float | None  # percent of the FLOPs on the deep path; None for a single path
    model: dict[str, Any]  # fields of the model section that make it this configuration
    spent: float  # matched FLOPs per token and layer, over the FLOPs that they should be
    layers_times: int = 1  # its layers over those of the backbone, which share the budget


@dataclass(frozen=True)
class Wanted:
    """The request for cells."""

    budgets: Sequence[int]
    alphas: Sequence[float]
    loops: Sequence[int]
    controls: Sequence[str]
    matches: Sequence[Match]
    experts: Sequence[int] = (0,)  # numbers of experts in wide paths; 0 is a dense one
    positions: bool = False  # one layer at a time is dual or loop, and all others PureWide


def solve(wanted: Wanted, backbone: ModelConfig) -> tuple[list[Cell], list[str]]:
    """Returns the cells, and a line for each that cannot be or is not within 1 % of the budget.

    `backbone` gives everything but block, loops and widths.
    """
    cells: list[Cell] = []
    notes: list[str] = []
    for budget in wanted.budgets:
        kinds, without_room = _kinds(wanted, budget, backbone)
        notes += without_room
        multiple = _multiple(kinds, backbone.ffn_multiple_of)
        for kind in kinds:
            cell = kind.solved(multiple)
            same = next(
                (c for c in cells if (c.budget, c.model) == (cell.budget, cell.model)), None
            )
            if same is None:
                cells.append(cell)
                continue
            both = tuple(dict.fromkeys((*same.matches, *cell.matches)))
            cells[cells.index(same)] = replace(same, matches=both)
            if cell.name.removesuffix(TOTAL) != same.name:
                notes.append(f"{cell.name} is the same model as {same.name}: trained once")
    if "expanded" in wanted.controls and "linear" not in wanted.matches:
        notes.append("expanded is matched in linear FLOPs alone: left out")
    if {"loop", "expanded"} & {*wanted.controls} and 1 in wanted.loops:
        notes.append("no loop or expanded cell at K = 1: that is PureWide")
    if not cells:
        reason = notes[0] if notes else "neither --alphas nor --controls names one"
        raise UserError(f"no configuration can be: {reason}")
    cells = [sparse for cell in cells for sparse in _with_experts(cell, wanted, backbone, notes)]
    if not cells:
        raise UserError(f"no configuration can be: {notes[-1]}")
    notes += [
        f"{cell.name} spends {cell.spent:.4f} of the budget: no width comes nearer"
        for cell in cells
        if abs(cell.spent - 1) > TOLERANCE
    ]
    if len(wanted.budgets) > 1:
        cells = [replace(c, name=f"f{format_size(c.budget).lower()}_{c.name}") for c in cells]
    return cells, notes


def _with_experts(
    cell: Cell, wanted: Wanted, backbone: ModelConfig, notes: list[str]
) -> Iterator[Cell]:
    """The cell with each number of experts; a loop has no wide path for them and stays as it is.

    Where there can be no such experts, a note says why.
    """
    try:
        kinds = replace(backbone, n_experts=0, **cell.model).block_kinds
    except ValueError as error:
        budget = format_size(cell.budget)
        raise UserError(f"--budget {budget} and {cell.name}: {error}; give a smaller one") from None
    if set(kinds) == {"loop"}:
        yield replace(cell, model=cell.model | {"n_experts": 0})
        return
    for n in wanted.experts:
        experts: int | list[int] = n
        if "loop" in kinds:
            experts = [0 if kind == "loop" else n for kind in kinds]
        end = TOTAL if cell.name.endswith(TOTAL) else ""
        name = f"{cell.name.removesuffix(end)}_e{n}{end}" if n else cell.name
        model = cell.model | {"n_experts": experts}
        try:
            made = replace(backbone, **model)
        except ValueError as error:
            notes.append(f"{name} cannot be: {error}")
            continue
        counted = "linear_total" if cell.matches[0] == "linear" else "total"
        dense = mean_layer_flops(replace(made, n_experts=0))[counted]
        spent = cell.spent * mean_layer_flops(made)[counted] / dense
        yield replace(cell, name=name, model=model, spent=spent)


@dataclass(frozen=True)
class _Kind:
    """A cell before its widths are solved."""

    name: str
    family: str
    budget: int  # of the backbone's layers
    target: Target
    n_layers: int  # layers of the backbone
    layers_times: int = 1  # times the backbone's layers, among which the budget is divided
    smallest_deep: bool = False
    place: int | None = None  # the only layer of this kind, among PureWide ones; None: all layers

    @property
    def has_room(self) -> bool:
        """Whether each path has FLOPs for its FFN."""
        if self.smallest_deep:
            return self._wide_beside(1) > 0
        return self.target.has_room

    def widths(self, multiple: int) -> Widths:
        if not self.smallest_deep:
            return solve_widths(replace(self.target, multiple_of=multiple))
        wide = largest_width(self._wide_beside(multiple), multiple)
        return Widths(max(2, multiple), max(multiple, wide))  # of 1, no channel would be left

    def _wide_beside(self, width: int) -> Fraction:
        """The wide path's exact width beside a deep one of this effective width."""
        narrow = replace(self.target, multiple_of=width)
        spent = narrow.spent(max(2, width), 0)
        return Fraction(narrow.matched_budget - spent, 6 * self.target.d_model)

    def spent(self, multiple: int) -> Fraction:
        """The share of the matched budget that the widths in a multiple spend."""
        widths, target = self.widths(multiple), replace(self.target, multiple_of=multiple)
        spent = Fraction(target.spent(widths.d_ffn, widths.d_ffn_wide), target.matched_budget)
        if self.place is None:
            return spent
        wide = replace(target, block="wide", loops=1)
        others = Fraction(wide.spent(None, self._other_width(multiple)), target.matched_budget)
        return (spent + (self.n_layers - 1) * others) / self.n_layers

    def _other_width(self, multiple: int) -> int | None:
        """The width of a PureWide layer beside this one."""
        wide = replace(self.target, block="wide", loops=1, multiple_of=multiple)
        return solve_widths(wide).d_ffn_wide

    def solved(self, multiple: int) -> Cell:
        widths, target = self.widths(multiple), self.target
        model: dict[str, Any] = {
            "block": target.block,
            "loops": target.loops,
            "d_ffn": widths.d_ffn,
            "d_ffn_wide": widths.d_ffn_wide,
            "ffn_multiple_of": multiple,
        }
        if self.place is not None:
            others = self._other_width(multiple)
            kinds, wides = ["wide"] * self.n_layers, [others] * self.n_layers
            kinds[self.place] = target.block
            model |= {"block": kinds, "d_ffn_wide": others}
            if target.block == "dual":
                wides[self.place] = widths.d_ffn_wide
                model["d_ffn_wide"] = wides
        if self.layers_times > 1:
            model["n_layers"] = self.n_layers * self.layers_times
        alpha = target.alpha if self.family == "dual" else None
        if self.smallest_deep:
            alone = replace(target, multiple_of=multiple)
            gate = alone.spent(None, None)
            deep, wide = alone.spent(widths.d_ffn, None), alone.spent(None, widths.d_ffn_wide)
            alpha = round(100 * (deep - gate) / (deep + wide - 2 * gate), 1)
        return Cell(
            self.name, self.family, self.budget, (target.match,), alpha,
            model, float(self.spent(multiple)), self.layers_times,
        )  # fmt: skip


def _kinds(wanted: Wanted, budget: int, backbone: ModelConfig) -> tuple[list[_Kind], list[str]]:
    """The cells of a budget that have room, and a line for each that has none."""
    kinds, notes = [], []
    found = (_kinds_of_match(wanted, match, budget, backbone) for match in wanted.matches)
    for kind in chain.from_iterable(found):
        if kind.has_room:
            kinds.append(kind)
            continue
        try:
            solve_widths(kind.target)
            reason = "the budget leaves its wide path nothing"
        except UserError as error:
            reason = str(error)
        notes.append(f"{kind.name} cannot be: {reason}")
    return kinds, notes


def _kinds_of_match(
    wanted: Wanted, match: Match, budget: int, backbone: ModelConfig
) -> Iterator[_Kind]:
    looped = [k for k in wanted.loops if k > 1]
    end = TOTAL if match == "total" and len(wanted.matches) > 1 else ""
    dual = Target(
        budget, match=match, reference_loops=max(wanted.loops), d_model=backbone.d_model,
        n_heads=backbone.n_heads, n_kv_heads=backbone.n_kv_heads,
        seq_len=backbone.max_seq_len, gate_flops=gate_flops(backbone),
    )  # fmt: skip
    wide = replace(dual, block="wide", loops=1)

    def kind(name: str, family: str, target: Target, **more: Any) -> _Kind:
        return _Kind(f"{name}{end}", family, budget, target, backbone.n_layers, **more)

    def kinds(name: str, family: str, target: Target) -> Iterator[_Kind]:
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
        yield from kinds(f"a{alpha:g}_k{k}", "dual", replace(dual, alpha=alpha, loops=k))
    if "min-deep" in wanted.controls:
        for k in wanted.loops:
            yield kind(f"min_deep_k{k}", "dual", replace(dual, loops=k), smallest_deep=True)
    if "expanded" in wanted.controls and match == "linear":
        # A layer more is an attention pass more: beside K loops the scores are alike.
        for k in looped:
            target = replace(wide, budget=budget // k)
            yield kind(f"expanded_k{k}", "expanded", target, layers_times=k)


def _multiple(kinds: Sequence[_Kind], coarsest: int) -> int:
    """The coarsest of a multiple and its halves that brings all within the tolerance.

    The finest one where none does.
    """
    multiple = coarsest
    while multiple % 2 == 0:
        if all(abs(kind.spent(multiple) - 1) <= TOLERANCE for kind in kinds):
            return multiple
        multiple //= 2
    return multiple
