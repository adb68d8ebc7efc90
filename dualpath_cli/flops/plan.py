"""`dualpath flops --plan`: memory, traffic and time of each of many GPUs, by strategy.

P is the number of weights, filled up so that each of s shards has equal rows; n the micro-batches
of a step. What a GPU takes part in, in one optimizer step:

    ddp     all-reduce of 4 P bytes over all GPUs, once
    fsdp    all-gather of 4 P, for each block twice a micro-batch (forward, backward), for the root
            once; reduce-scatter of 4 P once. Over all GPUs: s is their number
    hsdp    the same over a group of s GPUs; then an all-reduce of 4 P / s over the replicas, once

Gradients that are reduced in bfloat16 take 2 bytes. With Muon every GPU makes all hidden matrices
orthogonal; fsdp and hsdp all-gather them for it, each by itself, in 2 bytes. docs/scaling.md
compares these with bytes that were counted.

Activations are those of bf16-mixed, compiled, selective checkpointing: of a pass q, k, v, gate, up
and the outputs of attention, o_proj and down_proj in bf16, and softmax statistics in float32; of a
block its input. The bytes at work beside them are fitted to measurements, within some 12 %.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from dualpath_cli.config import GATE_OUTPUTS, LayerConfig, ModelConfig
from dualpath_cli.flops import count
from dualpath_cli.flops.shapes import hidden, numbers, units, untrained
from dualpath_cli.output.table import Column, Table

Strategy = Literal["ddp", "fsdp", "hsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "hsdp")
Optimizer = Literal["adamw", "muon"]
FLOAT32, BFLOAT16, INT64 = 4, 2, 8
MAX_LOGITS = 2**30  # logits that the loss holds at once; `model.loss.MAX_LOGITS_COMPILED`


@dataclass(frozen=True)
class Cluster:
    """GPUs, what connects them, and how a step is dealt out to them."""

    gpus: int
    gpus_per_node: int  # that share a node's links; all of them where there are fewer
    shard_size: int  # GPUs of a group under hsdp
    micro_batch: int  # sequences of a GPU's forward pass
    accumulate: int  # micro-batches of a GPU in a step
    tflops: float  # TFLOP/s that a GPU sustains in computing
    node_bandwidth: float  # GB/s that a GPU sends within its node, and takes meanwhile
    network_bandwidth: float  # GB/s that it sends to other nodes, and takes meanwhile
    reduce_bytes: int = FLOAT32  # of a gradient that is sent
    optimizer: Optimizer = "adamw"


@dataclass(frozen=True)
class Collective:
    """All calls of a kind, over groups of the same shape, in one optimizer step."""

    kind: Literal["all-gather", "reduce-scatter", "all-reduce"]
    calls: int  # one under ddp, which makes as many of it as PyTorch has buckets
    ranks: int  # GPUs that take part
    on_a_node: int  # how many of them share a node
    whole_bytes: int  # that are gathered, scattered or reduced, in all calls together

    @property
    def sent(self) -> Fraction:
        """Bytes that a GPU sends, and gets, along a ring: an all-reduce goes around it twice."""
        rounds = 2 if self.kind == "all-reduce" else 1
        return Fraction(rounds * self.whole_bytes * (self.ranks - 1), self.ranks)

    @property
    def across(self) -> Fraction:
        """The part of `sent` that leaves the node.

        In a ring one GPU of those on a node has its neighbour elsewhere; as many rings as there are
        GPUs on a node share that out.
        """
        return self.sent / self.on_a_node if self.ranks > self.on_a_node else Fraction(0)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, on the first one where rows do not divide. Not all are there at once."""

    weights: int
    gradients: int  # as they are reduced
    moments: int
    unreduced: int  # whole gradients that wait for the last micro-batch, or for their unit's turn
    gathered: int  # whole weights that are there at once: of the root and of two blocks
    saved: int  # activations that wait for the backward pass
    working: int  # the most that loss or backward pass need beside these


