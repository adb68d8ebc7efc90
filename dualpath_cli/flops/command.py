"""`dualpath flops`: prints one model, or the memory of the GPUs that train one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    described,
    flag,
    settings_of,
    solved,
)
from dualpath_cli.flops.plan import STRATEGIES, Cluster, Memory, Strategy, plan
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.recipe.settings import OptimSettings, RunSettings
from dualpath_cli.report.table import LOG_WIDTH, Column, Table, show
from dualpath_cli.spec.config import by_layer

Answer = tuple[Sequence[str], Table, Sequence[str]]
"""Lines above a table, the table, and lines below."""


def run(options: Flops) -> str:
    """Prints a table, or returns JSON. Names options without effect on stderr."""
    run, optim = RunSettings(), OptimSettings()
    if options.config:
        settings = settings_of(options.config)
        description, run, optim = (
            described(options, settings),
            settings.run,
            settings.optim,
        )
    else:
        _name_idle_options(options)
        description = solved(options)
    if options.plan:
        cluster = _cluster(description, run, optim)
        config = replace(description.config, max_seq_len=description.seq_len)
        plans = {name: plan(config, name, cluster) for name in STRATEGIES}
    if options.format == "json":
        record = description.record()
        if options.plan:
            record["plan"] = vars(cluster) | {
                name: vars(held) for name, held in plans.items()
            }
        return json.dumps(record, indent=2)
    return _print(
        *(_plan(description, cluster, plans) if options.plan else _model(description))
    )


def _print(above: Sequence[str], table: Table, below: Sequence[str]) -> str:
    # imports rich, which JSON does not need
    from dualpath_cli.report.console import plain_console

    console = plain_console()
    width = min(LOG_WIDTH, console.width)
    for line in (*above, ""):
        console.print(fill(line, width, break_on_hyphens=False), highlight=False)
    show(console, table, box=False)
    for line in ("", *below) if below else ():
        console.print(fill(line, width, break_on_hyphens=False), highlight=False)
    return ""


def _name_idle_options(options: Flops) -> None:
    """On stderr, so that JSON on stdout stays loadable."""
    idle = {
        "alpha": options.block != "dual",
        "loops": options.block == "wide" and options.match != "total",
        "experts": options.block == "loop",
        "top_k": not options.experts,
    }
    for name in idle:
        if idle[name] and name in options.given:
            dense = " without --experts" if name == "top_k" else ""
            idle_here = f"{flag(name)} has no effect on block '{options.block}'{dense}"
            say(f"dualpath flops: note: {idle_here}")


def _cluster(
    description: Description, run: RunSettings, optim: OptimSettings
) -> Cluster:
    """The cluster of `--plan`; UserError unless groups and batch divide evenly."""
    options, seq_len = description.options, description.seq_len
    gpus, batch_tokens = options.gpus, options.batch_tokens or run.batch_tokens
    # the most that get equally many sequences of a step
    if "gpus" not in options.given:
        gpus = gcd(gpus, batch_tokens // seq_len)
    shard_size = options.shard_size or run.shard_size or gcd(8, gpus)
    if gpus % shard_size:
        raise UserError(
            f"--shard-size {shard_size} must divide --gpus {gpus}; "
            f"{gcd(shard_size, gpus)} would"
        )
    sequences, rest = divmod(batch_tokens, seq_len)
    if not sequences or rest or sequences % gpus:
        fitting = max(1, -(-sequences // gpus)) * gpus * seq_len
        papers = RunSettings().batch_tokens
        untried = ", a larger batch than the paper's" if fitting > papers else ""
        raise UserError(
            f"a step of {batch_tokens:,} tokens is {batch_tokens / seq_len:,.6g} "
            f"sequences of {seq_len:,}, which --gpus {gpus} cannot share equally; "
            f"--batch-tokens {fitting} would do{untried}"
        )
    micro_batch = gcd(sequences // gpus, options.micro_batch or run.micro_batch)
    asked = run.activation_checkpointing
    return Cluster(
        gpus,
        shard_size,
        micro_batch,
        sequences // gpus // micro_batch,
        2 if run.reduce_dtype == "bfloat16" else 4,
        optim.name,
        "selective" if asked == "auto" else asked,
    )


def _model(description: Description) -> Answer:
    heading = (description.reading or "recipe").replace("_", " ")
    table = Table([Column(""), Column(heading, _number)], _numbers(description))
    notes = [line for note in _notes(description) for line in ("", note)]
    return _title(description), table, notes[1:]


def _plan(
    description: Description, cluster: Cluster, plans: Mapping[Strategy, Memory]
) -> Answer:
    gpus, times, micro_batch = cluster.gpus, cluster.accumulate, cluster.micro_batch
    tokens = gpus * micro_batch * times * description.seq_len
    title = [
        *_title(description),
        f"{tokens:,} tokens a step: {gpus:,} GPU{'' if gpus == 1 else 's'} x "
        f"{micro_batch} sequences of {description.seq_len:,}, accumulated "
        f"{'once' if times == 1 else f'{times} times'}",
    ]
    words = (
        "weights",
        "gradients",
        "the optimizer's moments",
        "gradients before they are reduced",
        "whole weights, gathered",
        "saved activations",
        "loss and backward pass at work",
        "at once, at most",
    )
    sizes = zip(*(vars(held).values() for held in plans.values()), strict=True)
    rows = [[part, *each] for part, each in zip(words, sizes, strict=True)]
    columns = [Column("GB on each GPU")]
    columns += [
        Column(name, lambda size: f"{size / 1e9:.3f}" if size else "-")
        for name in plans
    ]
    gradients = "float32" if cluster.reduce_bytes == 4 else "bfloat16"
    note = (
        "Weights and moments in float32, bf16-mixed, compiled, "
        f"{cluster.checkpointing} checkpointing; gradients travel in {gradients}. hsdp "
        f"shards over {min(cluster.shard_size, gpus)} GPUs. At once is less than the "
        "sum if a step is one micro-batch: gradients grow while activations are freed."
    )
    return title, Table(columns, rows), [note]


def _title(description: Description) -> list[str]:
    config, target = description.config, description.target
    kinds = " + ".join(
        f"{len(list(run))} {kind}" for kind, run in groupby(config.block_kinds)
    )
    deep = (
        "" if set(config.block_kinds) == {"wide"} else f", K = {by_layer(config.loops)}"
    )
    title = [f"{kinds} blocks{deep}"]
    if target is not None:
        split = f", alpha {target.alpha:g} %" if target.block == "dual" else ""
        budget = f"budget {format_size(target.budget)} linear FLOPs per token and layer"
        title = [f"{target.block} block{deep}{split}, {budget}"]
    if matched := description.matched:
        title.append(
            f"matched in total: linear + attention scores = {matched.matched_budget:,} "
            f"(budget + {matched.reference_passes} passes)"
        )
    return [
        *title,
        f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads, "
        f"{config.n_kv_heads} key/value heads, vocabulary {config.vocab_size}, "
        f"{description.seq_len} tokens a sequence",
    ]


def _numbers(description: Description) -> list[tuple[str, Any]]:
    """Labels with numbers, blank for a heading; rows whose number is 0 or None are left
    out."""
    config, layer, record = description.config, description.layer, description.record()
    k, ratio = record["loops"], description.budget_ratio
    passes = fmean(count.passes(layer.block, layer.loops) for layer in config.layers)
    looped = _times(k) if isinstance(k, int) else f"K = {by_layer(k)}"
    mixed = " (mean of layers)" if len(set(config.layers)) > 1 else ""
    spent = "linear + attention" if description.matched else "linear total"
    mean = ", mean of steps" if description.step_loops else ""
    hours = description.names_hardware or description.target is not None
    lines: list[tuple[str, Any]] = [
        ("d_ffn, deep path", record["d_ffn"]),
        ("  effective width", record["d_ffn_effective"]),
        ("d_ffn_wide, wide path", record["d_ffn_wide"]),
        ("  effective width", record["d_ffn_wide_effective"]),
        (f"  experts, {config.top_k} active", record.get("n_experts")),
        ("  width of an expert", record.get("expert_width")),
        (
            "multiple of widths, ffn_multiple_of",
            description.matched and config.ffn_multiple_of,
        ),
        ("parameters", record["params"]),
        ("  active for a token", record.get("params_active")),
        ("  outside embedding and head", record["params_non_embedding"]),
        (f"FLOPs per token and layer{mixed}", " "),
        (f"  deep path, {looped}", layer["deep"]),
        ("  wide path", layer["wide"]),
        ("  gate", layer["gate"]),
        ("  linear total", layer["linear_total"]),
        ("  router", layer["router"]),
        (f"  attention scores, {_times(passes)}", layer["attention_scores"]),
        ("  total", layer["total"]),
        (f"ratio to the budget, {spent}", ratio and f"{ratio:.4f}"),
        (f"training FLOPs per token{mean}", description.training_flops),
        ("training hours", hours and _hours(description.hours)),
        ("KV cache bytes per token", record["kv_bytes_per_token"]),
    ]
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
    options, notes, ratio = description.options, [], description.budget_ratio
    # The paper's GPUs are a fair assumption for the paper's budgets, but not for every
    # recipe.
    if description.names_hardware or description.target is not None:
        sustains = (
            "1 GPU that sustains"
            if options.gpus == 1
            else f"{options.gpus} GPUs that each sustain"
        )
        assumed = (
            " This hardware is assumed; name yours with --tokens, --gpus and --tflops. "
            "The paper's runs took 12.8 to 21.4 hours, which implies 42 to 122 TFLOP/s "
            "for each of its A100s."
        )
        notes.append(
            f"Training: {description.tokens:,} tokens on {sustains} "
            f"{options.sustained / 1e12:g} TFLOP/s, at three forward passes a token, "
            f"head included.{'' if description.names_hardware else assumed}"
        )
    if target := description.target:
        exact = dict(zip(("d_ffn", "d_ffn_wide"), target.exact_widths(), strict=True))
        notes += [
            f"Above its share: {name} is raised to {target.multiple_of}, the smallest "
            f"multiple; the exact effective width is {float(exact[name] or 0):.1f}."
            for name in description.clamped
        ]
    if description.matched and ratio is not None and abs(ratio - 1) > TOLERANCE:
        notes.append(
            f"In multiples of {description.config.ffn_multiple_of} the matched sum is "
            f"not met to within {float(100 * TOLERANCE):g} %."
        )
    return notes
