"""What `dualpath flops` describes: the model that a budget buys, or that of a recipe.

Both come with the hardware that trains them, the batch that they decode, and for `--plan` the
cluster.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import gcd
from typing import Any, TypeVar, get_args

from dualpath_cli.config import RANGES, BlockKind, ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.flops import count, paper
from dualpath_cli.flops.plan import Cluster, Optimizer
from dualpath_cli.flops.widths import Target, Widths, solve_widths, solve_within
from dualpath_cli.options import check_choice
from dualpath_cli.ranges import Range, check_range
from dualpath_cli.sizes import format_size, parse_size

DEFAULT_TFLOPS = 68.0
"""Sustained TFLOP/s a GPU: the median that the paper's 26 training times imply for its A100s."""
BATCH_TOKENS, MICRO_BATCH = 2_097_152, 2  # as in the paper's training, where a recipe has none
NODE_BANDWIDTH, NETWORK_BANDWIDTH = 300.0, 25.0
"""GB/s that each GPU sends: NVLink of an A100 by its data sheet, and 200 Gb/s of network."""

HARDWARE_OPTIONS = ("tokens", "gpus", "tflops")
_FIELDS = {
    "vocab": "vocab_size", "layers": "n_layers", "dim": "d_model", "heads": "n_heads",
    "kv_heads": "n_kv_heads", "seq_len": "max_seq_len", "loops": "loops",
    "width_multiple": "ffn_multiple_of", "experts": "n_experts", "top_k": "top_k",
}  # fmt: skip
"""Which field of a model an option sets."""

Number = TypeVar("Number", int, float)

Options = Mapping[str, Any]  # every option by its attribute name; None where the user said nothing


@dataclass(frozen=True)
class Hardware:
    """The hardware that training hours are computed for."""

    tokens: int
    gpus: int
    tflops: float  # sustained TFLOP/s of each GPU
    asked: bool
    """Whether the user gave any of the three; otherwise only the table of a budget has hours."""


@dataclass(frozen=True)
class Decoding:
    """Texts that grow by a token a step, side by side."""

    texts: int
    context: int  # tokens of each text
    bandwidth: float  # bytes a second that memory is read at

    @classmethod
    def read(cls, words: str | None) -> "Decoding | None":
        """`32x4096@3.35TB/s`; None of None."""
        if words is None:
            return None
        found = re.fullmatch(r"(\d+)x(\d+)@(\d+(?:\.\d+)?)([GT])B/s", words.replace(" ", ""))
        if found:
            unit = {"G": 1e9, "T": 1e12}[found[4]]
            decoding = cls(int(found[1]), int(found[2]), float(found[3]) * unit)
            if all(vars(decoding).values()) and max(decoding.texts, decoding.context) <= 10**9:
                return decoding
        raise UserError(
            "--decode must be texts x tokens @ bandwidth in GB/s or TB/s, such as "
            f"32x4096@3.35TB/s, not '{words}'"
        )


