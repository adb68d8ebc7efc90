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
from dualpath_cli.compare.configurations import Family
from dualpath_cli.flops.count import gate_flops
from dualpath_cli.flops.widths import TOLERANCE, FlopMatch, Target, solve_widths
from dualpath_cli.spec.config import ModelConfig

CONTROLS = ("wide", "loop", "expanded")  # as --controls names them


@dataclass(frozen=True)
class SweepCell:
    """One configuration, without seed and settings."""

    name: str
    family: Family
    budget: int  # F_M, FLOPs per token and layer, of the backbone's number of layers
    match: FlopMatch  # the FLOPs that meet the budget
    alpha: float | None  # percent of the FLOPs on the deep path; None for a single path
    model: dict[str, Any]  # fields of the model section that make it this configuration
    # matched FLOPs per token and layer, over the FLOPs that they should be
    spent: float
    # its layers over those of the backbone, which share the budget
    layers_times: int = 1


@dataclass(frozen=True)
class Grid:
    """The lists of a sweep, whose combinations are cells."""

    budgets: Sequence[int]
    alphas: Sequence[float]
    loops: Sequence[int]
    controls: Sequence[str]
    match: FlopMatch = "linear"
    # one layer at a time is dual or loop, and all others PureWide
    positions: bool = False


def solve_cells(grid: Grid, backbone: ModelConfig) -> tuple[list[SweepCell], list[str]]:
    """Returns the cells, and a line for each that cannot be or is not within 1 % of the
    budget.

    `backbone` gives everything but block, loops, widths and experts.
    """
    cells: list[SweepCell] = []
    notes: list[str] = []
    for budget in grid.budgets:
        kinds = []
        for kind in _kinds(grid, budget, backbone):
            try:
                solve_widths(kind.target)
                kinds.append(kind)
            except UserError as error:
                notes.append(f"{kind.name} cannot be: {error}")
        cells += _solve_together(kinds, backbone.ffn_multiple_of)

    notes += _notes_on_controls(grid)
    if not cells:
        reason = notes[0] if notes else "neither --alphas nor --controls names one"
        raise UserError(f"no configuration can be: {reason}")

    _check_valid(cells, backbone)
    notes += [
        f"{cell.name} spends {cell.spent:.4f} of the budget: no width comes nearer"
        for cell in cells
        if not _is_near(cell)
    ]

    if len(grid.budgets) > 1:
        cells = [_with_budget_in_name(cell) for cell in cells]
    return cells, notes


def _notes_on_controls(grid: Grid) -> list[str]:
    notes = []
    if "expanded" in grid.controls and grid.match == "total":
        notes.append("expanded is matched only in linear FLOPs: left out")
    looped = "loop" in grid.controls or "expanded" in grid.controls
    if looped and 1 in grid.loops:
        notes.append("no loop or expanded cell at K = 1: that is PureWide")
    return notes


def _is_near(cell: SweepCell) -> bool:
    return abs(cell.spent - 1) <= TOLERANCE


def _check_valid(cells: Sequence[SweepCell], backbone: ModelConfig) -> None:
    for cell in cells:
        try:
            replace(backbone, **cell.model)
        except ValueError as error:
            which = f"--budget {format_size(cell.budget)} and {cell.name}"
            raise UserError(f"{which}: {error}; give a smaller one") from None


def _with_budget_in_name(cell: SweepCell) -> SweepCell:
    return replace(cell, name=f"f{format_size(cell.budget).lower()}_{cell.name}")


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

    def solved(self, multiple: int) -> SweepCell:
        """The cell with widths in a multiple."""
        target = replace(self.target, multiple_of=multiple)
        widths = solve_widths(target)
        spent = _share_spent(target, widths.d_ffn, widths.d_ffn_wide)
        model: dict[str, Any] = {
            "block": target.block,
            "loops": target.loops,
            "d_ffn": widths.d_ffn,
            "d_ffn_wide": widths.d_ffn_wide,
            "ffn_multiple_of": multiple,
        }

        # The other layers are PureWide of equal FLOPs, and so nearly as close.
        if self.place is not None:
            wide = replace(target, block="wide", loops=1)
            width = solve_widths(wide).d_ffn_wide
            model |= self._among_wide_layers(target, widths.d_ffn_wide, width)
            of_wide = _share_spent(wide, None, width)
            spent = (spent + (self.n_layers - 1) * of_wide) / self.n_layers
        if self.layers_times > 1:
            model["n_layers"] = self.n_layers * self.layers_times

        return SweepCell(
            self.name,
            self.family,
            self.budget,
            target.match,
            alpha=target.alpha if self.family == "dual" else None,
            model=model,
            spent=float(spent),
            layers_times=self.layers_times,
        )

    def _among_wide_layers(
        self, target: Target, own_wide: int | None, width: int | None
    ) -> dict[str, Any]:
        """Blocks and wide widths by layer, where only one layer is of this kind."""
        assert self.place is not None
        blocks: list[str] = ["wide"] * self.n_layers
        blocks[self.place] = target.block
        if target.block != "dual":  # a loop block has no wide path
            return {"block": blocks, "d_ffn_wide": width}

        widths = [width] * self.n_layers
        widths[self.place] = own_wide
        return {"block": blocks, "d_ffn_wide": widths}


def _share_spent(target: Target, d_ffn: int | None, d_ffn_wide: int | None) -> Fraction:
    return Fraction(target.spent(d_ffn, d_ffn_wide), target.matched_budget)


def _kinds(grid: Grid, budget: int, backbone: ModelConfig) -> Iterator[_Kind]:
    """The cells of one budget, in the order of tables."""
    looped = [k for k in grid.loops if k > 1]
    dual = Target(
        budget,
        match=grid.match,
        reference_loops=max(grid.loops),
        d_model=backbone.d_model,
        n_heads=backbone.n_heads,
        n_kv_heads=backbone.n_kv_heads,
        seq_len=backbone.max_seq_len,
        gate_flops=gate_flops(backbone),
    )
    wide = replace(dual, block="wide", loops=1)
    n_layers = backbone.n_layers

    def by_place(name: str, family: Family, target: Target) -> Iterator[_Kind]:
        """All layers of this kind, or each in turn."""
        if not grid.positions:
            yield _Kind(name, family, budget, target, n_layers)
            return
        for n in range(n_layers):
            yield _Kind(f"{name}_layer{n}", family, budget, target, n_layers, place=n)

    if "wide" in grid.controls:
        yield _Kind("wide", "wide", budget, wide, n_layers)
    if "loop" in grid.controls:
        for k in looped:
            yield from by_place(
                f"loop_k{k}", "loop", replace(dual, block="loop", loops=k)
            )
    for alpha, k in product(grid.alphas, grid.loops):
        target = replace(dual, alpha=alpha, loops=k)
        yield from by_place(f"a{alpha:g}_k{k}", "dual", target)
    if "expanded" in grid.controls and grid.match == "linear":
        # A layer more is an attention pass more: beside K loops the scores are alike.
        for k in looped:
            target = replace(wide, budget=budget // k)
            yield _Kind(
                f"expanded_k{k}", "expanded", budget, target, n_layers, layers_times=k
            )


def _solve_together(kinds: Sequence[_Kind], multiple: int) -> list[SweepCell]:
    """Solves all cells with the largest width multiple (halved as needed) that keeps
    each within the tolerance; with the finest where none does."""
    while True:
        cells = [kind.solved(multiple) for kind in kinds]
        all_near = all(_is_near(cell) for cell in cells)
        if all_near or multiple % 2:
            return cells
        multiple //= 2
