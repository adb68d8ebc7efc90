"""`dualpath flops --plan`: the memory of each GPU, by strategy.

Weights, gradients and moments are float32; activations are those of compiled blocks in
bf16-mixed. Each of s GPUs that share one set of weights holds 1 / s of its rows, which
are padded to a multiple of s. docs/scaling.md compares the plan with counted bytes.

On one H200 (torch 2.11, micro-batches of 4 and 8 sequences, `selective` and `none`) the
most memory in eight steps was within 3 % of the plan's peak: docs/benchmarks/gpu.md.
`full`, documents and experts were not measured.
"""

from dataclasses import dataclass
from typing import Literal

from dualpath_cli.flops import count
from dualpath_cli.flops.shapes import hidden, numbers, units, untrained
from dualpath_cli.spec.config import (
    GATE_OUTPUTS,
    Checkpointing,
    LayerConfig,
    ModelConfig,
)

Strategy = Literal["ddp", "fsdp", "hsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "hsdp")
Optimizer = Literal["adamw", "muon"]
FLOAT32 = 4
BFLOAT16 = 2
# logits that the loss holds at once; `model.loss.MAX_LOGITS_COMPILED`
MAX_LOGITS = 2**30


@dataclass(frozen=True)
class Cluster:
    """GPUs, and their shares of a step."""

    gpus: int = 1
    shard_size: int = 1  # GPUs of a group under hsdp
    micro_batch: int = 1  # sequences of a GPU's forward pass
    accumulate: int = 1  # micro-batches of a GPU in a step
    reduce_bytes: int = FLOAT32  # of each number of a gradient in transit
    optimizer: Optimizer = "adamw"
    checkpointing: Checkpointing = "selective"


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU: on the first one, if rows do not divide evenly."""

    weights: int
    gradients: int  # after reduction
    moments: int
    unreduced: int
    """Whole gradients before the last micro-batch, or before their unit is reduced;
    ddp's copy."""
    gathered: int  # whole weights at once: of the root and of two blocks
    saved: int  # activations saved for the backward pass
    working: int  # the most that loss or backward pass need besides
    peak: int  # the most at once


def plan(config: ModelConfig, strategy: Strategy, cluster: Cluster) -> Memory:
    """The memory that training takes on each GPU."""
    shards = _shards(strategy, cluster)
    weights = FLOAT32 * sum(numbers(unit, shards) for unit in units(config)) // shards
    gradients = weights - FLOAT32 * _untrained(config, shards) // shards
    moments = 2 * gradients
    if cluster.optimizer == "muon":  # one moment instead of two
        moments -= FLOAT32 * numbers(hidden(config), shards) // shards

    gathered = 0
    unreduced = gradients if cluster.gpus > 1 else 0  # PyTorch's buckets of ddp
    if strategy != "ddp":
        *blocks, root = map(numbers, units(config))
        gathered = FLOAT32 * (root + 2 * max(blocks))
        unreduced = gathered
        if cluster.accumulate > 1:
            trained = count.parameters(config) - _untrained(config, 1)
            unreduced = cluster.reduce_bytes * trained

    # Each step frees its gradients: with one micro-batch a step, gradients grow while
    # activations are freed; with more, gradients are held beside all activations.
    saved, working = _activations(config, cluster)
    accumulated = gradients if cluster.accumulate > 1 else 0
    in_backward = accumulated + unreduced + gathered + saved + working
    peak = weights + moments + max(in_backward, gradients)
    return Memory(
        weights, gradients, moments, unreduced, gathered, saved, working, peak
    )


def _shards(strategy: Strategy, cluster: Cluster) -> int:
    """GPUs that share one set of weights."""
    if strategy == "ddp":
        return 1
    if strategy == "fsdp":
        return cluster.gpus
    return min(cluster.shard_size, cluster.gpus)


def _activations(config: ModelConfig, cluster: Cluster) -> tuple[int, int]:
    """Bytes that all blocks save, and the most that loss or backward pass need
    besides."""
    tokens = cluster.micro_batch * config.max_seq_len
    saved = 0
    working = _loss(config, tokens)
    *blocks, _ = units(config)
    for layer, unit in zip(config.layers, blocks, strict=True):
        weights = numbers(unit)
        saved += tokens * saved_by_block(layer, cluster.checkpointing)
        if cluster.checkpointing == "none":  # keeps the weights that it has cast
            saved += BFLOAT16 * weights

        backward = _backward(layer)
        if cluster.checkpointing == "full":  # recomputes all that `none` saves
            backward += saved_by_block(layer, "none")
        # Weights are cast for their products, and have gradients.
        of_block = tokens * backward + (BFLOAT16 + FLOAT32) * weights
        working = max(working, of_block)
    return saved, working


def _loss(config: ModelConfig, tokens: int) -> int:
    """Bytes of the final norm's input and outputs; logits; the head's cast and
    gradient."""
    norm = tokens * config.d_model * (_residual(config) + FLOAT32 + BFLOAT16)
    # The compiled loss overwrites logits by their gradient.
    parts = -(-tokens * config.vocab_size // MAX_LOGITS)
    logits = BFLOAT16 * -(-tokens // parts) * config.vocab_size
    head = config.vocab_size * config.d_model * (FLOAT32 + BFLOAT16)
    return norm + logits + head


def _untrained(config: ModelConfig, shards: int) -> int:
    return sum(numbers(untrained(layer), shards) for layer in config.layers)


def saved_by_block(
    layer: LayerConfig, checkpointing: Checkpointing = "selective"
) -> int:
    """Bytes for each token that a block saves for its backward pass."""
    d = layer.d_model
    state = _residual(layer) * d
    if checkpointing == "full":
        return state

    # q, k, v, gate, up and the outputs of attention, o_proj and down_proj, in bf16
    n = count.passes(layer.block, layer.loops)
    keys = layer.head_dim * layer.n_kv_heads
    width = sum(_widths(layer))
    products = n * (4 * d + 2 * keys) + 2 * width
    if layer.n_experts:
        products += (layer.top_k - 1) * d  # one output for each expert

    # softmax statistics, the router's choices and gates, in float32
    numbers = n * layer.n_heads
    mixed = layer.routes_steps and layer.block != "wide"
    if mixed:
        numbers += layer.loops - 1
    gates = 0
    if layer.block == "dual":
        gates = GATE_OUTPUTS.get(layer.gate, 2)  # a custom one: g_d, g_w
        numbers += gates

    states = 1  # the block's input
    if checkpointing == "none":
        # The outputs of norms, rotation and SwiGLU that products and attention read,
        # in bf16; rotated q and k, and the states after a pass's halves, in float32.
        products += n * (3 * d + keys) + width
        if layer.qk_norm != "none":
            numbers += n * (d + keys)
        states = 2 * n
        if not mixed:  # the last state of a loop is needed only by a router
            states -= 1
        # The outputs of both paths are needed only by a learned gate.
        if layer.block == "dual" and not gates:
            states -= 2
    return states * state + BFLOAT16 * products + FLOAT32 * numbers


def _backward(layer: LayerConfig) -> int:
    """Bytes for each token in a block's backward pass, with its recomputed parts."""
    state = _residual(layer) * layer.d_model
    widths = _widths(layer)
    wide = 5 * state + 3 * BFLOAT16 * widths[-1]
    # a loop's states together
    deep = (2 * layer.loops + 4) * state + 3 * BFLOAT16 * widths[0]
    return {"wide": wide, "loop": deep, "dual": max(wide, deep)}[layer.block]


def _widths(layer: LayerConfig) -> list[int]:
    """Effective FFN width of each pass of a block; with experts, the sum over a
    token's."""
    deep = [layer.effective_width(layer.d_ffn or 0)] * layer.loops
    wide = [layer.effective_width(layer.d_ffn_wide or 0)]
    if layer.n_experts:
        wide = [layer.top_k * layer.expert_width]
    return {"dual": deep + wide, "loop": deep, "wide": wide}[layer.block]


def _residual(config: ModelConfig) -> int:
    return BFLOAT16 if config.residual_dtype == "bfloat16" else FLOAT32
