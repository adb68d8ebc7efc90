"""The options of `dualpath flops`; the model, solved for a budget or a recipe's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import (
    LARGEST,
    Place,
    Range,
    Size,
    check_ranges,
    format_size,
)
from dualpath_cli.flops import count
from dualpath_cli.flops.widths import FlopMatch, Target, solve_widths, solve_within
from dualpath_cli.recipe.recipes import Recipe, load_recipe, merge
from dualpath_cli.recipe.schedule import check_loops, loop_counts
from dualpath_cli.recipe.settings import (
    OptimSettings,
    RunSettings,
    Settings,
    settings_from,
)
from dualpath_cli.spec.config import (
    RANGES,
    BlockKind,
    CoreCombination,
    Injection,
    ModelConfig,
    StepKv,
)
from dualpath_cli.spec.own_checks import import_classes

PaperReading = Literal["as_written", "as_trained"]
READINGS: dict[PaperReading, Mapping[str, Any]] = {
    "as_written": {
        "ffn_multiple_of": 64,
        "tie_embeddings": True,
        "qk_norm": "before_rope",
        "step_index": "one_based",
    },
    "as_trained": {
        "ffn_multiple_of": 256,
        "tie_embeddings": False,
        "qk_norm": "after_rope",
        "step_index": "zero_based",
    },
}
"""Fields of a model as the paper's text describes it (the text gives no RoPE base), and
as the authors trained it, which the Params columns of arXiv 2605.30202 confirm."""
TRAINING_TOKENS = 38_503_710_720  # 18,360 steps of 2,097,152 tokens; the text says 38B
GPUS = 64  # A100s of every run of the paper (Section 4.1)

_FIELDS = {  # of a model, by the option that sets it
    "vocab": "vocab_size",
    "layers": "n_layers",
    "dim": "d_model",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "seq_len": "max_seq_len",
    "width_multiple": "ffn_multiple_of",
    "loops": "loops",
    "core_loops": "core_loops",
    "experts": "n_experts",
    "top_k": "top_k",
}
_LOOPED = ("core", "injection", "core_combination")
_STEPS = ("untied_steps", "step_kv", "no_deep_ffn")
_SOLVER = {"alpha", "block", "match", *_FIELDS, *_LOOPED, *_STEPS} - {"seq_len"}
_PLAN = ("shard_size", "micro_batch", "batch_tokens")
SUSTAINED = {"a100": 68.0, "h200": 390.0}  # TFLOP/s of a GPU in training; docs/flops.md


@dataclass(frozen=True)
class Flops:
    """Solves FFN widths for a FLOP budget, and counts a model's parameters, FLOPs and
    KV cache: as the authors trained it or, by --reading, as the paper's text describes
    it.

      dualpath flops --budget 80M --alpha 50 --k 4
      dualpath flops --config f160m_a25_k4 --plan
    """

    budget: Size | None = None
    """Solve FFN widths for this number of linear FLOPs per token and layer, such as
    80M."""
    config: tuple[Place, ...] = ()
    """Describe the model of a recipe (path or name) instead; later recipes win. With
    --budget, also compare the model to the budget."""
    block: BlockKind = "dual"
    """Kind of block."""
    alpha: float = 50
    """Percent of a dual block's FLOPs that its deep path gets."""
    loops: int = field(default=4, metadata={"also": ("--k",)})
    """K, passes of the deep path."""
    untied_steps: bool = False
    """Give each step of the deep path a sublayer of its own."""
    step_kv: StepKv = "own"
    """Keys and values of the steps: own, or those of the first step for all."""
    no_deep_ffn: bool = False
    """Steps of the deep path are only attention; the wide path gets the FLOPs."""
    core: str | None = None
    """FIRST-LAST: the layers, from 0, that are applied --core-loops times, such as
    4-11."""
    core_loops: int = 1
    """R, how often the core is applied."""
    injection: Injection = "none"
    """The core's input before later repetitions: none; add, added; linear, by a
    matrix."""
    core_combination: CoreCombination = "final"
    """Output of the core: of the last repetition, or a routed mixture of all."""
    match: FlopMatch = "linear"
    """linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and
    attention scores meet the budget plus the K + 1 attention passes of a dual block, to
    within 1 percent; wide and loop blocks then get wider FFNs."""
    width_multiple: int | None = None
    """Multiple of solved and effective widths, under both readings. By default widths
    are solved in multiples of 64, and effective widths round up to 64 as written, 256
    as trained. Under --match total the default is the coarsest of 64 (256) and its
    halves that meets the sum to within 1 percent."""
    experts: int = 0
    """Experts in each wide path's FFN, at the same FLOPs; 0 is dense."""
    top_k: int = 2
    """Experts that each token takes."""
    layers: int = 16
    """Number of blocks."""
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
    gpus: int = GPUS
    """Number of GPUs; --plan by itself takes fewer where a step has too few
    sequences."""
    tflops: float | Literal["a100", "h200"] = "a100"
    """TFLOP/s that each GPU sustains in training, not its peak: a number, or a card's
    name. a100 is 68, the median implied by the paper's 26 training times. h200 is 390,
    the median of six measured models (337 to 473)."""
    plan: bool = False
    """Print the memory of each GPU under ddp, fsdp and hsdp instead."""
    shard_size: int | None = None
    """GPUs that share one set of weights under hsdp. By default the recipe's, or
    8."""
    micro_batch: int | None = None
    """Most sequences in a GPU's micro-batch. By default the recipe's, or 2."""
    batch_tokens: Size | None = None
    """Tokens of a step, such as 4194304. By default the recipe's, or 2097152."""
    reading: PaperReading | None = None
    """The authors' configuration (as_trained, the default for a budget), or the paper's
    text (as_written). By default a recipe is not changed."""
    format: Literal["table", "json"] = "table"
    """Output format."""
    given: tuple[str, ...] = ()
    """Names of the options that the user gave."""

    def __post_init__(self) -> None:
        check_ranges(self, _ranges())
        if self.core is not None and not self.core_layers:
            raise UserError(
                f"--core {self.core:.60} must be FIRST-LAST, two of the layers 0 to "
                f"{self.layers - 1}, such as 4-11"
            )

        if self.plan:
            because = "--plan shows the memory of a training step, not hours"
            self._refuse(("tokens", "tflops"), because)
        else:
            self._refuse(_PLAN, "only --plan shows how GPUs share a step")

        if self.config:
            self._refuse(_SOLVER, "--config takes the model from the recipe")
        elif self.budget is None:
            example = "such as --budget 80M --alpha 50 --k 4"
            raise UserError(
                f"nothing to describe; give --budget ({example}), or --config RECIPE"
            )

    @property
    def core_layers(self) -> range:
        """The layers of --core; empty without one, and for any other text."""
        first, _, last = (self.core or "").partition("-")
        if not (first.isdecimal() and last.isdecimal() and int(last) < self.layers):
            return range(0)
        return range(int(first), int(last) + 1)

    def _refuse(self, refused: Collection[str], because: str) -> None:
        flags = [flag(name) for name in self.given if name in refused]
        if flags:
            raise UserError(f"{because}; drop {', '.join(flags)}")

    @property
    def sustained(self) -> float:
        """FLOP/s of a GPU."""
        if isinstance(self.tflops, str):
            return 1e12 * SUSTAINED[self.tflops]
        return 1e12 * self.tflops


