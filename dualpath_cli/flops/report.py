"""The answer of `dualpath flops` on the screen: one model, the paper's 13, or a plan."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from textwrap import fill
from typing import Any

from rich.console import Console

from dualpath_cli.config import by_layer
from dualpath_cli.flops import count
from dualpath_cli.flops.description import Decoding, Description, Hardware
from dualpath_cli.flops.plan import Cluster, Plan, plan_table
from dualpath_cli.flops.widths import TOLERANCE
from dualpath_cli.output.table import LOG_WIDTH, Column, Table, show
from dualpath_cli.ranges import format_size


def show_model(console: Console, description: Description) -> None:
    heading = (description.reading or "recipe").replace("_", " ")
    _say(console, _title(description))
    console.print()
    columns = [Column(""), Column(heading, _number)]
    show(console, Table(columns, _numbers(description)), box=False)
    paragraphs = [_training(description.hardware)] if _shows_hours(description) else []
    if description.decoding:
        paragraphs.append(
            "Decoding: a step reads every weight that a token uses, in bf16, once for all texts "
            "and loops, and all keys and values. Nothing else is counted, so no step is faster."
        )
    for text in (*paragraphs, *dict.fromkeys(_notes(description))):
        console.print()
        _say(console, [text])


def show_configurations(console: Console, descriptions: Sequence[Description]) -> None:
    """A row a solved configuration; under match total each in the multiple that it needed."""
    first = descriptions[0]
    target, decoding = first.target, first.decoding
    reading = str(first.reading).replace("_", " ")
    assert target is not None
    lines = [
        f"budget {format_size(target.budget)} linear FLOPs per token and layer, {reading}",
        *([_matched(first)] if first.in_total else []),
    ]
    columns = [
        (Column("configuration"), _label),
        (Column("d_ffn", ""), lambda d: _width(d, "d_ffn")),
        (Column("d_ffn_wide", ""), lambda d: _width(d, "d_ffn_wide")),
        (Column("multiple", "d"), lambda d: d.config.ffn_multiple_of),
        (Column("params", _millions), lambda d: count.parameters(d.config)),
        (Column("spent/matched" if first.in_total else "linear/budget", ".4f"),
         lambda d: d.budget_ratio),
        (Column("total", _millions), lambda d: d.layer["total"]),
        (Column("KV bytes", ","), lambda d: count.kv_bytes(d.config)),
        (Column("tokens/s", ",.0f"), lambda d: decoding and decoding.texts / d.step_seconds),
    ]  # fmt: skip
    idle = {"tokens/s": not decoding, "multiple": not first.in_total}
    columns = [column for column in columns if not idle.get(column[0].heading)]
    _say(console, lines)
    console.print()
    show(console, Table.of(descriptions, columns), box=False)
    notes = [
        "total: linear FLOPs, router and attention scores per token and layer, "
        f"{first.seq_len} tokens a sequence",
        "KV bytes: keys and values of a token in bf16, all layers",
    ]
    if first.in_total:
        notes.append("multiple: of both widths and of their effective ones, model.ffn_multiple_of")
    if decoding:
        notes.append(f"tokens/s: at most, {_of(decoding)}")
    if any(description.clamped for description in descriptions):
        notes.append("*: raised to the smallest multiple, above its share of the budget")
    console.print()
    _say(console, notes)


def show_plan(
    console: Console, description: Description, cluster: Cluster, plans: Sequence[Plan]
) -> None:
    gpus, near, times = cluster.gpus, cluster.gpus_per_node, cluster.accumulate
    nodes, tokens = -(-gpus // near), gpus * cluster.micro_batch * times * description.seq_len
    _say(console, [
        *_title(description),
        f"{_counted(gpus, 'GPU')}, {min(gpus, near)} a node ({_counted(nodes, 'node')}); "
        f"{tokens:,} tokens a step: {gpus:,} x {cluster.micro_batch} sequences of "
        f"{description.seq_len:,}, accumulated {'once' if times == 1 else f'{times} times'}",
    ])  # fmt: skip
    console.print()
    show(console, plan_table(plans), box=False)
    for text in (
        "Memory: weights and moments in float32, bf16-mixed, compiled, selective checkpointing; "
        f"gradients travel in {'float32' if cluster.reduce_bytes == 4 else 'bfloat16'}. hsdp "
        f"shards over {min(cluster.shard_size, gpus)} GPUs. Not all of the sum is there at once.",
        f"Time: {cluster.tflops:g} TFLOP/s of computing, {cluster.node_bandwidth:g} GB/s within a "
        f"node and {cluster.network_bandwidth:g} GB/s across nodes for each GPU, in rings. These "
        "are assumed, not measured; name yours with --tflops, --node-bandwidth and "
        "--network-bandwidth. Below 1, sending can hide behind computing.",
    ):
        console.print()
        _say(console, [text])


def _say(console: Console, lines: Iterable[str]) -> None:
    width = min(LOG_WIDTH, console.width)
    for line in lines:
        console.print(fill(line, width, break_on_hyphens=False), highlight=False)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _title(description: Description) -> list[str]:
    config, target = description.config, description.target
    kinds = " + ".join(f"{len(list(run))} {kind}" for kind, run in groupby(config.block_kinds))
    deep = "" if set(config.block_kinds) == {"wide"} else f", K = {by_layer(config.loops)}"
    what = f"{kinds} blocks{deep}"
    if target is not None:
        split = f", alpha {target.alpha:g} %" if target.block == "dual" else ""
        what = (
            f"{target.block} block{deep}{split}, "
            f"budget {format_size(target.budget)} linear FLOPs per token and layer"
        )
    elif description.solved and description.budget is not None:
        what += f", each layer for {format_size(description.budget)} linear FLOPs per token"
    return [
        what,
        *([f"matched in total: {_matched(description)}"] if description.in_total else []),
        f"{config.n_layers} layers, width {config.d_model}, {config.n_heads} heads, "
        f"{config.n_kv_heads} key/value heads, vocabulary {config.vocab_size}, "
        f"{description.seq_len} tokens a sequence",
    ]


def _matched(description: Description) -> str:
    target = description.target
    assert target is not None
    return (
        f"linear + attention scores = {target.matched_budget:,} "
        f"(budget + {target.reference_passes} passes)"
    )


def _numbers(description: Description) -> list[tuple[str, Any]]:
    """A label and its number, None for a heading."""
    config, layer, ratio = description.config, description.layer, description.budget_ratio
    kinds, k, decoding = set(config.block_kinds), description.loops, description.decoding
    passes = fmean(count.passes(layer.block, layer.loops) for layer in config.layers)
    looped = _times(k) if isinstance(k, int) else f"K = {by_layer(k)}"
    has_deep, has_wide = kinds != {"wide"}, kinds != {"loop"}
    sparse = any(own.n_experts for own in config.layers)
    mixed = " (mean of layers)" if len(set(config.layers)) > 1 else ""
    spent = "linear + attention" if description.in_total else "linear total"
    mean = ", mean of steps" if description.step_loops else ""
    seconds = description.step_seconds or 1
    lines: list[tuple[bool, str, Any]] = [
        (has_deep, "d_ffn, deep path", description.width("d_ffn")),
        (has_deep, "  effective width", description.effective("d_ffn")),
        (has_wide, "d_ffn_wide, wide path", description.width("d_ffn_wide")),
        (has_wide, "  effective width", description.effective("d_ffn_wide")),
        (sparse, f"  experts, {config.top_k} active", config.n_experts),
        (sparse, "  width of an expert", description.record().get("expert_width")),
        (description.in_total, "multiple of widths, ffn_multiple_of", config.ffn_multiple_of),
        (True, "parameters", count.parameters(config)),
        (sparse, "  active for a token", count.active_parameters(config)),
        (True, "  outside embedding and head", count.parameters_non_embedding(config)),
        (True, f"FLOPs per token and layer{mixed}", None),
        (has_deep, f"  deep path, {looped}", layer["deep"]),
        (has_wide, "  wide path", layer["wide"]),
        ("dual" in kinds, "  gate", layer["gate"]),
        (True, "  linear total", layer["linear_total"]),
        (has_deep, "  router", layer["router"]),
        (True, f"  attention scores, {_times(passes)}", layer["attention_scores"]),
        (True, "  total", layer["total"]),
        (ratio is not None, f"ratio to the budget, {spent}", ratio and f"{ratio:.4f}"),
        (True, f"training FLOPs per token{mean}", description.training_flops),
        (_shows_hours(description), "training hours", _hours(description.hours)),
        (True, "KV cache bytes per token", count.kv_bytes(config)),
    ]
    if decoding:
        lines += [
            (True, f"decoding at most, {_of(decoding)}", None),
            (True, "  ms a step", f"{1e3 * seconds:.3f}"),
            (True, "  tokens/s", f"{decoding.texts / seconds:,.0f}"),
        ]
    return [(label, number) for shown, label, number in lines if shown]


def _of(decoding: Decoding) -> str:
    texts = "1 text" if decoding.texts == 1 else f"{decoding.texts:,} texts"
    return f"{texts} of {decoding.context:,} tokens, {decoding.bandwidth / 1e12:g} TB/s"


def _times(n: float) -> str:
    return f"{n:g} pass" if n == 1 else f"{n:g} passes"


def _number(value: float | list[int | None]) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else by_layer(value)


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "< 0.01"
    return f"{hours:.2f}" if hours < 10 else f"{hours:,.1f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:.1f}M"


def _shows_hours(description: Description) -> bool:
    # the paper's GPUs are a fair assumption for a budget like the paper's, not for any recipe
    return description.hardware.asked or bool(description.solved)


def _training(hardware: Hardware) -> str:
    one = hardware.gpus == 1
    gpus = "1 GPU that sustains" if one else f"{hardware.gpus} GPUs that each sustain"
    line = (
        f"Training: {hardware.tokens:,} tokens on {gpus} {hardware.tflops:g} TFLOP/s, at three "
        "forward passes a token, head included."
    )
    if not hardware.asked:
        line += (
            " This hardware is assumed; name yours with --tokens, --gpus and --tflops. The paper's "
            "runs took 12.8 to 21.4 hours, which implies 42 to 122 TFLOP/s for each of its A100s."
        )
    return line


def _notes(description: Description) -> list[str]:
    """What of the widths is above its share, and which sum is not met."""
    notes, ratio = [], description.budget_ratio
    for target, widths in description.solved:
        exact = dict(zip(("d_ffn", "d_ffn_wide"), target.exact_widths(), strict=True))
        notes += [
            f"Above its share: {name} is raised to {target.multiple_of}, "
            f"the smallest multiple, as the exact effective width is {float(exact[name] or 0):.1f}."
            for name in widths.clamped
        ]
    if description.in_total and ratio is not None and abs(ratio - 1) > TOLERANCE:
        notes.append(
            f"In multiples of {description.config.ffn_multiple_of} the matched sum is not met to "
            f"within {float(100 * TOLERANCE):g} %."
        )
    return notes


def _label(description: Description) -> str:
    target = description.target
    assert target is not None
    share = f" a{target.alpha:g}" if target.block == "dual" else ""
    return target.block + share + (f" K{target.loops}" if target.block != "wide" else "")


def _width(description: Description, name: str) -> str:
    """A configured width, with a star where it was raised and a dash where there is none."""
    return f"{description.width(name) or '-'}{'*' if name in description.clamped else ''}"
