"""Memory, traffic and time of each GPU in training on many, by strategy, from a model's shapes.

Torch-free. P is the number of weights, filled up so that each of s shards has equal rows; n the
micro-batches of a step. What a GPU takes part in, in one optimizer step:

    ddp     all-reduce of 4 P bytes over all GPUs, once
    fsdp    all-gather of 4 P, for each block twice a micro-batch (forward, backward), for the root
            once; reduce-scatter of 4 P once. Over all GPUs: s is their number
    hsdp    the same over a group of s GPUs; then an all-reduce of 4 P / s over the replicas, once

Gradients that are reduced in bfloat16 take 2 bytes. With Muon every GPU makes all hidden matrices
orthogonal; fsdp and hsdp all-gather them for it, each by itself, in 2 bytes. docs/scaling.md
compares these with bytes that were counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import newton_schulz_flops, parameters, training_flops_per_token
from dualpath_cli.flops.memory import Execution, Optimizer, gathered_weights, step_memory
from dualpath_cli.flops.shapes import hidden, numbers, units, untrained

Strategy = Literal["ddp", "fsdp", "hsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "hsdp")

FLOAT32, BFLOAT16, INT64 = 4, 2, 8
MOMENTS = 2


@dataclass(frozen=True)
class Cluster:
    """GPUs, what connects them, and how a step is dealt out to them."""

    gpus: int
    gpus_per_node: int
    """GPUs that share a node's links; all of them where there are fewer."""
    shard_size: int
    """GPUs of a group under hsdp."""
    micro_batch: int
    """Sequences of a GPU's forward pass."""
    accumulate: int
    """Micro-batches of a GPU in a step."""
    tflops: float
    """TFLOP/s that a GPU sustains in computing."""
    node_bandwidth: float
    """GB/s that a GPU sends within its node, and takes meanwhile."""
    network_bandwidth: float
    """GB/s that a GPU sends to other nodes, and takes meanwhile."""
    reduce_bytes: int = FLOAT32
    """Bytes of a gradient that is sent."""
    optimizer: Optimizer = "adamw"

    @property
    def sequences(self) -> int:
        """Sequences of one optimizer step."""
        return self.gpus * self.micro_batch * self.accumulate


@dataclass(frozen=True)
class Collective:
    """All calls of a kind, over groups of the same shape, in one optimizer step."""

    kind: Literal["all-gather", "reduce-scatter", "all-reduce"]
    calls: int
    """One under ddp, which makes as many of it as PyTorch has buckets."""
    ranks: int
    """GPUs that take part."""
    on_a_node: int
    """How many of them share a node."""
    whole_bytes: int
    """Size of the whole that is gathered, scattered or reduced, in all calls together."""

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
    """Bytes on one GPU, on the first one where rows do not divide."""

    weights: int
    gradients: int
    """As they are reduced."""
    moments: int
    unreduced: int
    """Whole gradients that wait for the step's last micro-batch, or for their unit's turn."""
    gathered: int
    """Whole weights that are there at once."""
    saved: int
    """Activations that wait for the backward pass."""
    working: int
    """The most that loss or backward pass need beside these."""

    @property
    def total(self) -> int:
        """All of them. Not all are there at once: gradients are reduced unit by unit."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Plan:
    """Memory, traffic and time of each GPU under a strategy."""

    strategy: Strategy
    memory: Memory
    collectives: list[Collective]
    compute_seconds: float
    """Of a step, at the cluster's TFLOP/s."""
    muon_seconds: float
    """The part of it that makes Muon's matrices orthogonal."""
    sending_seconds: float
    """Of a step, at the cluster's bandwidths, if nothing is computed meanwhile."""


def plan(config: ModelConfig, strategy: Strategy, cluster: Cluster) -> Plan:
    """Returns what training takes of each GPU: bf16-mixed, compiled, selective checkpointing."""
    collectives = list(_collectives(config, strategy, cluster))
    within = sum(call.sent - call.across for call in collectives)
    across = sum(call.across for call in collectives)
    tokens = cluster.micro_batch * cluster.accumulate * config.max_seq_len
    muon = newton_schulz_flops(config) if cluster.optimizer == "muon" else 0
    return Plan(
        strategy,
        _memory(config, strategy, cluster),
        collectives,
        (tokens * training_flops_per_token(config) + muon) / (cluster.tflops * 1e12),
        muon / (cluster.tflops * 1e12),
        float(within) / (cluster.node_bandwidth * 1e9)
        + float(across) / (cluster.network_bandwidth * 1e9),
    )


def shards_of(strategy: Strategy, cluster: Cluster) -> int:
    """GPUs that one set of weights is divided among."""
    return {"ddp": 1, "fsdp": cluster.gpus, "hsdp": min(cluster.shard_size, cluster.gpus)}[strategy]


def _collectives(config: ModelConfig, strategy: Strategy, cluster: Cluster) -> Iterator[Collective]:
    shards = shards_of(strategy, cluster)
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


def _memory(config: ModelConfig, strategy: Strategy, cluster: Cluster) -> Memory:
    shards = shards_of(strategy, cluster)
    own = FLOAT32 * sum(numbers(unit, shards) for unit in units(config)) // shards
    gathered = unreduced = 0
    if strategy != "ddp":
        gathered = unreduced = FLOAT32 * gathered_weights(config)
        if cluster.accumulate > 1:
            unreduced = cluster.reduce_bytes * (parameters(config) - _untrained(config, 1))
    gradients = own - FLOAT32 * _untrained(config, shards) // shards
    moments = MOMENTS * gradients
    if cluster.optimizer == "muon":
        moments -= FLOAT32 * numbers(hidden(config), shards) // shards
    step = step_memory(config, cluster.micro_batch, Execution(optimizer=cluster.optimizer))
    return Memory(own, gradients, moments, unreduced, gathered, step.saved, step.working)