def _ranges() -> dict[str, Range]:
    ranges: dict[str, Range] = {name: RANGES[field] for name, field in _FIELDS.items()}
    ranges |= dict.fromkeys(("budget", "tokens", "batch_tokens"), (1, LARGEST))
    ranges |= dict.fromkeys(("gpus", "shard_size", "micro_batch"), (1, 10**9))
    ranges["tflops"] = (1e-6, 1e9)
    return ranges


def flag(name: str) -> str:
    """The option of a field."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Description:
    """A model, and the facts of its training that cost FLOPs or hours."""

    options: Flops
    config: ModelConfig
    # as_written, as_trained, or None where a recipe's model is neither
    reading: str | None
    seq_len: int  # tokens that attention scores are averaged over
    tokens: int  # of training
    target: Target | None = None  # of the solved widths; None for a recipe's model
    clamped: tuple[str, ...] = ()  # names of solved widths above their share
    # of a recipe
    run: RunSettings = field(default_factory=RunSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)

    @property
    def matched(self) -> Target | None:
        """The target under match total; None under match linear and for a recipe's
        model."""
        if self.target is None or self.target.match == "linear":
            return None
        return self.target

    @property
    def layer(self) -> dict[str, int | float]:
        """FLOPs per token and layer by part, the mean where kinds of blocks are
        mixed."""
        return count.mean_layer_flops(self.config, self.seq_len)

    @property
    def budget_ratio(self) -> float | None:
        """Spent part of the budget: linear FLOPs, and attention scores under match
        total."""
        linear = self.layer["linear_total"]
        if self.matched:
            spent = linear + self.layer["attention_scores"]
            return spent / self.matched.matched_budget

        budget = self.options.budget
        return None if budget is None else linear / budget

    @property
    def training_flops(self) -> float:
        """FLOPs of one token in training, head included, averaged over steps."""
        counted = count.training_flops_of(self.run, self.seq_len)
        return count.over_loops(counted, self.config, loop_counts(self.run))

    @property
    def names_hardware(self) -> bool:
        """Whether the user names the hardware; else only a budget's table has hours."""
        return not {"tokens", "gpus", "tflops"}.isdisjoint(self.options.given)

    @property
    def hours(self) -> float:
        rate = self.options.gpus * self.options.sustained
        return self.training_flops * self.tokens / rate / 3600

    def record(self) -> dict[str, Any]:
        """Every number by name, for JSON; `model` can be pasted as a recipe's
        section."""
        config = self.config
        deep = bool(config.deep_layers)
        deep_ffn = any(layer.deep_ffn for layer in config.deep_layers)
        wide = set(config.block_kinds) != {"loop"}
        record: dict[str, Any] = {
            "block": config.block,
            "alpha": self.alpha,
            "loops": config.loops if deep else 1,
            "d_ffn": config.d_ffn if deep_ffn else None,
            "d_ffn_wide": config.d_ffn_wide if wide else None,
            "d_ffn_effective": config.effective("d_ffn") if deep_ffn else None,
            "d_ffn_wide_effective": config.effective("d_ffn_wide") if wide else None,
            "ffn_multiple_of": config.ffn_multiple_of,
            "params": count.parameters(config),
            "params_non_embedding": count.parameters_non_embedding(config),
            "flops_per_token_per_layer": self.layer,
            "training_flops_per_token": self.training_flops,
            "kv_bytes_per_token": count.kv_bytes(config),
            "budget": self.options.budget,
            "budget_ratio": self.budget_ratio,
            "reading": self.reading,
        }
        if not isinstance(config.block, str):
            record["block"] = list(config.block)  # by layer

        if any(layer.n_experts for layer in config.layers):
            widths = [layer.expert_width for layer in config.layers]
            record["n_experts"] = config.n_experts
            record["top_k"] = config.top_k
            record["expert_width"] = widths[0] if len(set(widths)) == 1 else widths
            record["params_active"] = count.active_parameters(config)
        if self.matched:
            record["match"] = "total"
            record["matched_budget"] = self.matched.matched_budget
        if self.names_hardware and not self.options.plan:
            record["training_hours"] = self.hours
        return record | {"model": asdict(config)}

    @property
    def alpha(self) -> float | int | None:
        """Percent of the deep path, whole where it is; None for a single path, and for
        a recipe's model.

        If the deep path has no feed-forward, alpha follows from its FLOPs.
        """
        if self.target is None or self.target.block != "dual":
            return None
        alpha = self.target.alpha
        if not self.target.deep_ffn:
            deep = self.layer["deep"]
            alpha = round(100 * deep / (deep + self.layer["wide"]), 2)
        return int(alpha) if alpha == int(alpha) else alpha


