"""The FFN widths that a FLOP budget buys (appendix FLOP-matching, "Solving for FFN
widths").

`solve_widths` follows the paper, with a given multiple. `solve_within` also finds the
multiple: equal sums of linear FLOPs and attention scores (--match total) need a finer
one than the paper's.

A budget is the mean over layers. A core applies some of them R times, so that each
application has a part of the budget, after the injection has had its own.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from math import floor
from typing import Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import format_size
from dualpath_cli.flops.count import (
    deep_flops,
    kv_flops,
    passes,
    projection_flops,
    score_flops,
)
from dualpath_cli.spec.config import BlockKind, Injection, StepKv, effective_width

FlopMatch = Literal["linear", "total"]

TOLERANCE = Fraction(1, 100)  # of `solve_within`: deviation of a block's FLOPs


@dataclass(frozen=True)
class Target:
    """The target of widths: a budget, the block that spends it, its backbone.

    The defaults are the paper's backbone (appendix configurations).
    """

    budget: int  # F_M, linear FLOPs per token and layer
    block: BlockKind = "dual"  # kind of block that spends the budget
    alpha: float = 50  # percent of a dual block's FLOPs, gate aside, for the deep path
    loops: int = 4  # K of the deep path
    match: FlopMatch = "linear"
    """linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and
    attention scores together meet the budget plus the reference_loops + 1 attention
    passes of a dual block; blocks with fewer passes then get wider FFNs."""
    reference_loops: int | None = None
    """K of the reference block of match total; None means ``loops``."""
    d_model: int = 768  # width of the residual stream
    n_heads: int = 12  # number of query heads
    n_kv_heads: int = 12  # number of key and value heads
    seq_len: int = 4096  # tokens that attention scores are averaged over
    gate_flops: int | None = None
    """Forward FLOPs per token of a dual block's gate; None: those of two gates, 4
    d_model."""
    multiple_of: int = 64
    """Configured widths are multiples of this, and effective widths round up to it (Eq.
    heff)."""
    step_kv: StepKv = "own"  # keys and values of the steps of a deep path
    deep_ffn: bool = True
    """Whether steps have a feed-forward. Without one the deep path of a dual block
    costs its projections, whatever alpha is, and the wide path gets all else."""
    n_layers: int = 1  # layers that share the budget
    core_layers: int = 0  # layers of the core
    core_loops: int = 1  # R, repetitions of the core
    injection: Injection = "none"

    def __post_init__(self) -> None:
        for name in ("budget", "loops", "seq_len", "multiple_of"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.block == "dual" and not 0 < self.alpha < 100:
            raise UserError(
                f"alpha must be between 0 and 100 percent, not {self.alpha:g}; "
                "for a single path use block 'wide' or 'loop'"
            )

    @property
    def off_the_top(self) -> int:
        """FLOPs per token and layer of the gate, which are spent before the paths'
        shares."""
        if self.block != "dual":
            return 0
        return 4 * self.d_model if self.gate_flops is None else self.gate_flops

    @property
    def reference_passes(self) -> int:
        """Attention passes of the reference block of match total."""
        return passes("dual", self.reference_loops or self.loops)

    @property
    def matched_budget(self) -> int:
        """FLOPs per token and layer to meet: linear, or linear and attention scores."""
        if self.match == "linear":
            return self.budget
        scores = score_flops(self.d_model, self.seq_len)
        return self.budget + self.reference_passes * scores

    @property
    def applications(self) -> Fraction:
        """How often a layer is applied, the mean over layers."""
        repeated = self.core_layers * (self.core_loops - 1)
        return 1 + Fraction(repeated, self.n_layers)

    @property
    def injection_flops(self) -> Fraction:
        """FLOPs per token and layer of the core's injection."""
        if not self.core_layers or self.injection != "linear":
            return Fraction(0)
        return Fraction((self.core_loops - 1) * 4 * self.d_model**2, self.n_layers)

    @property
    def attention_scores(self) -> Fraction:
        """FLOPs per token and layer of QK^T and AV in all applications."""
        scores = score_flops(self.d_model, self.seq_len)
        return self.applications * passes(self.block, self.loops) * scores

    @property
    def linear_budget(self) -> Fraction:
        """The part of matched_budget that is left for the linear FLOPs of one
        application of this block."""
        left = self.matched_budget - self.injection_flops
        if self.match == "total":
            left -= self.attention_scores
        return left / self.applications

    @property
    def projections(self) -> int:
        """FLOPs of the q, k, v and output projections of a pass."""
        return projection_flops(self.d_model, self.n_heads, self.n_kv_heads)

    @property
    def deep_projections(self) -> int:
        """FLOPs of the projections of all steps of the deep path."""
        shared = 0
        if self.step_kv == "first":
            shared = kv_flops(self.d_model, self.n_heads, self.n_kv_heads)
        return deep_flops(self.loops, self.projections, shared)

    def ffn(self, width: int | None) -> int:
        """FLOPs of a SwiGLU of a configured width; 0 without one."""
        return 6 * self.d_model * effective_width(width or 0, self.multiple_of)

    def exact_widths(self) -> tuple[Fraction | None, Fraction | None]:
        """Effective widths (deep, wide) that spend the budget exactly; None for a
        missing path, or one without a feed-forward."""
        unit = 6 * self.d_model  # FLOPs of a channel
        flops = self.linear_budget
        if self.block == "wide":
            return None, (flops - self.projections) / unit
        if self.block == "loop":
            return (flops - self.deep_projections) / (self.loops * unit), None

        # The gate is spent before the paths' shares.
        flops -= self.off_the_top
        if not self.deep_ffn:
            return None, (flops - self.deep_projections - self.projections) / unit

        # str: 12.1 is 121/10, not its binary neighbour
        share = Fraction(str(self.alpha)) / 100
        deep = (flops * share - self.deep_projections) / (self.loops * unit)
        wide = (flops * (1 - share) - self.projections) / unit
        return deep, wide

    def spent(self, d_ffn: int | None, d_ffn_wide: int | None) -> Fraction:
        """FLOPs per token and layer of a model with these configured widths.

        Counted as in ``matched_budget``: linear FLOPs, and attention scores under match
        total.
        """
        flops = self.off_the_top
        if self.block != "wide":
            flops += self.deep_projections + self.loops * self.ffn(d_ffn)
        if self.block != "loop":
            flops += self.projections + self.ffn(d_ffn_wide)

        spent = self.applications * flops + self.injection_flops
        if self.match == "total":
            spent += self.attention_scores
        return spent

    @property
    def has_room(self) -> bool:
        """Whether every path has FLOPs left for an FFN after its attention
        projections."""
        return all(exact is None or exact > 0 for exact in self.exact_widths())