@dataclass(frozen=True)
class Plan:
    strategy: Strategy
    memory: Memory
    collectives: list[Collective]
    compute_seconds: float  # of a step, at the cluster's TFLOP/s
    muon_seconds: float  # the part of it that makes Muon's matrices orthogonal
    sending_seconds: float  # of a step, if nothing is computed meanwhile

    def record(self) -> dict[str, Any]:
        """All numbers by name, in bytes and seconds."""
        sent = {
            c.kind: {"calls": c.calls, "ranks": c.ranks, "whole_bytes": c.whole_bytes,
                     "sent_within_a_node": round(c.sent - c.across),
                     "sent_across_nodes": round(c.across)}
            for c in self.collectives
        }  # fmt: skip
        memory = {**vars(self.memory), "sum": sum(vars(self.memory).values())}
        seconds = {name: value for name, value in vars(self).items() if name.endswith("seconds")}
        return {"memory": memory, "sent": sent, **seconds}


def plan(config: ModelConfig, strategy: Strategy, cluster: Cluster) -> Plan:
    """What training takes of each GPU."""
    shards = {"ddp": 1, "fsdp": cluster.gpus, "hsdp": min(cluster.shard_size, cluster.gpus)}
    collectives = list(_collectives(config, strategy, cluster, shards[strategy]))
    tokens = cluster.micro_batch * cluster.accumulate * config.max_seq_len
    muon = count.newton_schulz_flops(config) if cluster.optimizer == "muon" else 0
    rate, near, far = cluster.tflops * 1e12, cluster.node_bandwidth, cluster.network_bandwidth
    memory = _memory(config, cluster, shards[strategy], sharded=strategy != "ddp")
    return Plan(
        strategy, memory, collectives,
        (tokens * count.training_flops_per_token(config) + muon) / rate, muon / rate,
        float(sum(call.sent - call.across for call in collectives)) / (near * 1e9)
        + float(sum(call.across for call in collectives)) / (far * 1e9),
    )  # fmt: skip


