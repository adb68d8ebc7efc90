"""`dualpath flops`: its options, and the model, table or plan that they ask for."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import Any, Literal, cast, get_args

from dualpath_cli.config import RANGES, BlockKind, ModelConfig
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.flops import paper
from dualpath_cli.flops.description import Decoding, Description, Hardware, one_or_list
from dualpath_cli.flops.plan import STRATEGIES, Cluster, plan
from dualpath_cli.flops.widths import Match, Target, solve_widths, solve_within
from dualpath_cli.own_classes.checks import import_classes
from dualpath_cli.ranges import LARGEST, Place, Range, Size, check_range, check_ranges, format_size
from dualpath_cli.recipe.recipes import load_recipes
from dualpath_cli.recipe.schedule import check_loops, loop_counts
from dualpath_cli.recipe.settings import OptimSettings, RunSettings, Settings, settings_from

_FIELDS = {  # of a model, by the option that sets it
    "vocab": "vocab_size", "layers": "n_layers", "dim": "d_model", "heads": "n_heads",
    "kv_heads": "n_kv_heads", "seq_len": "max_seq_len", "width_multiple": "ffn_multiple_of",
    "experts": "n_experts", "top_k": "top_k",
}  # fmt: skip
_SOLVER = {"alpha", "loops", "block", "match", *_FIELDS} - {"seq_len"}
_SPEEDS = ("tflops", "node_bandwidth", "network_bandwidth")
_PLAN = ("gpus_per_node", "shard_size", "micro_batch", "batch_tokens", *_SPEEDS[1:])


@dataclass(frozen=True)
class Flops:
    """Solves FFN widths for a FLOP budget, and counts a model's parameters and FLOPs, for the paper
    as written and as trained."""

    budget: Size | None = None
    """Solve FFN widths for so many linear FLOPs per token and layer, such as 80M."""
    config: tuple[Place, ...] = ()
    """Describe a recipe's model instead (path or name); later ones win. With --budget the model is
    compared to it."""
    table: bool = False
    """Print the paper's 13 configurations, solved for --budget."""
    block: str = "dual"
    """Kind of block: dual, loop or wide; or one for each layer, as wide,dual,wide."""
    alpha: str = "50"
    """Percent of a dual block's FLOPs that its deep path gets."""
    loops: str = field(default="4", metadata={"also": ("--k",)})
    """K, passes of the deep path; or one for each layer, as 1,4,1,1."""
    match: Match = "linear"
    """linear: linear FLOPs meet the budget, as in the paper. total: linear FLOPs and
    attention scores meet the budget plus the K + 1 attention passes of a dual block, to within 1
    percent, so wide and loop blocks get wider FFNs."""
    width_multiple: int | None = None
    """Multiple that widths are solved in and that effective widths round up to, under both
    readings. By default they are solved in 64, and effective widths round to 64 as written, 256 as
    trained; under --match total it is the coarsest of 64 (256) and its halves that gets within 1
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
    """Number of query heads. By default one for 64 channels, so 12."""
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
    tflops: float = 68.0
    """TFLOP/s that each GPU sustains in training, not its peak. By default the median that the
    paper's 26 training times imply for its A100s."""
    plan: bool = False
    """Print memory, traffic and time of each of --gpus under ddp, fsdp and hsdp instead."""
    gpus_per_node: int | None = None
    """GPUs of a node. 8 by default."""
    shard_size: int | None = None
    """GPUs that share one set of weights under hsdp. By default the recipe's, or a node's."""
    micro_batch: int | None = None
    """Sequences at once, at most. By default the recipe's, or 2."""
    batch_tokens: Size | None = None
    """Tokens of a step, such as 4194304. By default the recipe's, or 2097152."""
    node_bandwidth: float = 300.0
    """GB/s that a GPU sends within its node: by default NVLink of an A100, by its data sheet."""
    network_bandwidth: float = 25.0
    """GB/s that a GPU sends to other nodes: by default 200 Gb/s."""
    decode: str | None = None
    """Say how fast texts can grow at most that are decoded side by side: texts x tokens of each @
    bandwidth of the memory, such as 32x4096@3.35TB/s."""
    reading: paper.Reading | None = None
    """The authors' configuration (as_trained, the default for a budget), or the paper's text
    (as_written). By default a recipe is taken as it is."""
    format: Literal["table", "json"] = "table"
    """Form of the answer."""
    given: tuple[str, ...] = ()
    """Names of the options that the user gave."""

    def __post_init__(self) -> None:
        ranges: dict[str, Range] = {name: RANGES[field] for name, field in _FIELDS.items()}
        ranges |= dict.fromkeys(("budget", "tokens", "batch_tokens"), (1, LARGEST))
        ranges |= dict.fromkeys(("gpus", "gpus_per_node", "shard_size", "micro_batch"), (1, 10**9))
        check_ranges(self, ranges | dict.fromkeys(_SPEEDS, (1e-6, 1e9)))
        _ = self.percent, self.by_layer  # which raise
        if self.plan:
            idle = ("table", "tokens", "decode")
            self._refuse(idle, "--plan is of one training step of one model")
        else:
            self._refuse(_PLAN, "only --plan asks what connects GPUs and how they share")
        if self.config:
            self._refuse((*_SOLVER, "table"), "--config describes the recipe's own model")
        elif self.budget is None:
            example = "such as --budget 80M --alpha 50 --k 4"
            raise UserError(f"nothing to describe; give --budget ({example}), or --config RECIPE")
        if self.table:
            swept = ("block", "alpha") if self.match == "total" else ("block", "alpha", "loops")
            self._refuse(swept, "--table goes through every block, alpha and K")

    def _refuse(self, refused: Sequence[str], because: str) -> None:
        if both := [_flag(name) for name in self.given if name in refused]:
            raise UserError(f"{because}; drop {', '.join(both)}")

    @property
    def percent(self) -> float:
        try:
            return float(self.alpha.removesuffix("%"))
        except ValueError:
            wanted = "a percentage such as 50 or 50%"
            raise ValueError(f"alpha must be {wanted}, not '{self.alpha:.60}'") from None

    @cached_property
    def by_layer(self) -> list[tuple[BlockKind, int]]:
        """Kind and K of each layer, or one of each for all layers."""
        lists = (self.block, self.loops)
        kinds, counts = ([item.strip() for item in text.split(",")] for text in lists)
        for kind in kinds:
            if kind not in (known := get_args(BlockKind)):
                near = did_you_mean(kind, known)
                raise ValueError(f"block must be one of {', '.join(known)}, not '{kind:.60}'{near}")
        if not all(re.fullmatch(r"\d{1,18}", count) for count in counts):
            raise ValueError(
                "loops must be a whole number, or one for each layer such as 1,4,1,1, not "
                f"'{self.loops:.60}'"
            )
        for count in counts:
            check_range("loops", int(count), RANGES["loops"])
        longest = max(len(kinds), len(counts))
        if longest == 1:
            return [(cast(BlockKind, kinds[0]), int(counts[0]))]
        if self.match == "total":
            raise UserError("--match total goes with one kind of block and one K, not with a list")
        layers = self.layers or longest
        for name, items in (("block", kinds), ("loops", counts)):
            if len(items) not in (1, layers):
                raise ValueError(f"{name} lists {len(items)} layers, and the model has {layers}")
        kinds, counts = (items * (layers // len(items)) for items in (kinds, counts))
        return list(zip(cast(list[BlockKind], kinds), map(int, counts), strict=True))


def run(options: Flops) -> str:
    """Prints a table, or returns JSON. Options without effect are named on stderr."""
    if options.config:
        settings = _settings(options.config)
        return _answer(options, _of_recipe(options, settings), settings.run, settings.optim)
    if options.table:
        return _table(options)
    _name_idle_options(options)
    return _answer(options, _solved(options, _targets(options)), RunSettings(), OptimSettings())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _note(text: str) -> None:
    """Says something beside the answer, so that JSON stays loadable."""
    print(f"dualpath flops: note: {text}", file=sys.stderr)


def _name_idle_options(options: Flops) -> None:
    kinds = {kind for kind, _ in options.by_layer}
    idle = {
        "alpha": "dual" not in kinds,
        "loops": kinds == {"wide"} and options.match != "total",
        "experts": kinds == {"loop"},
        "top_k": not options.experts,
    }
    for name in idle:
        if idle[name] and name in options.given:
            dense = " without --experts" if name == "top_k" else ""
            _note(f"{_flag(name)} has no effect on block '{options.block}'{dense}")


def _answer(
    options: Flops, description: Description, run: RunSettings, optim: OptimSettings
) -> str:
    """One model, or with `--plan` the GPUs that train it."""
    record = description.record()
    if options.plan:
        cluster = _cluster(options, description, run, optim)
        config = replace(description.config, max_seq_len=description.seq_len)
        plans = [plan(config, strategy, cluster) for strategy in STRATEGIES]
        record["plan"] = vars(cluster) | {plan.strategy: plan.record() for plan in plans}
    if options.format == "json":
        return json.dumps(record, indent=2)
    from dualpath_cli.flops import report  # with rich, which JSON needs none of
    from dualpath_cli.output.console import plain_console

    if options.plan:
        report.show_plan(plain_console(), description, cluster, plans)
    else:
        report.show_model(plain_console(), description)
    return ""


def _table(options: Flops) -> str:
    """The paper's 13 configurations; under match total all meet the sum of a dual block with K."""
    (base,) = _targets(options)
    found, without_room = [], []
    for row in paper.configurations("F80M"):  # the same 13 kinds at either budget
        target = replace(base, block=row.block, alpha=row.target.alpha, loops=row.loops,
                         reference_loops=base.loops)  # fmt: skip
        if target.has_room:
            found.append(_solved(options, [target]))
        else:
            without_room.append(row.label)
    if not found:
        solve_widths(base)  # raises, with the budget that has room
    if without_room:
        _note(f"this budget leaves no room for an FFN in {', '.join(without_room)}")
    if options.format == "json":
        return json.dumps([description.record() for description in found], indent=2)
    from dualpath_cli.flops import report
    from dualpath_cli.output.console import plain_console

    report.show_configurations(plain_console(), found)
    return ""


def _targets(options: Flops) -> list[Target]:
    assert options.budget is not None
    dim = options.dim
    heads = options.heads or max(1, dim // 64)
    if dim % heads or dim // heads % 2:
        way_out = f"an odd width has no such heads, --dim {dim + 1} would"
        if dim % 2 == 0:
            way_out = f"--heads {_nearest_divisor(dim // 2, heads)} would"
        raise UserError(f"--dim {dim} does not split into {heads} heads of an even size; {way_out}")
    kv_heads = options.kv_heads or heads
    if heads % kv_heads:
        raise UserError(
            f"--kv-heads {kv_heads} does not divide the {heads} query heads; "
            f"{_nearest_divisor(heads, kv_heads)} would"
        )
    return [
        Target(
            options.budget, block, options.percent, loops, options.match,
            d_model=dim, n_heads=heads, n_kv_heads=kv_heads, seq_len=options.seq_len or 4096,
            multiple_of=options.width_multiple or 64,  # under both readings (Eq. heff)
        )
        for block, loops in options.by_layer
    ]  # fmt: skip


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
        block=one_or_list([t.block for t, _ in by_layer]),
        loops=one_or_list([None if t.block == "wide" else t.loops for t, _ in by_layer], 1),
        d_ffn=one_or_list([widths.d_ffn for _, widths in by_layer]),
        d_ffn_wide=one_or_list([widths.d_ffn_wide for _, widths in by_layer]),
        **chosen,
    )  # fmt: skip
    try:
        config = ModelConfig(**fields)
    except ValueError as error:  # a budget may buy widths beyond all measure
        raise UserError(f"a budget of {format_size(target.budget)} is too large: {error}") from None
    n = options.experts
    experts = one_or_list([0 if kind == "loop" else n for kind in config.block_kinds])
    try:
        config = replace(config, n_experts=experts, top_k=options.top_k)
    except ValueError as error:
        raise UserError(f"--experts {n}: {error}") from None
    return Description(
        config, reading, _hardware(options), target.seq_len, Decoding.read(options.decode),
        target.budget, tuple(dict(by_layer).items()),
    )  # fmt: skip


def _settings(names: Sequence[str]) -> Settings:
    """Those of recipes, later ones over earlier ones."""
    recipe, named = load_recipes(names), f"recipe '{' + '.join(names)}'"
    if not recipe.get("model"):
        raise UserError(f"{named} has no model section to describe")
    try:
        settings = settings_from(recipe)
        import_classes(settings.model, allowed=True)
        return settings
    except UserError as error:
        raise UserError(f"{named}: {error}") from None


def _of_recipe(options: Flops, settings: Settings) -> Description:
    """A recipe's model; `reading` sets its fields over it."""
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
    return Description(
        config, reading, _hardware(options, run.max_tokens), options.seq_len or config.max_seq_len,
        Decoding.read(options.decode), options.budget, step_loops=loop_counts(run),
    )  # fmt: skip


def _hardware(options: Flops, tokens: int = paper.TRAINING_TOKENS) -> Hardware:
    asked = any(name in options.given for name in ("tokens", "gpus", "tflops"))
    return Hardware(options.tokens or tokens, options.gpus, options.tflops, asked)


def _cluster(
    options: Flops, description: Description, run: RunSettings, optim: OptimSettings
) -> Cluster:
    """The cluster that `--plan` is for; its nodes, groups and batch come out even."""
    gpus, batch_tokens = description.hardware.gpus, options.batch_tokens or run.batch_tokens
    if "gpus" not in options.given:  # as many as the sequences of a step can be dealt out to
        gpus = gcd(gpus, batch_tokens // description.seq_len)
    gpus_per_node = options.gpus_per_node or min(8, gpus)
    shard_size = options.shard_size or run.shard_size or min(gpus_per_node, gpus)
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
    sequences = _sequences(batch_tokens, description.seq_len, gpus)
    micro_batch = gcd(sequences // gpus, options.micro_batch or run.micro_batch)
    return Cluster(
        gpus, gpus_per_node, shard_size, micro_batch, sequences // gpus // micro_batch,
        description.hardware.tflops, options.node_bandwidth, options.network_bandwidth,
        reduce_bytes=2 if run.reduce_dtype == "bfloat16" else 4, optimizer=optim.name,
    )  # fmt: skip


def _sequences(tokens: int, seq_len: int, gpus: int) -> int:
    """Sequences of a step, which all GPUs get equally many of."""
    sequences, rest = divmod(tokens, seq_len)
    if sequences and not rest and sequences % gpus == 0:
        return sequences
    fitting = max(1, -(-sequences // gpus)) * gpus * seq_len
    papers = RunSettings().batch_tokens
    untried = ", a batch that the paper did not train with" if fitting > papers else ""
    raise UserError(
        f"a step of {tokens:,} tokens is {tokens / seq_len:,.6g} sequences of {seq_len:,}, of "
        f"which --gpus {gpus} cannot get equally many; --batch-tokens {fitting} would do{untried}"
    )
