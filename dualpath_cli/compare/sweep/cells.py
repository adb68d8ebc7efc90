"""The configurations of a sweep, each solved for the budget. Torch-free.

Of each budget there are, by their names:

    wide             PureWide
    loop_k4          PureLoop
    a50_k4           dual, alpha 50 %, K = 4
    core_r4          PureWide whose middle half of the layers is applied R times
    core_r4_params   the same, as wide as PureWide: of equal parameters, but more FLOPs
    expanded_k4      PureWide of K times as many layers, each with a K-th of the budget
    a50_k4_layer2    PureWide but for layer 2, which is dual: --positions, for each
                     layer

Each is solved for every combination of those varied keys that change a layer's FLOPs,
`SHAPING`. All of a budget have one width multiple: the coarsest, by halves of the
recipe's, that brings each of them to within 1 % of it (`widths.TOLERANCE`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import chain, product
from typing import Any, TypeVar

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size
from dualpath_cli.compare.configurations import Family
from dualpath_cli.flops.count import gate_flops
from dualpath_cli.flops.widths import (
    TOLERANCE,
    FlopMatch,
    Target,
    Widths,
    solve_widths,
)
from dualpath_cli.recipe.keys import has_effect
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.spec.config import ModelConfig

CONTROLS = ("wide", "loop", "core", "expanded")  # as --controls names them
SHAPING = ("core", "core_loops", "injection", "step_kv", "deep_ffn")
"""Fields of a model that --set may vary, and for whose values widths are solved."""

T = TypeVar("T")

Shape = Mapping[str, Any]
"""Fields of `SHAPING` with their values."""


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
    # the varied values that its widths were solved for, which `model` has not
    shape: Shape = field(default_factory=dict)
    # whether its parameters are those of PureWide, instead of its FLOPs
    by_parameters: bool = False

    @property
    def title(self) -> str:
        """Its name, and the values that its widths were solved for."""
        return _titled(self.name, self.shape)


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


def solve_cells(
    grid: Grid, backbone: ModelConfig, shapes: Sequence[Shape] = ({},)
) -> tuple[list[SweepCell], list[str]]:
    """Returns the cells, and a line for each that cannot be or is not within 1 % of the
    budget.

    `backbone` gives everything but block, loops, widths and experts; `shapes` are
    fields over it, for each of which all cells are solved.
    """
    backbones = [_with_shape(backbone, shape) for shape in shapes]
    cells: list[SweepCell] = []
    notes: list[str] = []
    for budget in grid.budgets:
        kinds = []
        for kind in _kinds_of_shapes(grid, budget, backbones, shapes):
            try:
                solve_widths(kind.to_solve)
                kinds.append(kind)
            except UserError as error:
                title = _titled(kind.name, kind.shape)
                notes.append(f"{title} is not possible: {error}")
        cells += _solve_together(kinds, backbone.ffn_multiple_of)

    notes += _notes_on_controls(grid, backbones)
    if not cells:
        reason = notes[0] if notes else "neither --alphas nor --controls names one"
        raise UserError(f"no configuration is possible: {reason}")

    _check_valid(cells, backbone)
    notes += [
        f"{cell.title} spends {cell.spent:.4f} of the budget: no width comes nearer"
        for cell in cells
        if not _is_near(cell)
    ]

    if len(grid.budgets) > 1:
        cells = [_with_budget_in_name(cell) for cell in cells]
    return cells, notes


def _with_shape(backbone: ModelConfig, shape: Shape) -> ModelConfig:
    """Raises UserError for values that no width can be solved for."""
    changed = backbone
    if shape:
        changed = settings_from({"model": {**asdict(backbone), **shape}}).model

    for name in ("step_kv", "deep_ffn"):
        value = getattr(changed, name)
        if isinstance(value, list):
            raise UserError(
                f"model.{name} is a list, but widths are solved for layers that are "
                "alike; give one value"
            )
    return changed


def _titled(name: str, shape: Shape) -> str:
    values = ", ".join(f"{key}={value}" for key, value in shape.items())
    return f"{name} with {values}" if values else name


def _notes_on_controls(grid: Grid, backbones: Sequence[ModelConfig]) -> list[str]:
    notes = []
    has_core = any(backbone.repeats_core for backbone in backbones)
    if "expanded" in grid.controls and grid.match == "total":
        notes.append("expanded is matched only in linear FLOPs: left out")
    elif "expanded" in grid.controls and has_core:
        notes.append("expanded repeats no layers: left out where the model has a core")
    looped = "loop" in grid.controls or "expanded" in grid.controls
    if looped and 1 in grid.loops:
        notes.append("no loop or expanded cell at K = 1: that is PureWide")
    if len(grid.alphas) > 1 and not all(backbone.deep_ffn for backbone in backbones):
        notes.append(
            "alpha has no effect if steps have no feed-forward: only the cells "
            f"a{grid.alphas[0]:g} are planned for such models"
        )
    if "core" in grid.controls and 1 in grid.loops:
        notes.append("no core cell at R = 1: that is PureWide")
    return notes


def _is_near(cell: SweepCell) -> bool:
    return cell.by_parameters or abs(cell.spent - 1) <= TOLERANCE


def _check_valid(cells: Sequence[SweepCell], backbone: ModelConfig) -> None:
    for cell in cells:
        try:
            replace(backbone, **{**cell.shape, **cell.model})
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
    # times the backbone's layers, among which the budget is divided
    layers_times: int = 1
    # the only layer of this kind, among PureWide ones; None: all layers
    place: int | None = None
    core: range = range(0)  # the layers of its core
    # fields that are not the backbone's, such as those of its core
    own: Shape = field(default_factory=dict)
    shape: Shape = field(default_factory=dict)
    # as wide as PureWide, so that parameters are equal instead of FLOPs
    by_parameters: bool = False

    @property
    def to_solve(self) -> Target:
        """The target of the widths: of equal parameters, PureWide's."""
        return replace(self.target, core_loops=1) if self.by_parameters else self.target

    def solved(self, multiple: int) -> SweepCell:
        """The cell with widths in a multiple."""
        target = replace(self.target, multiple_of=multiple)
        widths = solve_widths(replace(self.to_solve, multiple_of=multiple))
        spent = _share_spent(target, widths.d_ffn, widths.d_ffn_wide)
        model: dict[str, Any] = {
            "block": target.block,
            "loops": target.loops,
            "d_ffn": widths.d_ffn,
            "d_ffn_wide": widths.d_ffn_wide,
            "ffn_multiple_of": multiple,
            **self.own,
        }

        # The other layers are PureWide of equal FLOPs, and so nearly as close.
        if self.place is not None:
            wide = replace(target, block="wide", loops=1)
            width = solve_widths(wide).d_ffn_wide
            model |= _among_wide_layers(self.place, target, widths.d_ffn_wide, width)
            part = self._part_of_model(self.place, target)
            spent = part * spent + (1 - part) * _share_spent(wide, None, width)
        if self.layers_times > 1:
            model["n_layers"] = target.n_layers * self.layers_times

        return SweepCell(
            self.name,
            self.family,
            self.budget,
            target.match,
            alpha=_alpha(target, widths) if self.family == "dual" else None,
            model=model,
            spent=float(spent),
            layers_times=self.layers_times,
            shape=self.shape,
            by_parameters=self.by_parameters,
        )

    def _part_of_model(self, place: int, target: Target) -> Fraction:
        """The part that a layer has of all applications of layers."""
        times = target.core_loops if place in self.core else 1
        return times / (target.applications * target.n_layers)