def _collectives(
    config: ModelConfig, strategy: Strategy, cluster: Cluster, shards: int
) -> Iterator[Collective]:
    sizes = [numbers(unit, shards) for unit in units(config)]
    trained = sum(sizes) - _untrained(config, shards)
    on_a_node = min(cluster.gpus, cluster.gpus_per_node)
    if shards > 1:
        near = min(shards, on_a_node)
        whole = FLOAT32 * cluster.accumulate * (2 * sum(sizes) - sizes[-1])
        calls = cluster.accumulate * (2 * len(sizes) - 1)
        if cluster.optimizer == "muon":
            matrices = hidden(config)
            calls, whole = calls + len(matrices), whole + BFLOAT16 * numbers(matrices, shards)
        yield Collective("all-gather", calls, shards, near, whole)
        reduced = cluster.reduce_bytes * trained
        yield Collective("reduce-scatter", len(sizes), shards, near, reduced)
    replicas = cluster.gpus // shards
    if replicas > 1:
        near = max(1, on_a_node // shards)
        calls = 1 if strategy == "ddp" else len(sizes)
        part = cluster.reduce_bytes * trained // shards
        yield Collective("all-reduce", calls, replicas, near, part)
    loads = sum(layer.n_experts for layer in config.layers)
    if loads and cluster.gpus > 1:
        yield Collective("all-reduce", 1, cluster.gpus, on_a_node, INT64 * loads)


def _untrained(config: ModelConfig, shards: int) -> int:
    return sum(numbers(untrained(layer), shards) for layer in config.layers)


def _memory(config: ModelConfig, cluster: Cluster, shards: int, *, sharded: bool) -> Memory:
    own = FLOAT32 * sum(numbers(unit, shards) for unit in units(config)) // shards
    *blocks, root = map(numbers, units(config))
    gathered = unreduced = 0
    if sharded:
        gathered = unreduced = FLOAT32 * (root + 2 * max(blocks))
        if cluster.accumulate > 1:
            unreduced = cluster.reduce_bytes * (count.parameters(config) - _untrained(config, 1))
    gradients = own - FLOAT32 * _untrained(config, shards) // shards
    moments = 2 * gradients
    if cluster.optimizer == "muon":  # one instead of two
        moments -= FLOAT32 * numbers(hidden(config), shards) // shards
    tokens = cluster.micro_batch * config.max_seq_len
    # The final norm's input and outputs; logits and their gradients; the head's cast and gradient.
    loss = tokens * config.d_model * (_residual(config) + FLOAT32 + BFLOAT16)
    parts = -(-tokens * config.vocab_size // MAX_LOGITS)
    loss += 2 * BFLOAT16 * -(-tokens // parts) * config.vocab_size
    loss += config.vocab_size * config.d_model * (FLOAT32 + BFLOAT16)
    backward = (
        tokens * _backward(layer) + BFLOAT16 * weights  # which are cast for their products
        for layer, weights in zip(config.layers, blocks, strict=True)
    )
    saved = tokens * sum(map(saved_by_block, config.layers))
    return Memory(own, gradients, moments, unreduced, gathered, saved, max(loss, *backward))


def saved_by_block(layer: LayerConfig) -> int:
    """Bytes a token that a block saves for its backward pass."""
    d, n = layer.d_model, count.passes(layer.block, layer.loops)
    products = n * (4 * d + 2 * layer.head_dim * layer.n_kv_heads) + 2 * sum(_widths(layer))
    if layer.n_experts:
        products += (layer.top_k - 1) * d  # an output for each
    choices = (layer.loops - 1) * (layer.routes_steps and layer.block != "wide")
    choices += GATE_OUTPUTS.get(layer.gate, 2) * (layer.block == "dual")  # a custom one: g_d, g_w
    return _residual(layer) * d + BFLOAT16 * products + FLOAT32 * (n * layer.n_heads + choices)


def _backward(layer: LayerConfig) -> int:
    """Bytes a token of a block's backward pass: each part is computed again where it is needed."""
    state, widths = _residual(layer) * layer.d_model, _widths(layer)
    wide = 5 * state + 3 * BFLOAT16 * widths[-1]
    deep = (2 * layer.loops + 4) * state + 3 * BFLOAT16 * widths[0]  # a loop's states together
    return {"wide": wide, "loop": deep, "dual": max(wide, deep)}[layer.block]


def _widths(layer: LayerConfig) -> list[int]:
    """Effective FFN width of each pass of a block: of a token's experts together."""
    widths = [layer.effective_width(layer.d_ffn or 0)] * layer.loops
    dense = layer.effective_width(layer.d_ffn_wide or 0)
    widths += [layer.top_k * layer.expert_width if layer.n_experts else dense]
    return {"dual": widths, "loop": widths[:-1], "wide": widths[-1:]}[layer.block]


def _residual(config: ModelConfig) -> int:
    return BFLOAT16 if config.residual_dtype == "bfloat16" else FLOAT32


def plan_table(plans: Sequence[Plan]) -> Table:
    """A column a strategy: GB of memory and of traffic, seconds."""
    words = (
        "weights", "gradients", "the optimizer's moments", "gradients before they are reduced",
        "whole weights, gathered", "saved activations", "loss and backward pass at work", "sum",
    )  # fmt: skip
    rows, memory = [["memory, GB"]], [plan.record()["memory"].values() for plan in plans]
    rows += [[f"  {part}", *map(_gb, sizes)] for part, *sizes in zip(words, *memory, strict=True)]
    rows.append(["sent in a step, GB"])
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        calls = [[call for call in plan.collectives if call.kind == kind] for plan in plans]
        near = (sum(call.sent - call.across for call in each) for each in calls)
        far = (sum(call.across for call in each) for each in calls)
        rows.append([f"  {kind}, within a node", *map(_gb, near)])
        rows.append([f"  {kind}, across nodes", *map(_gb, far)])
    times = {
        "  computing": [plan.compute_seconds for plan in plans],
        "    Muon's Newton-Schulz": [plan.muon_seconds for plan in plans],
        "  sending, nothing hidden": [plan.sending_seconds for plan in plans],
        "sending / computing": [plan.sending_seconds / plan.compute_seconds for plan in plans],
    }
    rows.append(["time of a step, s"])
    rows += [[name, *(f"{t:.3f}" for t in each)] for name, each in times.items() if any(each)]
    return Table([Column("each GPU"), *(Column(plan.strategy, "") for plan in plans)], rows)


def _gb(amount: float | Fraction) -> str:
    return "-" if amount == 0 else f"{float(amount) / 1e9:.3f}"
