"""`dualpath flops`: prints one model, or the memory of the GPUs that train one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from statistics import fmean
from textwrap import fill
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import say
from dualpath_cli.base.ranges import format_size
from dualpath_cli.flops import count
from dualpath_cli.flops.description import (
    Description,
    Flops,
    describe_recipe,
    flag,
    settings_of,
    solve_description,
)
from dualpath_cli.flops.plan import STRATEGIES, Cluster, Memory, Strategy, plan
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.recipe.schedule import loop_counts
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.report.table import LOG_WIDTH, Column, Table, show
from dualpath_cli.spec.config import ModelConfig, by_layer


@dataclass(frozen=True)
class MemoryPlans:
    """The memory of each GPU of a cluster, by strategy."""

    cluster: Cluster
    by_strategy: Mapping[Strategy, Memory]

    def record(self) -> dict[str, Any]:
        by_strategy = {name: vars(memory) for name, memory in self.by_strategy.items()}
        cluster = dict(vars(self.cluster))
        for name in ("backprop_loops", "loop_losses"):
            if not cluster[name]:
                del cluster[name]
        return cluster | by_strategy


@dataclass(frozen=True)
class PrintedTable:
    """A table, with the lines above and below."""

    above: Sequence[str]
    table: Table
    below: Sequence[str]


def describe(options: Flops) -> str:
    """Prints a table, or returns JSON. Names options without effect on stderr."""
    if options.config:
        description = describe_recipe(options, settings_of(options.config))
    else:
        _name_idle_options(options)
        description = solve_description(options)

    plans = _plans(description) if options.plan else None
    if options.format == "json":
        record = description.record()
        if plans is not None:
            record["plan"] = plans.record()
        return json.dumps(record, indent=2)

    if plans is None:
        _print(_model_table(description))
    else:
        _print(_plan_table(description, plans))
    return ""


def _print(printed: PrintedTable) -> None:
    # imports rich, which JSON does not need
    from dualpath_cli.report.console import plain_console

    console = plain_console()
    width = min(LOG_WIDTH, console.width)

    def print_line(line: str) -> None:
        console.print(fill(line, width, break_on_hyphens=False))

    for line in (*printed.above, ""):
        print_line(line)
    show(console, printed.table, box=False)
    if printed.below:
        for line in ("", *printed.below):
            print_line(line)


def _name_idle_options(options: Flops) -> None:
    """On stderr, so that JSON on stdout stays loadable."""
    block = f"on block '{options.block}'"

    # each with the reason for which it is idle
    idle: dict[str, str] = {}
    if options.no_deep_ffn:
        idle["alpha"] = "with --no-deep-ffn"
    if options.block != "dual":
        idle["alpha"] = block
    if options.block == "wide":
        idle |= dict.fromkeys(("no_deep_ffn", "untied_steps", "step_kv"), block)
        if options.match != "total":
            idle["loops"] = block
    elif options.loops == 1:
        of_steps = ("untied_steps", "step_kv")
        idle |= dict.fromkeys(of_steps, f"{block} with --loops 1")
    of_core = ("injection", "core_combination")
    if options.core is None:
        without = "without --core and --core-loops above 1"
        idle |= dict.fromkeys(("core_loops", *of_core), without)
    elif options.core_loops == 1:
        idle |= dict.fromkeys(("core", *of_core), "without --core-loops above 1")
    if options.block == "loop":
        idle |= dict.fromkeys(("experts", "top_k"), block)
    elif not options.experts:
        idle["top_k"] = f"{block} without --experts"

    for name in options.given:
        if name in idle:
            say(f"dualpath flops: note: {flag(name)} has no effect {idle[name]}")


def _plans(description: Description) -> MemoryPlans:
    cluster = _cluster(description)
    config = replace(description.config, max_seq_len=description.seq_len)
    by_strategy = {name: plan(config, name, cluster) for name in STRATEGIES}
    return MemoryPlans(cluster, by_strategy)


def _cluster(description: Description) -> Cluster:
    """The cluster of `--plan`; UserError unless groups and batch divide evenly."""
    options = description.options
    run = description.run
    seq_len = description.seq_len
    batch_tokens = options.batch_tokens or run.batch_tokens

    sequences, rest = divmod(batch_tokens, seq_len)

    gpus = options.gpus
    if "gpus" not in options.given:
        # the most that get equally many sequences of a step
        gpus = gcd(gpus, max(1, sequences))
    if not sequences or rest or sequences % gpus:
        raise UserError(_uneven_batch(batch_tokens, seq_len, gpus))

    shard_size = options.shard_size or run.shard_size or gcd(8, gpus)
    if gpus % shard_size:
        raise UserError(
            f"--shard-size {shard_size} must divide --gpus {gpus}; "
            f"{_largest_divisor(gpus, shard_size)} would"
        )

    sequences_per_gpu = sequences // gpus
    most = options.micro_batch or run.micro_batch
    micro_batch = _largest_divisor(sequences_per_gpu, most)

    checkpointing = run.activation_checkpointing
    return Cluster(
        gpus,
        shard_size,
        micro_batch,
        accumulate=sequences_per_gpu // micro_batch,
        reduce_bytes=2 if run.reduce_dtype == "bfloat16" else 4,
        optimizer=description.optim.name,
        checkpointing="selective" if checkpointing == "auto" else checkpointing,
        backprop_loops=run.backprop_loops,
        loop_losses=run.loop_losses > 0,
    )


def _largest_divisor(whole: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`."""
    return next(n for n in range(min(whole, most), 0, -1) if whole % n == 0)