def _among_wide_layers(
    place: int, target: Target, own_wide: int | None, width: int | None
) -> dict[str, Any]:
    """Blocks and wide widths by layer, where only the layer at `place` is of its
    kind."""
    blocks: list[str] = ["wide"] * target.n_layers
    blocks[place] = target.block
    if target.block == "loop":  # it has no wide path
        return {"block": blocks, "d_ffn_wide": width}

    widths = [width] * target.n_layers
    widths[place] = own_wide
    return {"block": blocks, "d_ffn_wide": widths}


def _alpha(target: Target, widths: Widths) -> float:
    """Percent of the deep path; without a feed-forward it follows from the widths."""
    if target.deep_ffn:
        return target.alpha
    deep = target.deep_projections
    wide = target.projections + target.ffn(widths.d_ffn_wide)
    return round(100 * deep / (deep + wide), 2)


def _share_spent(target: Target, d_ffn: int | None, d_ffn_wide: int | None) -> Fraction:
    return Fraction(target.spent(d_ffn, d_ffn_wide), target.matched_budget)


def _kinds_of_shapes(
    grid: Grid,
    budget: int,
    backbones: Sequence[ModelConfig],
    shapes: Sequence[Shape],
) -> Iterator[_Kind]:
    """The cells of one budget, in the order of tables; each with all shapes."""
    found: dict[tuple[str, float], list[_Kind]] = {}
    for backbone, shape in zip(backbones, shapes, strict=True):
        for kind in _kinds(grid, budget, backbone):
            mattering = _mattering(shape, kind, backbone)
            # Names round alpha, and two of one name are refused later.
            alike = found.setdefault((kind.name, kind.target.alpha), [])
            if all(mattering != other.shape for other in alike):
                alike.append(replace(kind, shape=mattering))
    return chain.from_iterable(found.values())


