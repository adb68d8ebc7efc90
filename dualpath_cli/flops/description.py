"""The options of `dualpath flops`; the model, solved for a budget or read from a recipe."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, Literal, cast, get_args

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import (
    LARGEST,
    Place,
    Range,
    Size,
    check_range,
    check_ranges,
    format_size,
)
from dualpath_cli.flops import count, paper
from dualpath_cli.flops.widths import Match, Target, Widths, solve_widths, solve_within
from dualpath_cli.recipe.recipes import Recipe, load, merge
from dualpath_cli.recipe.schedule import check_loops, loop_counts
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.spec.config import RANGES, BlockKind, ModelConfig
from dualpath_cli.spec.own_checks import import_classes

_FIELDS = {  # of a model, by the option that sets it
    "vocab": "vocab_size", "layers": "n_layers", "dim": "d_model", "heads": "n_heads",
    "kv_heads": "n_kv_heads", "seq_len": "max_seq_len", "width_multiple": "ffn_multiple_of",
    "experts": "n_experts", "top_k": "top_k",
}  # fmt: skip
_SOLVER = {"alpha", "loops", "block", "match", *_FIELDS} - {"seq_len"}
_PLAN = ("shard_size", "micro_batch", "batch_tokens")
SUSTAINED = {"a100": 68.0, "h200": 390.0}  # TFLOP/s of a GPU in training; docs/flops.md


@dataclass(frozen=True)
class Flops:
    """Solves FFN widths for a FLOP budget, and counts a model's parameters and FLOPs, for the paper
    as written and as trained."""

    budget: Size | None = None
    """Solve FFN widths for this number of linear FLOPs per token and layer, such as 80M."""
    config: tuple[Place, ...] = ()
    """Describe the model of a recipe (path or name) instead; later recipes win. With --budget, also
    compare the model to the budget."""
    table: bool = False
    """Print the paper's 13 configurations, solved for --budget."""
    block: str = "dual"
    """Kind of block: dual, loop or wide; or one for each layer, as wide,dual,wide."""
    alpha: float = 50
    """Percent of a dual block's FLOPs that its deep path gets."""
    loops: str = field(default="4", metadata={"also": ("--k",)})
    """K, passes of the deep path; or one for each layer, as 1,4,1,1."""
    match: Match = "linear"
    """linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and
    attention scores meet the budget plus the K + 1 attention passes of a dual block, to within 1
    percent; wide and loop blocks then get wider FFNs."""
    width_multiple: int | None = None
    """Multiple of solved and effective widths, under both readings. By default widths are solved in
    multiples of 64, and effective widths round up to 64 as written, 256 as trained. Under --match
    total the default is the coarsest of 64 (256) and its halves that meets the sum to within 1
    percent."""
    experts: int = 0
    """Experts in each wide path's FFN, at the same FLOPs; 0 is dense."""
    top_k: int = 2
    """Experts that each token takes."""
    layers: int | None = None
    """Number of blocks. By default as many as --block or --loops lists, or 16."""
    dim: int = 768
    """Width of the residual stream."""
    heads: int | None = None
    """Number of query heads. By default one for 64 channels: 12."""
    kv_heads: int | None = None
    """Number of key and value heads. By default as many as query heads."""
    vocab: int = 50304
    """Rows of the embedding."""
    seq_len: int | None = None
    """Tokens a sequence, for attention scores. By default 4096, or the recipe's."""
    tokens: Size | None = None
    """Training tokens, such as 38.5B. By default 38503710720, or the recipe's."""
    gpus: int = paper.GPUS
    """Number of GPUs; --plan by itself takes fewer where a step has too few sequences."""
    tflops: float | Literal["a100", "h200"] = "a100"
    """TFLOP/s that each GPU sustains in training, not its peak: a number, or a card's name. a100 is
    68, the median implied by the paper's 26 training times. h200 is 390, the median of six measured
    models (337 to 473)."""
    plan: bool = False
    """Print the memory of each GPU under ddp, fsdp and hsdp instead."""
    shard_size: int | None = None
    """GPUs that share one set of weights under hsdp. By default the recipe's, or
    8."""
    micro_batch: int | None = None
    """Most sequences of a GPU at once. By default the recipe's, or 2."""
    batch_tokens: Size | None = None
    """Tokens of a step, such as 4194304. By default the recipe's, or 2097152."""
    reading: paper.Reading | None = None
    """The authors' configuration (as_trained, the default for a budget), or the paper's text
    (as_written). By default a recipe is not changed."""
    format: Literal["table", "json"] = "table"
    """Output format."""
    given: tuple[str, ...] = ()
    """Names of the options that the user gave."""

    def __post_init__(self) -> None:
        ranges: dict[str, Range] = {name: RANGES[field] for name, field in _FIELDS.items()}
        ranges |= dict.fromkeys(("budget", "tokens", "batch_tokens"), (1, LARGEST))
        ranges |= dict.fromkeys(("gpus", "shard_size", "micro_batch"), (1, 10**9))
        check_ranges(self, ranges | {"tflops": (1e-6, 1e9)})
        _ = self.by_layer  # raises
        if self.plan:
            idle = ("table", "tokens", "tflops")
            self._refuse(idle, "--plan shows the memory of one model in training")
        else:
            self._refuse(_PLAN, "only --plan shows how GPUs share a step")
        if self.config:
            self._refuse((*_SOLVER, "table"), "--config describes the recipe's own model")
        elif self.budget is None:
            example = "such as --budget 80M --alpha 50 --k 4"
            raise UserError(f"nothing to describe; give --budget ({example}), or --config RECIPE")
        if self.table:
            swept = ("block", "alpha") if self.match == "total" else ("block", "alpha", "loops")
            self._refuse(swept, "--table goes through every block, alpha and K")

    def _refuse(self, refused: Sequence[str], because: str) -> None:
        if both := [flag(name) for name in self.given if name in refused]:
            raise UserError(f"{because}; drop {', '.join(both)}")

    @property
    def sustained(self) -> float:
        """FLOP/s of a GPU."""
        return 1e12 * (SUSTAINED[self.tflops] if isinstance(self.tflops, str) else self.tflops)

    @cached_property
    def by_layer(self) -> list[tuple[BlockKind, int]]:
        """Kind and K of each layer, or one of each for all layers."""
        lists = (self.block, self.loops)
        kinds, counts = ([item.strip() for item in text.split(",")] for text in lists)
        for kind in kinds:
            if kind not in (known := get_args(BlockKind)):
                near = did_you_mean(kind, known)
                raise ValueError(f"block must be one of {', '.join(known)}, not '{kind:.60}'{near}")
        if not all(re.fullmatch(r"\d{1,18}", text) for text in counts):
            raise ValueError(
                "loops must be a whole number, or one for each layer such as 1,4,1,1, not "
                f"'{self.loops:.60}'"
            )
        for text in counts:
            check_range("loops", int(text), RANGES["loops"])
        longest = max(len(kinds), len(counts))
        if longest == 1:
            return [(cast(BlockKind, kinds[0]), int(counts[0]))]
        if self.match == "total":
            raise UserError("--match total takes one kind of block and one K, not a list")
        layers = self.layers or longest
        for name, items in (("block", kinds), ("loops", counts)):
            if len(items) not in (1, layers):
                raise ValueError(f"{name} lists {len(items)} layers, and the model has {layers}")
        kinds, counts = (items * (layers // len(items)) for items in (kinds, counts))
        return list(zip(cast(list[BlockKind], kinds), map(int, counts), strict=True))


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Description:
    options: Flops
    config: ModelConfig
    reading: str | None  # as_written, as_trained, or None where a recipe's model is neither
    seq_len: int  # tokens that attention scores are averaged over
    tokens: int  # of training
    solved: tuple[tuple[Target, Widths], ...] = ()
    """Targets with their solved widths (which record clamped ones): one pair for all layers, or one
    for each. Empty for a recipe's model."""
    step_loops: Mapping[int, float] = field(default_factory=dict)
    """Training steps that run each number of loops; empty where all run the model's own."""

    @property
    def target(self) -> Target | None:
        """The target of the widths of all layers; None where layers differ."""
        return self.solved[0][0] if len(self.solved) == 1 else None

    @property
    def matched(self) -> Target | None:
        """The target under match total; None under match linear and for a recipe's model."""
        return self.target if self.target and self.target.match == "total" else None

    @property
    def clamped(self) -> set[str]:
        return {name for _, widths in self.solved for name in widths.clamped}

    @property
    def layer(self) -> dict[str, int | float]:
        """FLOPs per token and layer by part, the mean where kinds of blocks are mixed."""
        return count.mean_layer_flops(self.config, self.seq_len)

    @property
    def budget_ratio(self) -> float | None:
        """Spent part of the budget: linear FLOPs, and attention scores under match total."""
        spent = self.layer["linear_total"]
        if self.matched:
            return (spent + self.layer["attention_scores"]) / self.matched.matched_budget
        return self.options.budget and spent / self.options.budget

    @property
    def training_flops(self) -> float:
        """FLOPs of one token in training, head included, averaged over steps."""
        counted = partial(count.training_flops_per_token, seq_len=self.seq_len)
        return count.over_loops(counted, self.config, self.step_loops)

    @property
    def names_hardware(self) -> bool:
        """Whether the user names the hardware; else only a budget's table has hours."""
        return not {"tokens", "gpus", "tflops"}.isdisjoint(self.options.given)

    @property
    def hours(self) -> float:
        rate = self.options.gpus * self.options.sustained
        return self.training_flops * self.tokens / rate / 3600

    def record(self) -> dict[str, Any]:
        """Every number by name, for JSON; `model` can be pasted as a recipe's section."""
        config, kinds = self.config, set(self.config.block_kinds)
        alpha = next((t.alpha for t, _ in self.solved if t.block == "dual"), None)
        deep, wide = kinds != {"wide"}, kinds != {"loop"}
        record = {
            "block": config.block if isinstance(config.block, str) else list(config.block),
            "alpha": int(alpha) if alpha is not None and alpha == int(alpha) else alpha,
            "loops": config.loops if deep else 1,
            "d_ffn": config.d_ffn if deep else None,
            "d_ffn_wide": config.d_ffn_wide if wide else None,
            "d_ffn_effective": config.effective("d_ffn") if deep else None,
            "d_ffn_wide_effective": config.effective("d_ffn_wide") if wide else None,
            "ffn_multiple_of": config.ffn_multiple_of,
            "params": count.parameters(config),
            "params_non_embedding": count.parameters_non_embedding(config),
            "flops_per_token_per_layer": self.layer,
            "kv_bytes_per_token": count.kv_bytes(config),
            "budget": self.options.budget, "budget_ratio": self.budget_ratio,
            "reading": self.reading,
        }  # fmt: skip
        if any(layer.n_experts for layer in config.layers):
            record |= {"n_experts": config.n_experts, "top_k": config.top_k}
            record["expert_width"] = _one_or_list([own.expert_width for own in config.layers])
            record["params_active"] = count.active_parameters(config)
        if self.matched:
            record |= {"match": "total", "matched_budget": self.matched.matched_budget}
        if self.names_hardware:
            record["training_flops_per_token"] = self.training_flops
            record["training_hours"] = round(self.hours, 3)
        return record | {"model": asdict(config)}


def described(options: Flops, settings: Settings) -> Description:
    """A recipe's model, with the fields of `--reading` set over it."""
    config, run = settings.model, settings.run
    if options.reading is not None:
        try:
            config = replace(config, **paper.reading_fields(options.reading))
        except ValueError as error:
            raise UserError(f"--reading {options.reading}: {error}") from None
    if options.tokens is not None:
        run = replace(run, max_tokens=options.tokens)
    check_loops(run, config)
    own = vars(config).items()
    reading = next((r for r in paper.READINGS if paper.reading_fields(r).items() <= own), None)
    seq_len = options.seq_len or config.max_seq_len
    steps = loop_counts(run)
    return Description(options, config, reading, seq_len, run.max_tokens, step_loops=steps)


def settings_of(names: Sequence[str]) -> Settings:
    """The settings of recipes; later recipes override earlier ones."""
    recipe: Recipe = reduce(merge, map(load, names))
    named = f"recipe '{' + '.join(names)}'"
    if not recipe.get("model"):
        raise UserError(f"{named} has no model section to describe")
    try:
        settings = settings_from(recipe)
        import_classes(settings.model, allowed=True)
        return settings
    except UserError as error:
        raise UserError(f"{named}: {error}") from None


def solved(options: Flops) -> Description:
    """The model whose widths `--budget` buys."""
    return _solved(options, [_target(options, *each) for each in options.by_layer])


def configurations(options: Flops) -> tuple[list[Description], list[str]]:
    """Those of the paper's 13 that fit the budget, and the labels of those without room.

    Under match total all meet the sum of a dual block with K.
    """
    base, found, without_room = _target(options, *options.by_layer[0]), [], []
    for row in paper.configurations("F80M"):  # the same 13 kinds at either budget
        target = replace(base, block=row.block, alpha=row.target.alpha, loops=row.loops,
                         reference_loops=base.loops)  # fmt: skip
        if target.has_room:
            found.append(_solved(options, [target]))
        else:
            without_room.append(row.label)
    if not found:
        solve_widths(base)  # raises, with the budget that has room
    return found, without_room


def _target(options: Flops, block: BlockKind, loops: int) -> Target:
    assert options.budget is not None
    dim, heads = options.dim, options.heads or max(1, options.dim // 64)
    if dim % heads or dim // heads % 2:
        way_out = f"an odd width has none, --dim {dim + 1} would"
        if dim % 2 == 0:
            way_out = f"--heads {_nearest_divisor(dim // 2, heads)} would"
        raise UserError(f"--dim {dim} does not split into {heads} heads of an even size; {way_out}")
    kv_heads = options.kv_heads or heads
    if heads % kv_heads:
        raise UserError(
            f"--kv-heads {kv_heads} does not divide the {heads} query heads; "
            f"{_nearest_divisor(heads, kv_heads)} would"
        )
    return Target(
        options.budget, block, options.alpha, loops, options.match,
        d_model=dim, n_heads=heads, n_kv_heads=kv_heads, seq_len=options.seq_len or 4096,
        multiple_of=options.width_multiple or 64,  # under both readings (Eq. heff)
    )  # fmt: skip


def _nearest_divisor(whole: int, wanted: int) -> int:
    divisors = [n for n in range(1, whole + 1) if whole % n == 0]
    return min(divisors, key=lambda n: abs(n - wanted))


def _solved(options: Flops, targets: list[Target]) -> Description:
    reading: paper.Reading = options.reading or "as_trained"
    chosen, multiple = paper.reading_fields(reading), options.width_multiple
    target = targets[0]
    if target.match == "total" and multiple is None:
        target, widths = solve_within(replace(target, multiple_of=chosen["ffn_multiple_of"]))
        by_layer = [(target, widths)]
    else:
        by_layer = [(target, solve_widths(target)) for target in targets]
    if target.match == "total" or multiple is not None:
        chosen["ffn_multiple_of"] = target.multiple_of
    fields: dict[str, Any] = dict(
        vocab_size=options.vocab, d_model=target.d_model, n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads, max_seq_len=target.seq_len,
        n_layers=options.layers or (16 if len(targets) == 1 else len(targets)),
        block=_one_or_list([t.block for t, _ in by_layer]),
        loops=_one_or_list([None if t.block == "wide" else t.loops for t, _ in by_layer], 1),
        d_ffn=_one_or_list([widths.d_ffn for _, widths in by_layer]),
        d_ffn_wide=_one_or_list([widths.d_ffn_wide for _, widths in by_layer]),
        **chosen,
    )  # fmt: skip
    try:
        config = ModelConfig(**fields)
    except ValueError as error:  # widths above ModelConfig's range
        raise UserError(f"a budget of {format_size(target.budget)} is too large: {error}") from None
    n = options.experts
    experts = _one_or_list([0 if kind == "loop" else n for kind in config.block_kinds])
    try:
        config = replace(config, n_experts=experts, top_k=options.top_k)
    except ValueError as error:
        raise UserError(f"--experts {n}: {error}") from None
    tokens, different = options.tokens or paper.TRAINING_TOKENS, tuple(dict(by_layer).items())
    return Description(options, config, reading, target.seq_len, tokens, different)


def _one_or_list(values: list[Any], without: Any = None) -> Any:
    """The value of all layers that have one, or a list where they differ."""
    different = {value for value in values if value is not None}
    if len(different) < 2:
        return different.pop() if different else without
    return [without if value is None else value for value in values]