def describe_recipe(options: Flops, settings: Settings) -> Description:
    """A recipe's model, with the fields of `--reading` set over it."""
    config = settings.model
    if options.reading is not None:
        try:
            config = replace(config, **READINGS[options.reading])
        except ValueError as error:
            raise UserError(f"--reading {options.reading}: {error}") from None

    run = settings.run
    if options.tokens is not None:
        run = replace(run, max_tokens=options.tokens)
    check_loops(run, config)
    return Description(
        options,
        config,
        reading=_reading_of(config),
        seq_len=options.seq_len or config.max_seq_len,
        tokens=run.max_tokens,
        run=run,
        optim=settings.optim,
    )


def _reading_of(config: ModelConfig) -> PaperReading | None:
    """The reading whose fields a model has."""
    own = vars(config).items()
    for name, fields in READINGS.items():
        if fields.items() <= own:
            return name
    return None


def settings_of(names: Sequence[str]) -> Settings:
    """The settings of recipes; later recipes override earlier ones."""
    recipe: Recipe = reduce(merge, map(load_recipe, names))
    named = f"recipe '{' + '.join(names)}'"
    if not recipe.get("model"):
        raise UserError(f"{named} has no model section to describe")

    try:
        settings = settings_from(recipe)
        import_classes(settings.model, allowed=True)
    except UserError as error:
        raise UserError(f"{named}: {error}") from None
    return settings


