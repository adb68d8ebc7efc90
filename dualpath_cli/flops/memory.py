"""Bytes that training takes on one device, from the model's configuration and the way it is run.

Torch-free. Counts what PyTorch allocates: weights, gradients and AdamW's moments, what the forward
pass saves for the backward pass, and the temporary memory of loss and backward pass. One pass of a
sublayer saves per token so many bytes, where e are the bytes of a product (2 in bf16), w those of a
weight, r those of a number of the residual stream (4 in float32), d is the model width, d_kv the
width of keys and values, and h the FFN's:

    selective   e (4 d + 2 d_kv + 2 h)           q, k, v, attention, o_proj, down_proj, gate, up
    none        e (8 d + 3 h) + 2 w d + 2 r d    compiled, what torch's partitioner chooses to save
                (10 w + 9 e) d + 4 e h           eager, in mixed precision; else 16 w d + 4 w h

and the float32 statistics of norms and softmax (which has none on a CPU in bf16). A wide path of
experts, of which a token takes k of width H, has h = k H and saves 2 e k d more, an input and an
output for each; under `selective` e (k - 1) d, outputs alone. To `selective` and `full` a block
adds its input, r d. tests/flops/test_memory.py has these beside measured bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dualpath_cli.config import GATE_OUTPUTS, Checkpointing, LayerConfig, ModelConfig
from dualpath_cli.flops.count import parameters, passes
from dualpath_cli.flops.shapes import hidden, numbers, orthogonal, units

Optimizer = Literal["adamw", "muon"]

MAX_LOGITS = 2**28
"""Logits that the loss holds at once; `model.loss.MAX_LOGITS`."""

FLOAT32 = 4


@dataclass(frozen=True)
class Execution:
    """The settings of a run that decide its memory."""

    checkpointing: Checkpointing = "selective"
    """The activations that a block recomputes in its backward pass."""
    compiled: bool = True
    """Whether blocks are compiled."""
    weight_bytes: int = 4
    """Bytes of a weight, its gradient, each of its moments, and of the norms' outputs."""
    product_bytes: int = 2
    """Bytes of a matrix product's output: 2 under bf16 autocast."""
    shards: int | None = None
    """Devices that FSDP2 divides weights, gradients and moments among; None without it."""
    optimizer: Optimizer = "adamw"
    """muon holds one number instead of two moments for each weight of its matrices."""

    @property
    def casts(self) -> bool:
        """Whether weights are cast for their products."""
        return self.product_bytes < self.weight_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    states: int
    """Weights, gradients and moments; with FSDP2 its part of them, and what it holds whole."""
    saved: int
    """Saved by the forward pass of one micro-batch for the backward pass."""
    working: int
    """The most that loss or backward pass need at once beside these."""

    @property
    def peak(self) -> int:
        """The most that is allocated at once during an optimizer step."""
        return self.states + self.saved + self.working


def step_memory(config: ModelConfig, micro_batch: int, execution: Execution) -> Memory:
    """Memory of training with micro-batches of so many sequences of `max_seq_len` tokens.

    AdamW itself is fused and needs nothing; gradients stay allocated between steps. Muon works when
    nothing is saved.
    """
    tokens = micro_batch * config.max_seq_len
    residual = residual_bytes(config, execution)
    blocks = sum(tokens * saved_by_block(layer, execution) for layer in config.layers)
    # Casts live as long as autograd or, in eager mode, autocast's cache holds them.
    cast = execution.casts and (execution.checkpointing == "none" or not execution.compiled)
    casts = execution.product_bytes * sum(block_weights(config)) if cast else 0
    kept_casts = casts if execution.checkpointing == "none" else 0
    # The final norm's input, its output, and the output cast to the type of the products.
    head = tokens * config.d_model * (residual + execution.weight_bytes)
    head += tokens * config.d_model * execution.product_bytes if execution.casts else 0
    loss = loss_bytes(config, tokens, execution) + casts - kept_casts
    # As the last block's backward pass begins, of the head only the gradient is left. A block's
    # gradients of its weights come out at its end, when what it and those after it saved is gone.
    working, gone = head + loss, 0
    for layer, weights in zip(
        reversed(config.layers), reversed(block_weights(config)), strict=True
    ):
        backward = tokens * backward_bytes(layer, execution)
        if execution.casts and execution.compiled and execution.checkpointing != "none":
            backward += execution.product_bytes * weights
        working = max(working, backward - gone)
        gone += tokens * saved_by_block(layer, execution)
        gradients = (execution.weight_bytes + execution.product_bytes) * weights
        working = max(working, gradients - gone)
    saved = blocks + kept_casts
    working = max(working, muon_bytes(config, execution) - saved)
    return Memory(states=state_bytes(config, execution), saved=saved, working=working)


def state_bytes(config: ModelConfig, execution: Execution) -> int:
    """Bytes of weights, gradients and the optimizer's moments, and of what FSDP2 gathers."""
    weights = execution.weight_bytes * parameters(config)
    states = 4 * weights
    if execution.optimizer == "muon":
        states -= execution.weight_bytes * numbers(hidden(config))
    if execution.shards is None:
        return states
    # Between the micro-batches of a step each device has whole gradients (`block_backward_sync` in
    # training/parallel.py).
    whole = weights + execution.weight_bytes * gathered_weights(config)
    return states // execution.shards + whole


