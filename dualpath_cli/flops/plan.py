"""`dualpath flops --plan`: the memory of each GPU, by strategy.

Weights, gradients and moments are float32. Each of s GPUs that share one set of weights
holds 1 / s of its rows, which are padded to a multiple of s. Under ddp s is 1, under
fsdp the number of GPUs, under hsdp the number in a group. docs/scaling.md compares the
plan with counted bytes.

Activations are those of compiled blocks in bf16-mixed. With `selective` checkpointing a
pass saves q, k, v, gate, up and the outputs of attention, o_proj and down_proj in bf16,
and softmax statistics in float32; a block saves its input. With `none` a pass also
saves, in bf16, the outputs of norms, rotation and SwiGLU that products and attention
read, and, in float32, rotated q and k and the states after its halves; a block saves
its weights in bf16. The last state of a loop is needed only by a router, and the
outputs of both paths only by a learned gate. With `full` a block saves its input alone,
and its backward pass needs all that `none` saves.

Two facts decide the peak. Each step frees its gradients: with one micro-batch a step,
gradients grow while activations are freed; with more, gradients are held beside all
activations. And the compiled loss overwrites logits by their gradient. On one H200
(torch 2.11, micro-batches of 4 and 8 sequences, `selective` and `none`) the most memory
in eight steps was within 3 % of the plan's peak: docs/benchmarks/gpu.md. `full`,
documents and experts were not measured.
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
FLOAT32, BFLOAT16 = 4, 2
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
    shards = {
        "ddp": 1,
        "fsdp": cluster.gpus,
        "hsdp": min(cluster.shard_size, cluster.gpus),
    }[strategy]
    own = FLOAT32 * sum(numbers(unit, shards) for unit in units(config)) // shards
    *blocks, root = map(numbers, units(config))
    gradients = own - FLOAT32 * _untrained(config, shards) // shards
    # PyTorch's buckets of ddp
    gathered, unreduced = 0, gradients if cluster.gpus > 1 else 0
    if strategy != "ddp":
        gathered = unreduced = FLOAT32 * (root + 2 * max(blocks))
        if cluster.accumulate > 1:
            unreduced = cluster.reduce_bytes * (
                count.parameters(config) - _untrained(config, 1)
            )
    moments = 2 * gradients
    if cluster.optimizer == "muon":  # one moment instead of two
        moments -= FLOAT32 * numbers(hidden(config), shards) // shards
    tokens = cluster.micro_batch * config.max_seq_len
    # The final norm's input and outputs; logits; the head's cast and gradient.
    loss = tokens * config.d_model * (_residual(config) + FLOAT32 + BFLOAT16)
    parts = -(-tokens * config.vocab_size // MAX_LOGITS)
    loss += BFLOAT16 * -(-tokens // parts) * config.vocab_size
    loss += config.vocab_size * config.d_model * (FLOAT32 + BFLOAT16)
    saved = working = 0
    for layer, weights in zip(config.layers, blocks, strict=True):
        kept, again = saved_by_block(layer, cluster.checkpointing), _backward(layer)
        if cluster.checkpointing == "full":
            again += saved_by_block(layer, "none")
        # Weights are cast for their products, and have gradients; `none` keeps the cast
        # weights.
        saved += tokens * kept + BFLOAT16 * weights * (cluster.checkpointing == "none")
        working = max(working, tokens * again + (BFLOAT16 + FLOAT32) * weights)
    working = max(working, loss)
    accumulated = gradients if cluster.accumulate > 1 else 0
    peak = max(accumulated + unreduced + gathered + saved + working, gradients)
    return Memory(
        own,
        gradients,
        moments,
        unreduced,
        gathered,
        saved,
        working,
        own + moments + peak,
    )


def _untrained(config: ModelConfig, shards: int) -> int:
    return sum(numbers(untrained(layer), shards) for layer in config.layers)


def saved_by_block(
    layer: LayerConfig, checkpointing: Checkpointing = "selective"
) -> int:
    """Bytes for each token that a block saves for its backward pass."""
    d, n, state = (
        layer.d_model,
        count.passes(layer.block, layer.loops),
        _residual(layer),
    )
    if checkpointing == "full":
        return state * d
    keys = layer.head_dim * layer.n_kv_heads
    products = n * (4 * d + 2 * keys) + 2 * sum(_widths(layer))
    if layer.n_experts:
        products += (layer.top_k - 1) * d  # one output for each expert
    mixed = layer.routes_steps and layer.block != "wide"
    numbers = n * layer.n_heads + (layer.loops - 1) * mixed
    gates = GATE_OUTPUTS.get(layer.gate, 2)  # a custom one: g_d, g_w
    fixed = layer.block == "dual" and not gates
    numbers += gates * (layer.block == "dual")
    states = 1
    if checkpointing == "none":
        products += n * (3 * d + keys) + sum(_widths(layer))
        numbers += n * (d + keys) * (layer.qk_norm != "none")
        states = 2 * n - (not mixed) - 2 * fixed
    return states * state * d + BFLOAT16 * products + FLOAT32 * numbers


def _backward(layer: LayerConfig) -> int:
    """Bytes for each token in a block's backward pass, which recomputes each part when
    needed."""
    state, widths = _residual(layer) * layer.d_model, _widths(layer)
    wide = 5 * state + 3 * BFLOAT16 * widths[-1]
    # a loop's states together
    deep = (2 * layer.loops + 4) * state + 3 * BFLOAT16 * widths[0]
    return {"wide": wide, "loop": deep, "dual": max(wide, deep)}[layer.block]


def _widths(layer: LayerConfig) -> list[int]:
    """Effective FFN width of each pass of a block; with experts, the sum over a
    token's."""
    widths = [layer.effective_width(layer.d_ffn or 0)] * layer.loops
    dense = layer.effective_width(layer.d_ffn_wide or 0)
    widths += [layer.top_k * layer.expert_width if layer.n_experts else dense]
    return {"dual": widths, "loop": widths[:-1], "wide": widths[-1:]}[layer.block]


def _residual(config: ModelConfig) -> int:
    return BFLOAT16 if config.residual_dtype == "bfloat16" else FLOAT32
