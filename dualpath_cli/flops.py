"""FLOPs and parameters of any ModelConfig, and the widths that a FLOP budget buys.

Torch-free. The accounting is the paper's (appendix FLOP-matching): two FLOPs a multiply-add, per
token and layer, matrices only; norms, activations and softmaxes are not counted. One pass of a
sublayer over a token costs

    attention projections   4 d^2 + 4 d^2 / n_rep     n_rep query heads share a key/value head
    SwiGLU                  6 d h                     h the effective width, Eq. heff
    attention scores        2 T d                     QK^T and AV, the causal half; not in F_M

and a layer adds the gate (4 d) and, in every deep step but the last, the router (2 (d + 1)).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction

from dualpath_cli.config import BlockKind, ModelConfig, effective_width
from dualpath_cli.errors import UserError

GATE_OUTPUTS = {"two_gates": 2, "softmax": 2, "convex": 1, "fixed": 0}
"""Columns of the gate's matrix, for each value of ModelConfig.gate."""


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs of one layer per token, by part."""

    deep: int
    """Projections and SwiGLU of all K deep steps."""
    wide: int
    """Projections and SwiGLU of the wide pass."""
    gate: int
    """The gate's matrix."""
    router: int
    """The router's matrix in K - 1 steps; the last step takes what remains and needs none."""
    attention_scores: int
    """QK^T and AV of every pass, causal."""

    @property
    def linear_total(self) -> int:
        """What the paper calls F_M: deep + wide + gate."""
        return self.deep + self.wide + self.gate

    @property
    def total(self) -> int:
        """Linear FLOPs, router and attention scores."""
        return self.linear_total + self.router + self.attention_scores

    def as_dict(self) -> dict[str, int]:
        """All parts and both totals, by name."""
        return {**asdict(self), "linear_total": self.linear_total, "total": self.total}


def projection_flops(d_model: int, n_heads: int, n_kv_heads: int) -> int:
    """FLOPs of the q, k, v and output projections for one token."""
    return 4 * d_model**2 + 4 * d_model**2 * n_kv_heads // n_heads


def score_flops(d_model: int, seq_len: int) -> int:
    """FLOPs of QK^T and AV for one token of a causal pass, averaged over ``seq_len`` tokens."""
    return 2 * seq_len * d_model


def passes(kind: BlockKind, loops: int) -> int:
    """How often a layer of this kind applies a sublayer, attention included."""
    return {"wide": 1, "loop": loops, "dual": loops + 1}[kind]


def layer_flops(config: ModelConfig, kind: BlockKind, seq_len: int | None = None) -> LayerFlops:
    """Forward FLOPs per token of a layer of ``kind``; ``seq_len`` defaults to max_seq_len."""
    d = config.d_model
    projections = projection_flops(d, config.n_heads, config.n_kv_heads)
    routed_steps = config.loops - 1 if config.routes_steps and kind != "wide" else 0

    def sublayer(d_ffn: int | None) -> int:
        assert d_ffn is not None  # ModelConfig refuses a path without a width
        return projections + 6 * d * config.effective_width(d_ffn)

    return LayerFlops(
        deep=config.loops * sublayer(config.d_ffn) if kind != "wide" else 0,
        wide=sublayer(config.d_ffn_wide) if kind != "loop" else 0,
        gate=2 * d * GATE_OUTPUTS[config.gate] if kind == "dual" else 0,
        router=2 * (d + 1) * routed_steps,
        attention_scores=passes(kind, config.loops)
        * score_flops(d, config.max_seq_len if seq_len is None else seq_len),
    )


def flops_by_layer(config: ModelConfig, seq_len: int | None = None) -> list[LayerFlops]:
    """Forward FLOPs per token of every layer, from the first to the last."""
    by_kind = {kind: layer_flops(config, kind, seq_len) for kind in set(config.block_kinds)}
    return [by_kind[kind] for kind in config.block_kinds]