def _mattering(shape: Shape, kind: _Kind, backbone: ModelConfig) -> Shape:
    """The fields that have an effect on a cell's model, and are not its own."""
    target = kind.target
    model = replace(backbone, block=target.block, loops=target.loops, **kind.own)
    return {
        name: value
        for name, value in shape.items()
        if name not in kind.own and has_effect(f"model.{name}", model)
    }


def _kinds(grid: Grid, budget: int, backbone: ModelConfig) -> Iterator[_Kind]:
    """The cells of one budget and backbone, in the order of tables."""
    looped = [k for k in grid.loops if k > 1]
    _, core, _ = backbone.stretches
    n_layers = backbone.n_layers
    dual = Target(
        budget,
        match=grid.match,
        reference_loops=max(grid.loops),
        d_model=backbone.d_model,
        n_heads=backbone.n_heads,
        n_kv_heads=backbone.n_kv_heads,
        seq_len=backbone.max_seq_len,
        gate_flops=gate_flops(backbone),
        step_kv=_one(backbone.step_kv),
        deep_ffn=_one(backbone.deep_ffn),
        n_layers=n_layers,
        core_layers=len(core),
        core_loops=backbone.core_loops if core else 1,
        injection=backbone.injection,
    )
    wide = replace(dual, block="wide", loops=1)

    def by_place(name: str, family: Family, target: Target) -> Iterator[_Kind]:
        """All layers of this kind, or each in turn."""
        if not grid.positions:
            yield _Kind(name, family, budget, target)
            return
        for n in range(n_layers):
            placed = f"{name}_layer{n}"
            yield _Kind(placed, family, budget, target, place=n, core=core)

    if "wide" in grid.controls:
        family: Family = "core" if backbone.repeats_core else "wide"
        yield _Kind("wide", family, budget, wide)
    if "loop" in grid.controls:
        for k in looped:
            yield from by_place(
                f"loop_k{k}", "loop", replace(dual, block="loop", loops=k)
            )
    if "core" in grid.controls:
        yield from _cores(looped, budget, wide)
    # Without a feed-forward alpha decides nothing: the first one names the cells.
    alphas = grid.alphas if dual.deep_ffn else grid.alphas[:1]
    for alpha, k in product(alphas, grid.loops):
        target = replace(dual, alpha=alpha, loops=k)
        yield from by_place(f"a{alpha:g}_k{k}", "dual", target)
    linear = grid.match == "linear"
    if "expanded" in grid.controls and linear and not backbone.repeats_core:
        # A list by layer would be too short, and means nothing without a deep path.
        own = {"untied_steps": False} if isinstance(backbone.untied_steps, list) else {}
        # A layer more is an attention pass more: beside K loops the scores are alike.
        for k in looped:
            target = replace(wide, budget=budget // k)
            yield _Kind(
                f"expanded_k{k}", "expanded", budget, target, layers_times=k, own=own
            )


def _cores(loops: Sequence[int], budget: int, wide: Target) -> Iterator[_Kind]:
    """PureWide whose middle half is a core: of equal FLOPs, then of equal
    parameters."""
    n_layers = wide.n_layers
    half = (n_layers + 1) // 2
    first = (n_layers - half) // 2
    for by_parameters in (False, True):
        for r in loops:
            yield _Kind(
                f"core_r{r}" + ("_params" if by_parameters else ""),
                "core",
                budget,
                replace(wide, core_layers=half, core_loops=r),
                own={"core": [first, first + half - 1], "core_loops": r},
                by_parameters=by_parameters,
            )


def _one(value: T | list[T]) -> T:
    """The value of all layers, which `_with_shape` has checked."""
    assert not isinstance(value, list)
    return value


def _solve_together(kinds: Sequence[_Kind], multiple: int) -> list[SweepCell]:
    """Solves all cells with the largest width multiple (halved as needed) that keeps
    each within the tolerance; with the finest where none does."""
    while True:
        cells = [kind.solved(multiple) for kind in kinds]
        all_near = all(_is_near(cell) for cell in cells)
        if all_near or multiple % 2:
            return cells
        multiple //= 2