@dataclass(frozen=True)
class Widths:
    """Configured FFN widths that a budget buys."""

    d_ffn: int | None
    """Width of the deep path; None for a wide block, or steps without a
    feed-forward."""
    d_ffn_wide: int | None  # width of the wide path; None for a loop block
    clamped: tuple[str, ...] = ()
    """Names of widths that were raised to the smallest multiple with a channel, and so
    exceed their share."""


def solve_widths(target: Target) -> Widths:
    """Returns the configured widths for a target.

    Loop and dual widths are the largest multiples whose effective width stays at or
    below the exact one. PureWide rounds up instead, first the effective width, then the
    configured one: this gives the paper's 24576 and 50624. A width whose exact value is
    positive but below one multiple is raised to one multiple, and at least to 2.
    """
    if target.block == "loop" and not target.deep_ffn:
        raise UserError(
            "a block 'loop' whose steps have no feed-forward has no width to solve; "
            "choose block 'dual', or leave the feed-forward in (deep_ffn)"
        )
    if not target.has_room:
        raise UserError(_no_room(target))

    m = target.multiple_of
    exact_deep, exact_wide = target.exact_widths()
    if target.block == "wide":
        assert exact_wide is not None
        # First the effective width is rounded up, then the configured one.
        effective = _ceil(exact_wide, m)
        return Widths(None, _ceil(Fraction(3, 2) * effective, m))

    # A width of 0 is raised to one multiple, as in the paper's F80M a25 K4.
    widths = {
        name: None if exact is None else largest_width(exact, m)
        for name, exact in (("d_ffn", exact_deep), ("d_ffn_wide", exact_wide))
    }
    clamped = tuple(name for name, width in widths.items() if width == 0)
    # A width of 1 has no channel.
    widths |= dict.fromkeys(clamped, max(m, 2))
    return Widths(**widths, clamped=clamped)


