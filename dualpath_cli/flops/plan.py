"""`dualpath flops --plan`: the memory of each GPU, by strategy.

Weights, gradients and moments are float32; activations are those of compiled blocks in
bf16-mixed. Each of s GPUs that share one set of weights holds 1 / s of its rows, which
are padded to a multiple of s. docs/scaling.md compares the plan with counted bytes.

On one H200 (torch 2.11, micro-batches of 4 sequences, `selective` and `none`) the most
memory was within 3 % of the plan's peak for seven models: docs/benchmarks/gpu.md.
`full`, documents and experts were not measured.
"""

from dataclasses import dataclass, replace
from typing import Literal

from dualpath_cli.flops import count
from dualpath_cli.flops.count import BFLOAT16
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
# logits that the loss holds at once; `model.loss.MAX_LOGITS_COMPILED`
MAX_LOGITS_COMPILED = 2**30


@dataclass(frozen=True)
class Cluster:
    """GPUs, and their shares of a step."""

    gpus: int = 1
    shard_size: int = 1  # GPUs of a group under hsdp; divides gpus
    micro_batch: int = 1  # sequences of a GPU's forward pass
    accumulate: int = 1  # micro-batches of a GPU in a step
    reduce_bytes: int = FLOAT32  # of each number of a gradient in transit
    optimizer: Optimizer = "adamw"
    checkpointing: Checkpointing = "selective"
    # the last steps and repetitions that get gradients; None: all
    backprop_loops: int | None = None
    loop_losses: bool = False  # whether all repetitions of the core have a loss


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
    whole = FLOAT32 * sum(numbers(unit, shards) for unit in units(config))
    weights = whole // shards
    without_gradient = FLOAT32 * _untrained(config, shards)
    gradients = weights - without_gradient // shards
    moments = 2 * gradients
    if cluster.optimizer == "muon":  # one moment instead of two
        second_moments = FLOAT32 * numbers(hidden(config), shards)
        moments -= second_moments // shards

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
    return cluster.shard_size


def _activations(config: ModelConfig, cluster: Cluster) -> tuple[int, int]:
    """Bytes that all blocks, core and earlier losses save, and the most that loss or
    backward pass need besides."""
    tokens = cluster.micro_batch * config.max_seq_len
    core = min(config.core_loops, cluster.backprop_loops or config.core_loops)
    coda = config.core_loops if cluster.loop_losses else 1
    saved = tokens * _saved_by_core(config, core)
    if cluster.loop_losses:
        saved += _saved_by_losses(config, tokens)
    working = _loss(config, tokens)

    *blocks, _ = units(config)
    kept: list[int] = []  # applications of each layer
    for times, stretch in zip((1, core, coda), config.stretches, strict=True):
        kept += [times] * len(stretch)

    for layer, unit, times in zip(config.layers, blocks, kept, strict=True):
        weights = numbers(unit)
        steps = min(layer.loops, cluster.backprop_loops or layer.loops)
        with_gradient = replace(layer, loops=steps)
        saved += times * tokens * saved_by_block(with_gradient, cluster.checkpointing)
        if cluster.checkpointing == "none":  # keeps the weights that it has cast
            saved += times * BFLOAT16 * weights

        backward = _backward(with_gradient)
        if cluster.checkpointing == "full":  # recomputes all that `none` saves
            backward += saved_by_block(with_gradient, "none")
        # Weights are cast for their products, and have gradients.
        of_block = tokens * backward + (BFLOAT16 + FLOAT32) * weights
        working = max(working, of_block)
    return saved, working


def _saved_by_core(config: ModelConfig, repetitions: int) -> int:
    """Bytes for each token that the core saves besides its blocks; `repetitions` of it
    get gradients, all of them without injection."""
    if config.core is None:
        return 0

    saved = 0
    if config.injection == "linear":
        injections = repetitions - (repetitions == config.core_loops)
        saved += injections * BFLOAT16 * 2 * config.d_model  # [x, e]
    if config.routes_core:
        # The mixture keeps all states, also constant ones. Without injection all but
        # the last are saved as the next repetition's input.
        states = 1 if config.injection == "none" else config.core_loops
        saved += states * _residual(config) * config.d_model
    return saved