def muon_bytes(config: ModelConfig, execution: Execution) -> int:
    """The most bytes at once as Muon makes a matrix orthogonal, which it gathers where it is cut.

    Of m x n numbers, m <= n: the momentum, the iteration before and after, and two of m x m; or the
    result, in the momentum's place, an iteration, and the result's cast to a weight's type. Of
    experts momentum and result are those of all.
    """
    if execution.optimizer == "adamw":
        return 0
    e, cast = execution.product_bytes, execution.weight_bytes if execution.casts else 0
    stacks = [(times, *sorted(shape)) for times, shape in orthogonal(config)]
    return max(
        e * m * n + max(e * ((times + 1) * m * n + 2 * m**2), (e + cast) * times * m * n)
        for times, m, n in stacks
    )


def gathered_weights(config: ModelConfig) -> int:
    """Number of weights that FSDP2 has whole at once.

    Those of the root unit for the whole pass, and of two blocks: one at work, the next arriving.
    """
    return numbers(units(config)[-1]) + 2 * max(block_weights(config))


def block_weights(config: ModelConfig) -> list[int]:
    """Number of weights of each block."""
    return [numbers(unit) for unit in units(config)[:-1]]


def residual_bytes(config: ModelConfig, execution: Execution) -> int:
    """Bytes of a number of the residual stream."""
    return 2 if config.residual_dtype == "bfloat16" else execution.weight_bytes


def pass_widths(layer: LayerConfig) -> Iterator[int]:
    """Effective FFN width of each pass of a block: of a token's experts together."""
    if layer.block != "wide":
        yield from [layer.effective_width(layer.d_ffn or 0)] * layer.loops
    if layer.block != "loop":
        dense = layer.effective_width(layer.d_ffn_wide or 0)
        yield layer.top_k * layer.expert_width if layer.n_experts else dense


def saved_by_block(layer: LayerConfig, execution: Execution) -> int:
    """Bytes a token that a block saves for its backward pass, without its weights' casts."""
    d, heads, kv_heads = layer.d_model, layer.n_heads, layer.n_kv_heads
    e, w, r = execution.product_bytes, execution.weight_bytes, residual_bytes(layer, execution)
    if execution.checkpointing == "full":
        return r * d
    n, h = passes(layer.block, layer.loops), sum(pass_widths(layer))
    routed = layer.routes_steps and layer.block != "wide"
    softmax = n * FLOAT32 * heads
    outputs = GATE_OUTPUTS.get(layer.gate, 2)  # a custom gate: g_d and g_w
    copies = layer.top_k - 1 if execution.checkpointing == "selective" else 2 * layer.top_k
    experts = e * copies * d if layer.n_experts else 0
    choices = experts + w * ((layer.loops - 1) * routed + outputs * (layer.block == "dual"))
    if execution.checkpointing == "selective":
        products = n * (4 * d + 2 * layer.head_dim * kv_heads) + 2 * h
        return r * d + e * products + softmax + choices
    norms = n * FLOAT32 * (heads + kv_heads) + softmax
    if execution.compiled:
        # Where steps are not mixed, the state after the last pass is not needed.
        states = r * d * (2 * n - (not routed))
        return states + n * d * (8 * e + 2 * w) + 3 * e * h + norms + choices
    per_channel = 10 * w + 9 * e if execution.casts else 16 * w
    mixed = r * d * (routed + (layer.block == "dual"))
    if layer.step_conditioning == "film" and layer.block != "wide":  # the norms' outputs, for gamma
        mixed += 2 * w * d * layer.loops
    return n * d * per_channel + 4 * e * h + mixed + norms + choices


def backward_bytes(layer: LayerConfig, execution: Execution) -> int:
    """Bytes a token that the backward pass of a block needs beside what is saved.

    Fitted to measurements, within some 15 % of them. In eager mode all that was not saved has been
    computed again before the first gradient. Compiled, `selective` computes each part again where
    it is needed, and only the states of a loop are held together.
    """
    state = residual_bytes(layer, execution) * layer.d_model
    e, widths = execution.product_bytes, list(pass_widths(layer))
    kept = saved_by_block(layer, execution)
    everything = saved_by_block(layer, replace(execution, checkpointing="none"))
    if not execution.compiled:
        return everything - kept + 4 * state + 2 * e * widths[-1]
    if execution.checkpointing == "none":
        return 4 * state + e * widths[-1]
    working = 0
    if layer.block != "loop":
        working = 5 * state + 3 * e * widths[-1]
    if layer.block != "wide":
        working = max(working, (2 * layer.loops + 4) * state + 3 * e * widths[0])
    if execution.checkpointing != "full":
        return working
    if layer.block != "dual":  # all is computed again before the first gradients
        return everything - kept + 2 * state + 3 * e * widths[0]
    products = saved_by_block(layer, replace(execution, checkpointing="selective"))
    return max(everything, products + working) - kept


def loss_bytes(config: ModelConfig, tokens: int, execution: Execution) -> int:
    """Bytes that the loss needs: logits of a part of the tokens, the head's cast and gradient.

    Compiled, a logit is held as itself and as its gradient; otherwise three times in float32.
    """
    parts = min(tokens, -(-tokens * config.vocab_size // MAX_LOGITS))
    logits = -(-tokens // parts) * config.vocab_size
    e, w = execution.product_bytes, execution.weight_bytes
    per_logit = 2 * e if execution.compiled else 3 * max(FLOAT32, w)
    return logits * per_logit + config.vocab_size * config.d_model * (w + e * execution.casts)