def solve_description(options: Flops) -> Description:
    """The model whose widths `--budget` buys."""
    reading: PaperReading = options.reading or "as_trained"
    fields = dict(READINGS[reading])
    target = _target(options)

    # The paper solves in multiples of 64, and rounds effective widths up to another.
    widths_decide = target.match == "total" or options.width_multiple is not None
    if target.match == "total" and options.width_multiple is None:
        coarsest = replace(target, multiple_of=fields["ffn_multiple_of"])
        target, widths = solve_within(coarsest)
    else:
        widths = solve_widths(target)
    if widths_decide:
        fields["ffn_multiple_of"] = target.multiple_of

    try:
        config = ModelConfig(
            vocab_size=options.vocab,
            d_model=target.d_model,
            n_heads=target.n_heads,
            n_kv_heads=target.n_kv_heads,
            max_seq_len=target.seq_len,
            n_layers=options.layers,
            block=target.block,
            loops=1 if target.block == "wide" else target.loops,
            d_ffn=widths.d_ffn,
            d_ffn_wide=widths.d_ffn_wide,
            untied_steps=options.untied_steps,
            step_kv=options.step_kv,
            deep_ffn=not options.no_deep_ffn,
            **_core(options),
            **fields,
        )
    except ValueError as error:  # widths above ModelConfig's range
        raise UserError(
            f"a budget of {format_size(target.budget)} is too large: {error}"
        ) from None

    return Description(
        options,
        _with_experts(config, options),
        reading,
        seq_len=target.seq_len,
        tokens=options.tokens or TRAINING_TOKENS,
        target=target,
        clamped=widths.clamped,
    )


def _core(options: Flops) -> dict[str, Any]:
    """The fields of a model for its core; empty without one."""
    layers = options.core_layers
    if not layers:
        return {}
    return {
        "core": [layers[0], layers[-1]],
        "core_loops": options.core_loops,
        "injection": options.injection,
        "core_combination": options.core_combination,
    }


def _with_experts(config: ModelConfig, options: Flops) -> ModelConfig:
    n = 0 if options.block == "loop" else options.experts
    try:
        return replace(config, n_experts=n, top_k=options.top_k)
    except ValueError as error:
        raise UserError(f"--experts {n}: {error}") from None


def _target(options: Flops) -> Target:
    assert options.budget is not None
    dim = options.dim
    heads = options.heads or max(1, dim // 64)
    if dim % heads or dim // heads % 2:
        pair = 2 * heads
        way_out = f"--dim {max(dim - dim % pair, pair)}"
        if dim % 2 == 0:
            way_out = f"--heads {_nearest_divisor(dim // 2, heads)} or {way_out}"
        raise UserError(
            f"--dim {dim} does not split into {heads} heads of an even size; {way_out} "
            "would"
        )

    kv_heads = options.kv_heads or heads
    if heads % kv_heads:
        raise UserError(
            f"--kv-heads {kv_heads} does not divide the {heads} query heads; "
            f"{_nearest_divisor(heads, kv_heads)} would"
        )

    return Target(
        options.budget,
        options.block,
        options.alpha,
        options.loops,
        options.match,
        d_model=dim,
        n_heads=heads,
        n_kv_heads=kv_heads,
        seq_len=options.seq_len or 4096,
        multiple_of=options.width_multiple or 64,  # under both readings (Eq. heff)
        step_kv=options.step_kv,
        deep_ffn=not options.no_deep_ffn,
        n_layers=options.layers,
        core_layers=len(options.core_layers),
        core_loops=options.core_loops if options.core_layers else 1,
        injection=options.injection,
    )


def _nearest_divisor(whole: int, wanted: int) -> int:
    divisors = [n for n in range(1, whole + 1) if whole % n == 0]
    return min(divisors, key=lambda n: abs(n - wanted))