def _uneven_batch(batch_tokens: int, seq_len: int, gpus: int) -> str:
    sequences_per_gpu = -(-(batch_tokens // seq_len) // gpus)
    fitting = max(1, sequences_per_gpu) * gpus * seq_len
    larger_than_the_papers = fitting > RunSettings().batch_tokens
    untried = ", a larger batch than the paper's" if larger_than_the_papers else ""
    return (
        f"a step of {batch_tokens:,} tokens is {batch_tokens / seq_len:,.6g} "
        f"sequences of {seq_len:,}, which --gpus {gpus} cannot share equally; "
        f"--batch-tokens {fitting} would do{untried}"
    )


def _model_table(description: Description) -> PrintedTable:
    reading = description.reading or "recipe"
    heading = reading.replace("_", " ")
    columns = [Column(""), Column(heading, _number)]
    table = Table(columns, _numbers(description))

    below: list[str] = []
    for note in _notes(description):
        if below:
            below.append("")
        below.append(note)
    return PrintedTable(_title(description), table, below)


PARTS_OF_MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "the optimizer's moments",
    "unreduced": "gradients before they are reduced",
    "gathered": "whole weights, gathered",
    "saved": "saved activations",
    "working": "extra for loss or backward pass",
    "peak": "peak",
}
"""The fields of Memory in words."""


def _plan_table(description: Description, plans: MemoryPlans) -> PrintedTable:
    cluster = plans.cluster
    columns = [Column("GB on each GPU")]
    columns += [Column(name, _gigabytes) for name in plans.by_strategy]
    rows = [
        [words, *(getattr(memory, part) for memory in plans.by_strategy.values())]
        for part, words in PARTS_OF_MEMORY.items()
    ]

    gradients = "float32" if cluster.reduce_bytes == 4 else "bfloat16"
    note = (
        "Weights and moments in float32, bf16-mixed, compiled, "
        f"{cluster.checkpointing} checkpointing; gradients travel in {gradients}. hsdp "
        f"shards over {cluster.shard_size} GPUs. The peak is less than the sum if a "
        "step is one micro-batch: gradients grow while activations are freed."
    )
    above = [*_title(description), _step_line(cluster, description.seq_len)]
    return PrintedTable(above, Table(columns, rows), [note])


def _step_line(cluster: Cluster, seq_len: int) -> str:
    """The shares of a step in words."""
    gpus = f"{cluster.gpus:,} GPUs"
    if cluster.gpus == 1:
        gpus = "1 GPU"
    accumulated = f"accumulated {cluster.accumulate} times"
    if cluster.accumulate == 1:
        accumulated = "accumulated once"

    sequences = cluster.gpus * cluster.micro_batch * cluster.accumulate
    return (
        f"{sequences * seq_len:,} tokens a step: {gpus} x {cluster.micro_batch} "
        f"sequences of {seq_len:,}, {accumulated}"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3f}" if size else "-"


def _title(description: Description) -> list[str]:
    config = description.config
    deep = ""
    if config.deep_layers:
        deep = f", K = {by_layer(config.loops)}"

    target = description.target
    if target is not None:
        alpha = description.alpha
        split = "" if alpha is None else f", alpha {alpha:g} %"
        budget = f"budget {format_size(target.budget)} linear FLOPs per token and layer"
        title = [f"{target.block} block{deep}{split}, {budget}"]
    else:
        runs = groupby(config.block_kinds)
        kinds = " + ".join(f"{len(list(blocks))} {kind}" for kind, blocks in runs)
        title = [f"{kinds} blocks{deep}"]

    title += _loops(config)
    if matched := description.matched:
        title.append(
            f"matched in total: linear + attention scores = {matched.matched_budget:,} "
            f"(budget + {matched.reference_passes} passes)"
        )
    title.append(
        f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads, "
        f"{config.n_kv_heads} key/value heads, vocabulary {config.vocab_size}, "
        f"{description.seq_len} tokens a sequence"
    )
    return title


def _loops(config: ModelConfig) -> list[str]:
    """A line for the core, and one for the steps of deep paths that share other than
    usual."""
    lines = []
    if config.core is not None:
        first, last = config.core
        core = f"core: layers {first} to {last}, R = {config.core_loops}"
        if config.injection != "none":
            core += f", injection {config.injection}"
        if config.routes_core:
            core += ", routed"
        lines.append(core)

    steps = []
    several = [layer for layer in config.deep_layers if layer.loops > 1]
    if any(layer.untied_steps for layer in several):
        steps.append("a sublayer each")
    if any(layer.step_kv == "first" for layer in several):
        steps.append("keys and values of the first")
    if any(not layer.deep_ffn for layer in config.deep_layers):
        steps.append("without feed-forward")
    if steps:
        lines.append(f"steps: {', '.join(steps)}")
    return lines


def _numbers(description: Description) -> list[tuple[str, Any]]:
    """Labels with numbers, blank for a heading; rows whose number is 0 or None are left
    out."""
    config = description.config
    layer = description.layer
    record = description.record()
    lines: list[tuple[str, Any]] = [
        ("d_ffn, deep path", record["d_ffn"]),
        ("  effective width", record["d_ffn_effective"]),
        ("d_ffn_wide, wide path", record["d_ffn_wide"]),
        ("  effective width", record["d_ffn_wide_effective"]),
        (f"  experts, {config.top_k} active", record.get("n_experts")),
        ("  width of an expert", record.get("expert_width")),
    ]
    if description.matched:
        multiple = config.ffn_multiple_of
        lines.append(("multiple of widths, ffn_multiple_of", multiple))

    k = record["loops"]
    looped = _times(k) if isinstance(k, int) else f"K = {by_layer(k)}"
    if config.core is not None:
        looped = f"K = {by_layer(k)}, with repetitions"
    passes = fmean(
        own.core_loops * count.passes(own.block, own.loops) for own in config.layers
    )
    mixed = " (mean of layers)" if len(set(config.layers)) > 1 else ""
    lines += [
        ("parameters", record["params"]),
        ("  active for a token", record.get("params_active")),
        ("  outside embedding and head", record["params_non_embedding"]),
        (f"FLOPs per token and layer{mixed}", " "),
        (f"  deep path, {looped}", layer["deep"]),
        ("  wide path", layer["wide"]),
        ("  gate", layer["gate"]),
        ("  injection", layer.get("injection")),
        ("  linear total", layer["linear_total"]),
        ("  router", layer["router"]),
        (f"  attention scores, {_times(passes)}", layer["attention_scores"]),
        ("  total", layer["total"]),
    ]

    if ratio := description.budget_ratio:
        spent = "linear + attention" if description.matched else "linear total"
        lines.append((f"ratio to the budget, {spent}", f"{ratio:.4f}"))
    mean = ", mean of steps" if loop_counts(description.run) else ""
    lines.append((f"training FLOPs per token{mean}", description.training_flops))
    if description.names_hardware or description.target is not None:
        lines.append(("training hours", _hours(description.hours)))
    lines.append(("KV cache bytes per token", record["kv_bytes_per_token"]))
    return [(label, number) for label, number in lines if number]


def _times(n: float) -> str:
    return f"{n:g} pass" if n == 1 else f"{n:g} passes"


def _number(value: float | list[int | None]) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else by_layer(value)


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "< 0.01"
    return f"{hours:.2f}" if hours < 10 else f"{hours:,.1f}"


def _notes(description: Description) -> list[str]:
    """Assumptions of training, widths above their share, and an unmet sum."""
    notes = []
    # The paper's GPUs are a fair assumption for the paper's budgets, but not for every
    # recipe.
    if description.names_hardware or description.target is not None:
        notes.append(_note_on_training(description))

    if target := description.target:
        exact_deep, exact_wide = target.exact_widths()
        exact = {"d_ffn": exact_deep, "d_ffn_wide": exact_wide}
        for name in description.clamped:
            raised = getattr(description.config, name)
            notes.append(
                f"Above its share: {name} is raised to {raised}, the smallest multiple "
                "with a channel; the exact effective width is "
                f"{float(exact[name] or 0):.1f}."
            )

    ratio = description.budget_ratio
    if description.matched and ratio is not None and abs(ratio - 1) > TOLERANCE:
        notes.append(
            f"In multiples of {description.config.ffn_multiple_of} the matched sum is "
            f"not met to within {float(100 * TOLERANCE):g} %."
        )
    return notes


def _note_on_training(description: Description) -> str:
    options = description.options
    sustain = f"{options.gpus} GPUs that each sustain"
    if options.gpus == 1:
        sustain = "1 GPU that sustains"
    run = description.run
    special = {"backprop_loops": run.backprop_loops, "loop_losses": run.loop_losses}
    changed = [f"run.{name}={value:g}" for name, value in special.items() if value]
    counted = "at three forward passes a token, head included"
    if changed:
        counted = f"with {' and '.join(changed)}"

    note = (
        f"Training: {description.tokens:,} tokens on {sustain} "
        f"{options.sustained / 1e12:g} TFLOP/s, {counted}."
    )
    if description.names_hardware:
        return note
    return (
        f"{note} This hardware is assumed; name yours with --tokens, --gpus and "
        "--tflops. The paper's runs took 12.8 to 21.4 hours, which implies 42 to 122 "
        "TFLOP/s for each of its A100s."
    )