def mean_layer_flops(config: ModelConfig, seq_len: int | None = None) -> dict[str, int | float]:
    """FLOPs per token and layer by part, averaged over layers; whole unless kinds are mixed."""
    layers = [layer.as_dict() for layer in flops_by_layer(config, seq_len)]
    sums = {part: sum(layer[part] for layer in layers) for part in layers[0]}
    n = len(layers)
    return {part: value // n if value % n == 0 else value / n for part, value in sums.items()}


def head_flops(config: ModelConfig) -> int:
    """FLOPs of the language-model head for one token; the embedding is a look-up and costs none."""
    return 2 * config.d_model * config.vocab_size


def forward_flops_per_token(config: ModelConfig, seq_len: int | None = None) -> int:
    """FLOPs of the whole model for one token: all layers with their attention, and the head."""
    return sum(layer.total for layer in flops_by_layer(config, seq_len)) + head_flops(config)


def training_flops_per_token(config: ModelConfig, seq_len: int | None = None) -> int:
    """FLOPs of forward and backward for one token: three times the forward pass."""
    return 3 * forward_flops_per_token(config, seq_len)


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    """Number of weights by part of the model, summed over layers.

    Parts: embedding, head (0 when tied), final_norm, deep, wide, gains, router, gate.
    """
    d, kinds = config.d_model, config.block_kinds
    duals = kinds.count("dual")
    deep_paths, wide_paths = duals + kinds.count("loop"), duals + kinds.count("wide")

    def sublayer(d_ffn: int) -> int:
        attention = 2 * d * d + 2 * d * config.n_kv_heads * config.head_dim
        norms = 2 * d + (0 if config.qk_norm == "none" else 2 * config.head_dim)
        return attention + norms + 3 * d * config.effective_width(d_ffn)

    return {
        "embedding": config.vocab_size * d,
        "head": 0 if config.tie_embeddings else config.vocab_size * d,
        "final_norm": d,
        "deep": deep_paths * sublayer(config.d_ffn or 0) if deep_paths else 0,
        "wide": wide_paths * sublayer(config.d_ffn_wide or 0) if wide_paths else 0,
        "gains": deep_paths * config.loops + wide_paths,
        # d weights for the state, one for the step index, one bias
        "router": deep_paths * (d + 2) if config.routes_steps else 0,
        "gate": duals * (d + 1) * GATE_OUTPUTS[config.gate],
    }


def parameters(config: ModelConfig) -> int:
    """Number of weights of the model; a tied head counts once."""
    return sum(parameters_by_part(config).values())


def parameters_non_embedding(config: ModelConfig) -> int:
    """Number of weights outside the embedding's and the head's matrices."""
    parts = parameters_by_part(config)
    return sum(parts.values()) - parts["embedding"] - parts["head"]


@dataclass(frozen=True)
class Target:
    """What the widths of a block are solved for. The defaults are the paper's backbone."""

    budget: int
    """F_M: linear FLOPs per token and layer."""
    block: BlockKind = "dual"
    """Kind of block that spends them."""
    alpha: float = 50
    """Percent of a dual block's FLOPs, gate aside, that its deep path gets."""
    loops: int = 4
    """K of the deep path."""
    matched_loops: int | None = None
    """None matches linear FLOPs. A number K matches linear FLOPs plus attention scores to
    ``budget`` plus the K + 1 passes of a dual block, so blocks with fewer passes get wider FFNs."""
    d_model: int = 768
    """Width of the residual stream."""
    n_heads: int = 12
    """Number of query heads."""
    n_kv_heads: int = 12
    """Number of key and value heads."""
    seq_len: int = 4096
    """Tokens that attention scores are averaged over."""
    multiple_of: int = 64
    """Widths are solved as multiples of this, effective widths round up to it (Eq. heff)."""

    def __post_init__(self) -> None:
        for name, value in (("budget", self.budget), ("K", self.loops),
                            ("sequence length", self.seq_len),
                            ("width multiple", self.multiple_of)):  # fmt: skip
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.block == "dual" and not 0 < self.alpha < 100:
            raise UserError(
                f"alpha={self.alpha:g} must lie between 0 and 100 percent: at either end one "
                "path gets nothing; use block 'wide' or 'loop' for a single path"
            )

    @property
    def total_budget(self) -> int:
        """FLOPs per token and layer to match: linear, or linear plus attention scores."""
        if self.matched_loops is None:
            return self.budget
        return self.budget + (self.matched_loops + 1) * score_flops(self.d_model, self.seq_len)

    @property
    def linear_budget(self) -> int:
        """Linear FLOPs per token and layer that this block may spend to meet total_budget."""
        if self.matched_loops is None:
            return self.budget
        own = passes(self.block, self.loops) * score_flops(self.d_model, self.seq_len)
        return self.total_budget - own

    def exact_widths(self) -> tuple[Fraction | None, Fraction | None]:
        """Effective widths (deep, wide), before rounding, that spend the budget exactly."""
        d, flops = self.d_model, Fraction(self.linear_budget)
        projections = projection_flops(d, self.n_heads, self.n_kv_heads)
        share = Fraction(1)
        if self.block == "dual":
            flops -= 4 * d  # the procedure takes the two gates off before it splits
            share = Fraction(str(self.alpha)) / 100  # str: 0.1 means a tenth, not its binary form
        deep = (flops * share / self.loops - projections) / (6 * d)
        wide = (flops * (1 - share if self.block == "dual" else 1) - projections) / (6 * d)
        return (None if self.block == "wide" else deep), (None if self.block == "loop" else wide)


@dataclass(frozen=True)
class Widths:
    """Configured FFN widths that a budget buys."""

    d_ffn: int | None
    """Deep path's width; None for a wide block."""
    d_ffn_wide: int | None
    """Wide path's width; None for a loop block."""
    clamped: tuple[str, ...] = ()
    """Names of the widths that were raised to the smallest multiple and so exceed their share."""


def solve_widths(target: Target) -> Widths:
    """Solves a budget for the FFN widths (appendix FLOP-matching, "Solving for FFN widths").

    Deep and dual widths are the largest multiples whose effective width stays at or below the
    exact one. PureWide rounds up instead, first the effective width, then the configured one.
    A width whose exact value is positive but below one multiple is raised to that multiple, as
    the paper's F80M a25 K4 was; without a positive exact value a UserError names what would do.
    """
    m = target.multiple_of
    exact_deep, exact_wide = target.exact_widths()
    if any(exact is not None and exact <= 0 for exact in (exact_deep, exact_wide)):
        raise UserError(_no_room(target))
    if target.block == "wide":
        assert exact_wide is not None
        return Widths(None, _ceil(Fraction(3, 2) * _ceil(exact_wide, m), m))
    found = {}
    for name, exact in (("d_ffn", exact_deep), ("d_ffn_wide", exact_wide)):
        found[name] = None if exact is None else _largest_width(exact, m)
    clamped = tuple(name for name, width in found.items() if width == 0)
    widths = {name: m if width == 0 else width for name, width in found.items()}
    return Widths(widths["d_ffn"], widths["d_ffn_wide"], clamped)


def _ceil(value: Fraction | int, multiple_of: int) -> int:
    """The smallest multiple at or above ``value``."""
    return int(-(-value // multiple_of)) * multiple_of


def _largest_width(exact: Fraction, multiple_of: int) -> int:
    """The largest multiple whose effective width is at most ``exact``; 0 if there is none."""
    effective = int(exact // multiple_of) * multiple_of
    # effective_width(w) <= effective means floor(2 w / 3) <= effective, so 2 w < 3 (effective + 1)
    width = (3 * (effective + 1) - 1) // 2 // multiple_of * multiple_of
    assert effective_width(width, multiple_of) <= effective
    return width


def _no_room(target: Target) -> str:
    """One line: why the budget buys no width, and which alpha, K or budget would."""
    given = f"K={target.loops}" if target.block != "wide" else ""
    if target.block == "dual":
        given = f"alpha={target.alpha:g} {given}"
    given = f" with {given}" if given else ""
    ways = [f"{name} {value}" for name, value in ways_out(target)]
    advice = f"; {' or '.join(ways)} would do" if ways else ""
    if target.block == "dual" and target.alpha < 1:
        advice += f" (alpha is in percent: did you mean {100 * target.alpha:g}?)"
    return (
        f"a budget of {target.budget:,} FLOPs per token and layer leaves block '{target.block}'"
        f"{given} no FLOPs for its FFN after the attention projections{advice}"
    )


def ways_out(target: Target) -> list[tuple[str, int]]:
    """Nearest whole alpha, K and budget that each, changed alone, give every path a width."""
    options: list[tuple[str, Iterable[int]]] = []
    if target.block == "dual":
        options.append(("alpha", sorted(range(1, 100), key=lambda a: abs(a - target.alpha))))
    if target.block != "wide":
        options.append(("loops", range(target.loops - 1, 0, -1)))
    million = 10**6
    start = target.budget // million * million
    options.append(("budget", (start + million * 2**i for i in range(60))))
    found = []
    for field, values in options:
        for value in values:
            if _has_room(target, field, value):
                found.append((field, value))
                break
    return found


def _has_room(target: Target, field: str, value: int) -> bool:
    changed = Target(**{**asdict(target), field: value})
    return all(exact is None or exact > 0 for exact in changed.exact_widths())