@dataclass(frozen=True)
class Description:
    """A model with what it was solved for."""

    config: ModelConfig
    reading: str | None  # as_written, as_trained, or None where a recipe's model is neither
    hardware: Hardware
    seq_len: int  # tokens that attention scores are averaged over
    decoding: Decoding | None
    budget: int | None = None  # F_M to compare with; a recipe has none unless it is given
    solved: tuple[tuple[Target, Widths], ...] = ()
    """What widths were solved for, and the widths, which know what was clamped: one for all layers,
    or one for each. Empty for a recipe's model."""
    step_loops: Mapping[int, float] = field(default_factory=dict)
    """Training steps that run each number of loops; empty where all run the model's own."""

    @property
    def target(self) -> Target | None:
        """What the widths of all layers were solved for; None where layers differ."""
        return self.solved[0][0] if len(self.solved) == 1 else None

    @property
    def in_total(self) -> bool:
        """Whether widths were solved for equal sums with attention, in a multiple of their own."""
        return self.target is not None and self.target.match == "total"

    @property
    def clamped(self) -> tuple[str, ...]:
        """Names of widths that were raised to the smallest multiple."""
        return tuple(dict.fromkeys(name for _, widths in self.solved for name in widths.clamped))

    @property
    def loops(self) -> int | list[int]:
        """K, which is 1 without a deep path; or a list by layer."""
        return 1 if set(self.config.block_kinds) == {"wide"} else self.config.loops

    @property
    def layer(self) -> dict[str, int | float]:
        """FLOPs per token and layer by part, the mean where kinds of blocks are mixed."""
        return count.mean_layer_flops(self.config, self.seq_len)

    @property
    def budget_ratio(self) -> float | None:
        """The spent part of the budget: linear FLOPs, with attention scores under match total."""
        if self.in_total and self.target is not None:
            spent = self.layer["linear_total"] + self.layer["attention_scores"]
            return spent / self.target.matched_budget
        return None if self.budget is None else self.layer["linear_total"] / self.budget

    @property
    def training_flops(self) -> float:
        """FLOPs of one token in training, head included: their mean over steps."""
        counted = partial(count.training_flops_per_token, seq_len=self.seq_len)
        return count.over_loops(counted, self.config, self.step_loops)

    @property
    def hours(self) -> float:
        rate = self.hardware.gpus * self.hardware.tflops * 1e12
        return self.training_flops * self.hardware.tokens / rate / 3600

    @property
    def step_seconds(self) -> float | None:
        """The least seconds of a step of decoding."""
        if (d := self.decoding) is None:
            return None
        return count.decoding_seconds(self.config, d.texts, d.context, d.bandwidth)

    def width(self, name: str) -> int | list[int | None] | None:
        """Configured ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        unused = {"d_ffn": "wide", "d_ffn_wide": "loop"}[name]
        value: int | list[int | None] | None = getattr(self.config, name)
        return None if set(self.config.block_kinds) == {unused} else value

    def effective(self, name: str) -> int | list[int | None] | None:
        """Effective width of ``d_ffn`` or ``d_ffn_wide``; None where no block has that path."""
        return None if self.width(name) is None else self.config.effective(name)

    def record(self) -> dict[str, Any]:
        """Every number by name, for JSON; `model` is a section of a recipe, for YAML reads JSON."""
        block = self.config.block
        alpha = next((t.alpha for t, _ in self.solved if t.block == "dual"), None)
        record = {
            "block": block if isinstance(block, str) else list(block),
            "alpha": int(alpha) if alpha is not None and alpha == int(alpha) else alpha,
            "loops": self.loops,
            "d_ffn": self.width("d_ffn"),
            "d_ffn_wide": self.width("d_ffn_wide"),
            "d_ffn_effective": self.effective("d_ffn"),
            "d_ffn_wide_effective": self.effective("d_ffn_wide"),
            "ffn_multiple_of": self.config.ffn_multiple_of,
            "params": count.parameters(self.config),
            "params_non_embedding": count.parameters_non_embedding(self.config),
            "flops_per_token_per_layer": self.layer,
            "kv_bytes_per_token": count.kv_bytes(self.config),
            "budget": self.budget,
            "budget_ratio": self.budget_ratio,
            "reading": self.reading,
        }
        if any(layer.n_experts for layer in self.config.layers):
            record |= {"n_experts": self.config.n_experts, "top_k": self.config.top_k}
            record["expert_width"] = _one_or_list([own.expert_width for own in self.config.layers])
            record["params_active"] = count.active_parameters(self.config)
        if self.in_total and self.target is not None:
            record |= {"match": "total", "matched_budget": self.target.matched_budget}
        if self.hardware.asked:
            record["training_flops_per_token"] = self.training_flops
            record["training_hours"] = round(self.hours, 3)
        if self.decoding is not None and self.step_seconds is not None:
            record["decoding"] = asdict(self.decoding) | {
                "step_seconds": self.step_seconds,
                "tokens_per_second": self.decoding.texts / self.step_seconds,
            }
        return record | {"model": asdict(self.config)}


def solved(options: Options) -> Description:
    return _describe(targets_of(options), options)


def solved_table(options: Options) -> tuple[list[Description], list[str]]:
    """The paper's 13 configurations at the given budget, and the names of those without room.

    Under match total all 13 meet the same sum of linear FLOPs and attention scores, that of a dual
    block with the given K.
    """
    (base,) = targets_of(options)
    found, without_room = [], []
    for row in paper.configurations("F80M"):  # the same 13 kinds at either budget
        target = replace(base, block=row.block, alpha=row.target.alpha, loops=row.loops,
                         reference_loops=base.loops)  # fmt: skip
        if target.has_room:
            found.append(_describe([target], options))
        else:
            without_room.append(row.label)
    return found, without_room


def targets_of(options: Options) -> list[Target]:
    """What widths are solved for: one target for all layers, or one for each."""
    dim = _count(options, "dim", 768)
    heads = _count(options, "heads", max(1, dim // 64))
    if dim % heads or dim // heads % 2:
        raise UserError(
            f"--dim {dim} does not split into {heads} heads of an even size; "
            f"{_fitting_heads(dim, heads)}"
        )
    kv_heads = _count(options, "kv_heads", heads)
    if heads % kv_heads:
        raise UserError(
            f"--kv-heads {kv_heads} does not divide the {heads} query heads; "
            f"{_nearest_divisor(heads, kv_heads)} would"
        )
    blocks, loops = _layers(options)
    base = Target(
        budget=parse_size(str(options["budget"]), "--budget"),
        block=blocks[0],
        alpha=50 if options["alpha"] is None else options["alpha"],
        loops=loops[0],
        match=options["match"] or "linear",
        d_model=dim,
        n_heads=heads,
        n_kv_heads=kv_heads,
        seq_len=_count(options, "seq_len", 4096),
        multiple_of=_count(options, "width_multiple", paper.SOLVER_MULTIPLE),
    )
    return [replace(base, block=b, loops=k) for b, k in zip(blocks, loops, strict=True)]


def _layers(options: Options) -> tuple[list[BlockKind], list[int]]:
    """Kind and K of each layer, or of all."""
    kinds, counts = (
        str(default if options[name] is None else options[name]).split(",")
        for name, default in (("block", "dual"), ("loops", 4))
    )
    blocks = [check_choice("--block", kind.strip(), get_args(BlockKind)) for kind in kinds]
    if not all(count.strip().isdecimal() for count in counts):
        raise UserError(
            f"--loops must be a whole number, or one for each layer such as 1,4,1,1, not "
            f"'{options['loops']}'"
        )
    loops = [checked({"loops": int(count)}, "loops", 1, RANGES["loops"]) for count in counts]
    lists = {"--block": len(blocks), "--loops": len(loops)}
    lists = {name: length for name, length in lists.items() if length > 1}
    if not lists:
        return blocks, loops
    if options["match"] == "total":
        raise UserError("--match total goes with one kind of block and one K, not with a list")
    layers = _count(options, "layers", max(lists.values()))
    for name, length in lists.items():
        if length != layers:
            raise UserError(f"{name} lists {length} layers, and the model has {layers}")
    return blocks * (layers // len(blocks)), loops * (layers // len(loops))


def _describe(targets: list[Target], options: Options) -> Description:
    reading: paper.Reading = options["reading"] or "as_trained"
    chosen, given = paper.reading_fields(reading), options["width_multiple"] is not None
    target = targets[0]
    if target.match == "total" and not given:
        target, widths = solve_within(replace(target, multiple_of=chosen["ffn_multiple_of"]))
        by_layer = [(target, widths)]
    else:
        by_layer = [(target, solve_widths(target)) for target in targets]
    if target.match == "total" or given:
        chosen["ffn_multiple_of"] = target.multiple_of
    n, top_k = _count(options, "experts", 0), _count(options, "top_k", 2)
    fields: dict[str, Any] = dict(
        vocab_size=_count(options, "vocab", 50304),
        n_layers=_count(options, "layers", 16 if len(targets) == 1 else len(targets)),
        d_model=target.d_model,
        n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads,
        max_seq_len=target.seq_len,
        block=_one_or_list([t.block for t, _ in by_layer]),
        loops=_one_or_list([None if t.block == "wide" else t.loops for t, _ in by_layer], 1),
        d_ffn=_one_or_list([widths.d_ffn for _, widths in by_layer]),
        d_ffn_wide=_one_or_list([widths.d_ffn_wide for _, widths in by_layer]),
        **chosen,
    )
    try:
        config = ModelConfig(**fields)
    except ValueError as error:  # a budget may buy widths beyond all measure
        raise UserError(f"a budget of {format_size(target.budget)} is too large: {error}") from None
    experts = _one_or_list([0 if kind == "loop" else n for kind in config.block_kinds])
    try:
        config = replace(config, n_experts=experts, top_k=top_k)
    except ValueError as error:
        raise UserError(f"--experts {n}: {error}") from None
    return Description(
        config, reading, _hardware(options), target.seq_len, Decoding.read(options["decode"]),
        target.budget, tuple(dict(by_layer).items()),
    )  # fmt: skip


def from_recipes(options: Options) -> Description:
    """The model of the recipes in ``config``, later ones over earlier ones.

    ``reading`` then sets its fields over them.
    """
    merged = _merged(options["config"])
    config = _model_config(" + ".join(options["config"]), merged["model"], options["reading"])
    budget, hardware = options["budget"], _hardware(options, merged["run"].get("max_tokens"))
    own = vars(config).items()
    return Description(
        config,
        reading=next((r for r in paper.READINGS if paper.reading_fields(r).items() <= own), None),
        hardware=hardware,
        seq_len=_count(options, "seq_len", config.max_seq_len),
        decoding=Decoding.read(options["decode"]),
        budget=None if budget is None else parse_size(str(budget), "--budget"),
        step_loops=_step_loops(merged["run"], config, hardware.tokens),
    )


def _step_loops(run: dict[str, Any], config: ModelConfig, tokens: int) -> dict[int, float]:
    """Steps by their number of loops, from what a `run` section says of it."""
    from dualpath_cli.recipe.parser import build
    from dualpath_cli.recipe.schedule import check_loops, loop_counts
    from dualpath_cli.recipe.settings import RunSettings

    keys = run.keys() & {"train_loops", "loop_schedule", "batch_tokens"}
    settings = build(RunSettings, {key: run[key] for key in keys} | {"max_tokens": tokens}, "run.")
    check_loops(settings, config)
    return loop_counts(settings)


def _merged(names: list[str]) -> dict[str, Any]:
    from dualpath_cli.recipe import recipes

    merged = recipes.load_recipes(names)
    for name in ("model", "run", "optim"):
        if not isinstance(merged.setdefault(name, {}), dict):
            raise UserError(f"recipe '{' + '.join(names)}': '{name}' must be a mapping")
    return merged


def _model_config(recipe: str, model: dict[str, Any], reading: paper.Reading | None) -> ModelConfig:
    from dualpath_cli.recipe.parser import build

    if not model:
        raise UserError(f"recipe '{recipe}' has no model section to describe")
    if reading is not None:
        model = model | paper.reading_fields(reading)
    try:
        return build(ModelConfig, model, "model.")
    except UserError as error:
        raise UserError(f"recipe '{recipe}': {error}") from None


def _hardware(options: Options, tokens_of_recipe: Any = None) -> Hardware:
    gpus = _count(options, "gpus", paper.GPUS)
    tflops = checked(options, "tflops", DEFAULT_TFLOPS, (1e-6, 1e9))
    tokens = paper.TRAINING_TOKENS
    if options["tokens"] is not None:
        tokens = parse_size(str(options["tokens"]), "--tokens")
    elif tokens_of_recipe is not None:
        tokens = parse_size(str(tokens_of_recipe), "run.max_tokens")
    asked = any(options[name] is not None for name in HARDWARE_OPTIONS)
    return Hardware(tokens, gpus, tflops, asked)


def cluster_of(options: Options, description: Description) -> Cluster:
    """The cluster that `--plan` is for; its nodes, groups and batch come out even."""
    gpus = description.hardware.gpus
    gpus_per_node = _count(options, "gpus_per_node", min(8, gpus))
    recipes = _merged(options["config"] or [])
    run, optim = recipes["run"], recipes["optim"]
    shard_size = _of_recipe(options, "shard_size", run, min(gpus_per_node, gpus))
    if gpus > gpus_per_node and gpus % gpus_per_node:
        raise UserError(
            f"--gpus {gpus} are no whole nodes of --gpus-per-node {gpus_per_node}; "
            f"{-(-gpus // gpus_per_node) * gpus_per_node} would be"
        )
    if gpus % shard_size or (shard_size % gpus_per_node and gpus_per_node % shard_size):
        raise UserError(
            f"--shard-size {shard_size} must divide --gpus {gpus}, and divide or be a multiple of "
            f"--gpus-per-node {gpus_per_node}; {gpus_per_node} would"
        )
    of_recipe = run.get("batch_tokens", BATCH_TOKENS)
    sequences = _sequences(options["batch_tokens"], of_recipe, description.seq_len, gpus)
    micro_batch = gcd(sequences // gpus, _of_recipe(options, "micro_batch", run, MICRO_BATCH))
    return Cluster(
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        shard_size=shard_size,
        micro_batch=micro_batch,
        accumulate=sequences // gpus // micro_batch,
        tflops=description.hardware.tflops,
        node_bandwidth=checked(options, "node_bandwidth", NODE_BANDWIDTH, (1e-6, 1e9)),
        network_bandwidth=checked(options, "network_bandwidth", NETWORK_BANDWIDTH, (1e-6, 1e9)),
        reduce_bytes=2 if run.get("reduce_dtype") == "bfloat16" else 4,
        optimizer=check_choice("optim.name", str(optim.get("name", "adamw")), get_args(Optimizer)),
    )


def _sequences(asked: object, of_recipe: object, seq_len: int, gpus: int) -> int:
    """Sequences of a step, which all GPUs get equally many of."""
    name = "run.batch_tokens" if asked is None else "--batch-tokens"
    tokens = parse_size(str(of_recipe if asked is None else asked), name)
    sequences, rest = divmod(tokens, seq_len)
    if sequences and not rest and sequences % gpus == 0:
        return sequences
    fitting = max(1, -(-sequences // gpus)) * gpus * seq_len
    untried = ", a batch that the paper did not train with" if fitting > BATCH_TOKENS else ""
    raise UserError(
        f"a step of {tokens:,} tokens is {tokens / seq_len:,.6g} sequences of {seq_len:,}, of "
        f"which --gpus {gpus} cannot get equally many; --batch-tokens {fitting} would do{untried}"
    )


def _of_recipe(options: Options, name: str, run: dict[str, Any], default: int) -> int:
    """A number of a recipe's `run` section, where no option gives another."""
    given = run.get(name)
    return _count(options, name, given if isinstance(given, int) else default)


def _count(options: Options, name: str, default: int) -> int:
    allowed = RANGES[_FIELDS[name]] if name in _FIELDS else (1, 10**9)
    return checked(options, name, default, allowed)


def checked(options: Options, name: str, default: Number, allowed: Range) -> Number:
    """A number that an option gives, or the default."""
    value: Number = default if options[name] is None else options[name]
    try:
        check_range(f"--{name.replace('_', '-')}", value, allowed)
    except ValueError as error:
        raise UserError(str(error)) from None
    return value


def _one_or_list(values: list[Any], without: Any = None) -> Any:
    """The value of all layers that have one, or a list where they differ."""
    different = {value for value in values if value is not None}
    if len(different) < 2:
        return different.pop() if different else without
    return [without if value is None else value for value in values]


def _nearest_divisor(whole: int, wanted: int) -> int:
    divisors = [n for n in range(1, whole + 1) if whole % n == 0]
    return min(divisors, key=lambda n: abs(n - wanted))


def _fitting_heads(dim: int, wanted: int) -> str:
    if dim % 2:
        return f"an odd width has no such heads, --dim {dim + 1} would"
    return f"--heads {_nearest_divisor(dim // 2, wanted)} would"
