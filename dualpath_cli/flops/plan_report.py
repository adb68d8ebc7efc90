"""The output of `dualpath flops --plan`: a table, or records."""

from collections.abc import Sequence
from typing import Any

from dualpath_cli.flops.plan import Cluster, Plan
from dualpath_cli.flops.report import Description
from dualpath_cli.flops.table import title, wrapped
from dualpath_cli.output.table import Column, Table
from dualpath_cli.output.terminal import aligned

MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "AdamW's moments",
    "unreduced": "gradients before they are reduced",
    "gathered": "whole weights, gathered",
    "saved": "saved activations",
    "working": "loss and backward pass at work",
}
"""Parts of `plan.Memory` in words."""


def as_text(
    description: Description, cluster: Cluster, plans: Sequence[Plan], width: int | None
) -> str:
    """The plans side by side, and what they assume; `width` is the terminal's."""
    nodes = -(-cluster.gpus // cluster.gpus_per_node)
    step = (
        f"{cluster.gpus:,} {'GPU' if cluster.gpus == 1 else 'GPUs'}, "
        f"{min(cluster.gpus, cluster.gpus_per_node)} a node ({nodes:,} "
        f"{'node' if nodes == 1 else 'nodes'}); {cluster.sequences * description.seq_len:,} tokens "
        f"a step: {cluster.gpus:,} x {cluster.micro_batch} sequences of {description.seq_len:,}, "
        f"accumulated {'once' if cluster.accumulate == 1 else f'{cluster.accumulate} times'}"
    )
    columns = [Column("each GPU"), *(Column(plan.strategy, "") for plan in plans)]
    table = aligned(Table(columns, _rows(plans)), width)
    lines = [*title(description, width), *wrapped([step], width)[1:], "", *table]
    return "\n".join([*lines, *wrapped(_assumptions(cluster), width)])


def _rows(plans: Sequence[Plan]) -> list[list[str]]:
    rows = [["memory, GB"]]
    muon = any(plan.muon_seconds for plan in plans)
    for name, words in MEMORY.items():
        if name == "moments" and muon:
            words += ", Muon's momentum"
        rows.append([f"  {words}", *[_gb(getattr(plan.memory, name)) for plan in plans]])
    rows.append(["  sum", *[_gb(plan.memory.total) for plan in plans]])
    rows.append(["sent in a step, GB"])
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        rows += [
            [f"  {kind}, {where}", *[_gb(_sent(plan, kind, where)) for plan in plans]]
            for where in ("within a node", "across nodes")
        ]
    times = {
        "  computing": [plan.compute_seconds for plan in plans],
        **({"    Muon's Newton-Schulz": [plan.muon_seconds for plan in plans]} if muon else {}),
        "  sending, nothing hidden": [plan.sending_seconds for plan in plans],
        "sending / computing": [plan.sending_seconds / plan.compute_seconds for plan in plans],
    }
    rows.append(["time of a step, s"])
    return rows + [[words, *[f"{time:.3f}" for time in each]] for words, each in times.items()]


def _sent(plan: Plan, kind: str, where: str) -> float:
    calls = [call for call in plan.collectives if call.kind == kind]
    across = sum(float(call.across) for call in calls)
    return across if where == "across nodes" else sum(float(call.sent) for call in calls) - across


def _gb(amount: float) -> str:
    return "-" if amount == 0 else f"{amount / 1e9:.3f}"


def _assumptions(cluster: Cluster) -> list[str]:
    return [
        "Memory: weights and moments in float32, bf16-mixed, compiled, selective checkpointing; "
        "gradients travel in "
        + ("float32." if cluster.reduce_bytes == 4 else "bfloat16.")
        + f" hsdp shards over {min(cluster.shard_size, cluster.gpus)} GPUs. Not all of the sum is "
        "there at once.",
        f"Time: {cluster.tflops:g} TFLOP/s of computing, {cluster.node_bandwidth:g} GB/s within a "
        f"node and {cluster.network_bandwidth:g} GB/s across nodes for each GPU, in rings. These "
        "are assumed, not measured; name yours with --tflops, --node-bandwidth and "
        "--network-bandwidth. Below 1, sending can hide behind computing.",
    ]


def record(cluster: Cluster, plans: Sequence[Plan]) -> dict[str, Any]:
    """All numbers by name, in bytes and seconds."""
    return vars(cluster) | {plan.strategy: _plan_record(plan) for plan in plans}


def _plan_record(plan: Plan) -> dict[str, Any]:
    calls = {
        call.kind: {
            "calls": call.calls,
            "ranks": call.ranks,
            "whole_bytes": call.whole_bytes,
            "sent_within_a_node": round(call.sent - call.across),
            "sent_across_nodes": round(call.across),
        }
        for call in plan.collectives
    }
    return {
        "memory": {**vars(plan.memory), "sum": plan.memory.total},
        "sent": calls,
        "compute_seconds": plan.compute_seconds,
        "muon_seconds": plan.muon_seconds,
        "sending_seconds": plan.sending_seconds,
    }