def solve_within(target: Target) -> tuple[Target, Widths]:
    """The coarsest width multiple that spends the matched budget to within TOLERANCE.

    Candidates are ``target.multiple_of`` and its halves, down to an odd number. Returns
    the target with the multiple found, and the widths. If no candidate meets the
    budget, the finest is taken: possible for a ``d_model`` below 150, where one more
    channel of a pass is over 1 % of its projections.
    """
    while True:
        widths = solve_widths(target)
        spent = target.spent(widths.d_ffn, widths.d_ffn_wide)
        deviation = abs(spent - target.matched_budget)
        near = deviation <= TOLERANCE * target.matched_budget
        if near or target.multiple_of % 2:
            return target, widths
        target = replace(target, multiple_of=target.multiple_of // 2)


def largest_width(exact: Fraction, multiple_of: int) -> int:
    """The largest multiple whose effective width is at most ``exact``; 0 if none of
    them has a channel."""
    effective = int(exact // multiple_of) * multiple_of
    if effective < 1:
        return 0
    # floor(2 w / 3) <= effective is 2 w <= 3 effective + 2
    width = (3 * effective + 2) // 2 // multiple_of * multiple_of
    assert effective_width(width, multiple_of) <= exact
    return width


def _ceil(value: Fraction | int, multiple_of: int) -> int:
    """The smallest multiple at or above ``value``."""
    return int(-(-value // multiple_of)) * multiple_of


def ways_out(target: Target) -> dict[str, int]:
    """Nearest whole alpha, largest K and R, and smallest budget (to three digits) that
    have room.

    Each changes only one field; a field that cannot help is left out.
    """
    ways: dict[str, int] = {}
    if target.block == "dual" and target.deep_ffn:
        fitting = [a for a in range(1, 100) if replace(target, alpha=a).has_room]
        if fitting:
            ways["alpha"] = min(fitting, key=lambda a: abs(a - target.alpha))

    if target.block != "wide" and replace(target, loops=1).has_room:
        ways["loops"] = _most_with_room(target, "loops")
    if replace(target, core_loops=1).has_room:
        ways["core_loops"] = _most_with_room(target, "core_loops")

    budget = _least_budget(target)
    to_three_digits = 10 ** max(0, len(str(budget)) - 3)
    ways["budget"] = _ceil(budget, to_three_digits)
    return ways


def _most_with_room(target: Target, name: Literal["loops", "core_loops"]) -> int:
    """The largest K or R that leaves room for an FFN: more loops leave less."""

    def has_room(loops: int) -> bool:
        changed: dict[str, Any] = {name: loops}
        return replace(target, **changed).has_room

    # 1 has room, as `ways_out` has asked.
    return max(takewhile(has_room, range(1, getattr(target, name))))


def _least_budget(target: Target) -> int:
    """The smallest budget with room for every path."""
    # Widths are linear in the budget: values at 1 and 2 give the budget where a width
    # becomes 0.
    at_1 = replace(target, budget=1).exact_widths()
    at_2 = replace(target, budget=2).exact_widths()
    zeros = []
    for width_1, width_2 in zip(at_1, at_2, strict=True):
        if width_1 is not None and width_2 is not None:
            zeros.append(1 - width_1 / (width_2 - width_1))
    return max(1, floor(max(zeros)) + 1)


def _no_room(target: Target) -> str:
    """One line: the path without room, and the alpha, K, R or budget that gives
    room."""
    settings = {
        "wide": "",
        "loop": f" with K={target.loops}",
        "dual": f" with alpha={target.alpha:g} and K={target.loops}",
    }[target.block]
    if target.core_loops > 1:
        settings += f" in a core of R={target.core_loops}"

    names = {
        "alpha": "alpha {}",
        "loops": "K={}",
        "core_loops": "R={}",
        "budget": "a budget of {}",
    }
    ways = [
        names[field].format(format_size(value) if field == "budget" else value)
        for field, value in ways_out(target).items()
    ]

    percent = ""
    if target.block == "dual" and target.alpha < 1:
        percent = (
            f" (alpha is in percent: {100 * target.alpha:g} rather than "
            f"{target.alpha:g}?)"
        )
    return (
        f"a budget of {format_size(target.budget)} leaves block '{target.block}'"
        f"{settings} nothing for an FFN after its attention projections; "
        f"{' or '.join(ways)} would do{percent}"
    )