def _saved_by_losses(config: ModelConfig, tokens: int) -> int:
    """Bytes that the losses of all repetitions but the last hold until the backward
    pass, besides the coda's blocks."""
    of_norm = (FLOAT32 + BFLOAT16) * config.d_model  # its input, and its output
    of_loss = tokens * of_norm
    logits = tokens * config.vocab_size
    if logits <= MAX_LOGITS_COMPILED:  # more are computed again
        head = config.vocab_size * config.d_model  # cast once more by each loss
        of_loss += BFLOAT16 * (logits + head)

    # A state is saved once, also where the router or the next repetition needs it.
    if config.routes_core or config.injection == "none":
        of_loss -= tokens * _residual(config) * config.d_model
    return (config.core_loops - 1) * of_loss


def _loss(config: ModelConfig, tokens: int) -> int:
    """Bytes of the final norm's input and outputs; logits; the head's cast and
    gradient."""
    norm = tokens * config.d_model * (_residual(config) + FLOAT32 + BFLOAT16)
    # The compiled loss overwrites logits by their gradient.
    most_positions = max(1, MAX_LOGITS_COMPILED // config.vocab_size)
    parts = -(-tokens // most_positions)  # as in `model.loss`
    logits = BFLOAT16 * -(-tokens // parts) * config.vocab_size
    head = config.vocab_size * config.d_model * (FLOAT32 + BFLOAT16)
    return norm + logits + head


def _untrained(config: ModelConfig, shards: int) -> int:
    return sum(numbers(untrained(layer), shards) for layer in config.layers)


def saved_by_block(
    layer: LayerConfig, checkpointing: Checkpointing = "selective"
) -> int:
    """Bytes for each token that an application of a block saves for its backward
    pass."""
    d = layer.d_model
    state = _residual(layer) * d
    if checkpointing == "full":
        return state

    # passes, those with a feed-forward, and those with keys and values of their own
    n = count.passes(layer.block, layer.loops)
    deep = 0 if layer.block == "wide" else layer.loops
    with_ffn = n if layer.deep_ffn else n - deep
    with_keys = n
    if layer.step_kv == "first":
        with_keys -= max(0, deep - 1)

    # q, k, v, gate, up and the outputs of attention, o_proj and down_proj, in bf16
    keys = layer.head_dim * layer.n_kv_heads
    width = sum(_widths(layer))
    products = (3 * n + with_ffn) * d + 2 * with_keys * keys + 2 * width
    if layer.n_experts:
        products += (layer.top_k - 1) * d  # one output for each expert

    # softmax statistics, the router's choices and gates, in float32
    numbers = n * layer.n_heads
    if layer.routes_steps:
        numbers += layer.loops - 1
    gates = 0
    if layer.block == "dual":
        gates = GATE_OUTPUTS.get(layer.gate, 2)  # a custom one: g_d, g_w
        numbers += gates

    states = 1  # the block's input
    if checkpointing == "none":
        # The outputs of norms, rotation and SwiGLU that products and attention read,
        # in bf16; rotated q and k, and the states after a pass's halves, in float32.
        products += (2 * n + with_ffn) * d + with_keys * keys + width
        if layer.qk_norm != "none":
            numbers += n * d + with_keys * keys
        states = n + with_ffn
        # The last state of a loop is needed only by a router.
        if not layer.routes_steps:
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
    widths = []
    if layer.block != "wide":
        deep = layer.effective_width(layer.d_ffn or 0) if layer.deep_ffn else 0
        widths += [deep] * layer.loops

    if layer.block != "loop":
        wide = layer.effective_width(layer.d_ffn_wide or 0)
        if layer.n_experts:
            wide = layer.top_k * layer.expert_width
        widths.append(wide)
    return widths


def _residual(config: ModelConfig) -> int:
    return BFLOAT16 if config.residual_dtype == "bfloat16" else FLOAT32
