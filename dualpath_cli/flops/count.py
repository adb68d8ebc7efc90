"""FLOPs and parameters of any ModelConfig, counted from its fields.

Torch-free. The accounting is the paper's (appendix FLOP-matching): two FLOPs a
multiply-add, per token and layer, matrices only; norms, activations and softmaxes are
not counted. One pass of a sublayer over a token costs

    attention projections   4 d^2 + 4 d^2 / n_rep     n_rep query heads share a
                            key/value head
    SwiGLU                  6 d h                     h the effective width, Eq. heff
    attention scores        2 T d                     QK^T and AV, the causal half; not
                            in F_M

A wide path of n experts of width H, with k for each token, has 6 k d H + 2 d n for its
SwiGLU. A layer adds the gate (4 d) and, in every deep step but the last, the router (2
(d + 1)). A custom gate or combination adds the FLOPs that its class declares; its
parameters are counted from a module of the class.

Steps that share the keys and values of the first (`step_kv`) have 4 d^2 for their
projections, and steps without a feed-forward have no SwiGLU. A layer of the core counts
R times, with the core's router, and its `linear` injection (4 d^2), in every repetition
but one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from dualpath_cli.flops import shapes
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.spec.config import (
    COMBINATIONS,
    GATE_OUTPUTS,
    BlockKind,
    LayerConfig,
    ModelConfig,
)
from dualpath_cli.spec.own_checks import declared_flops

BFLOAT16 = 2  # bytes of a number


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs of one layer per token, by part."""

    deep: int  # projections and SwiGLU of all K deep steps
    wide: int  # projections and SwiGLU, or chosen experts, of the wide pass
    gate: int  # the gate's matrix
    router: int
    """The router's matrix in K - 1 steps; the last step takes the remaining mass
    without it. For a custom combination, the FLOPs that its class declares."""
    attention_scores: int  # QK^T and AV of every pass, causal
    injection: int = 0  # the matrix that joins the core's input to its state

    @property
    def linear_total(self) -> int:
        """F_M in the paper: deep + wide + gate; also the injection."""
        return self.deep + self.wide + self.gate + self.injection

    @property
    def total(self) -> int:
        """Linear FLOPs, router and attention scores."""
        return self.linear_total + self.router + self.attention_scores

    def as_dict(self) -> dict[str, int]:
        return {**asdict(self), "linear_total": self.linear_total, "total": self.total}


def projection_flops(d_model: int, n_heads: int, n_kv_heads: int) -> int:
    """FLOPs of the q, k, v and output projections for one token."""
    return 4 * d_model**2 + 4 * d_model**2 * n_kv_heads // n_heads


def score_flops(d_model: int, seq_len: int) -> int:
    """FLOPs of QK^T and AV for one token of a causal pass, averaged over ``seq_len``
    tokens."""
    return 2 * seq_len * d_model


def passes(kind: BlockKind, loops: int) -> int:
    """How often a layer of this kind applies a sublayer, attention included."""
    return {"wide": 1, "loop": loops, "dual": loops + 1}[kind]


def deep_flops(loops: int, projections: int, shared_kv: int = 0, ffn: int = 0) -> int:
    """FLOPs of the K steps of a deep path for one token.

    `projections` and `ffn` are those of one step; `shared_kv` is the part of the
    projections that only the first step has.
    """
    return loops * (projections + ffn) - (loops - 1) * shared_kv


def kv_flops(d_model: int, n_heads: int, n_kv_heads: int) -> int:
    """FLOPs of the key and value projections for one token."""
    return 4 * d_model**2 * n_kv_heads // n_heads


def layer_flops(layer: LayerConfig, seq_len: int | None = None) -> LayerFlops:
    """Forward FLOPs per token of a layer; of a layer in the core, of all repetitions.

    ``seq_len`` defaults to max_seq_len.
    """
    d = layer.d_model
    kind = layer.block
    projections = projection_flops(d, layer.n_heads, layer.n_kv_heads)

    # With experts: those that a token chooses, and the matrix of the choice.
    wide = 0
    if kind != "loop" and layer.n_experts:
        chosen = 6 * d * layer.top_k * layer.expert_width
        choice = 2 * d * layer.n_experts
        wide = projections + chosen + choice
    elif kind != "loop":
        wide = projections + _ffn_flops(layer, layer.d_ffn_wide)

    deep = 0
    if kind != "wide":
        shared_kv = 0
        if layer.step_kv == "first":
            shared_kv = kv_flops(d, layer.n_heads, layer.n_kv_heads)
        ffn = _ffn_flops(layer, layer.d_ffn) if layer.deep_ffn else 0
        deep = deep_flops(layer.loops, projections, shared_kv, ffn)

    if seq_len is None:
        seq_len = layer.max_seq_len
    n = layer.core_loops
    scores = passes(kind, layer.loops) * score_flops(d, seq_len)
    return LayerFlops(
        deep=n * deep,
        wide=n * wide,
        gate=n * gate_flops(layer) if kind == "dual" else 0,
        router=n * router_flops(layer) if kind != "wide" else 0,
        attention_scores=n * scores,
    )


def _ffn_flops(layer: LayerConfig, d_ffn: int | None) -> int:
    assert d_ffn is not None  # ModelConfig refuses a path without a width
    return 6 * layer.d_model * layer.effective_width(d_ffn)


def core_flops(config: ModelConfig) -> LayerFlops:
    """Forward FLOPs per token of the core besides those of its layers."""
    between = 0
    if config.core is not None:
        between = config.core_loops - 1  # repetitions but the first, or but the last

    d = config.d_model
    injection = 4 * d**2 if config.injection == "linear" else 0
    router = 2 * (d + 1) if config.routes_core else 0
    return LayerFlops(
        deep=0,
        wide=0,
        gate=0,
        router=between * router,
        attention_scores=0,
        injection=between * injection,
    )


def gate_flops(config: ModelConfig) -> int:
    """FLOPs of a dual block's gate for one token."""
    if config.gate in GATE_OUTPUTS:
        return 2 * config.d_model * GATE_OUTPUTS[config.gate]
    return declared_flops(config, "gate")


def router_flops(layer: LayerConfig) -> int:
    """FLOPs of a deep path's router, or custom combination, for one token and all
    steps."""
    if not layer.routes_steps:
        return 0
    if layer.combination in COMBINATIONS:
        return 2 * (layer.d_model + 1) * (layer.loops - 1)
    return declared_flops(layer, "combination")


def all_flops(config: ModelConfig, seq_len: int | None = None) -> list[LayerFlops]:
    """Forward FLOPs per token of each layer, then of the core besides its layers."""
    by_view = {view: layer_flops(view, seq_len) for view in set(config.layers)}
    return [*(by_view[view] for view in config.layers), core_flops(config)]


def total_flops(config: ModelConfig, seq_len: int | None = None) -> int:
    """Forward FLOPs per token of all layers, router and attention scores included; the
    head is apart (`head_flops`)."""
    return sum(layer.total for layer in all_flops(config, seq_len))


def mean_layer_flops(
    config: ModelConfig, seq_len: int | None = None
) -> dict[str, int | float]:
    """FLOPs per token and layer by part, averaged over layers; whole if layers are
    equal.

    The core's router and injection are shared out among all layers.
    """
    counts = [layer.as_dict() for layer in all_flops(config, seq_len)]
    n = config.n_layers
    means: dict[str, int | float] = {}
    for part in counts[0]:
        total = sum(layer[part] for layer in counts)
        mean, rest = divmod(total, n)
        means[part] = total / n if rest else mean

    if config.injection != "linear":
        del means["injection"]
    return means


def head_flops(config: ModelConfig) -> int:
    """FLOPs of the language-model head for one token; the embedding is a look-up and
    costs none."""
    return 2 * config.d_model * config.vocab_size


def training_flops_per_token(
    config: ModelConfig,
    seq_len: int | None = None,
    backprop_loops: int | None = None,
    loop_losses: bool = False,
) -> int:
    """FLOPs of forward and backward for one token, head included.

    Parts that get gradients cost three times their forward FLOPs. All else, the steps
    and repetitions before the last `backprop_loops`, costs its forward FLOPs. With
    `loop_losses` coda and head also run on each earlier repetition of the core.
    """
    head = head_flops(config)
    forward = total_flops(config, seq_len) + head
    trained = forward
    if backprop_loops is not None:
        trained = _flops_with_gradient(config, seq_len, backprop_loops)
        trained += head

    if loop_losses:
        earlier = config.core_loops - 1
        _, _, coda = _stretches(config)
        forward += earlier * (_once(coda, seq_len, None) + head)
        trained += earlier * (_once(coda, seq_len, backprop_loops) + head)
    return forward + 2 * trained


def training_flops_of(
    run: RunSettings, seq_len: int | None = None
) -> Callable[[ModelConfig], int]:
    """`training_flops_per_token` under a run's settings, of a model."""
    return partial(
        training_flops_per_token,
        seq_len=seq_len,
        backprop_loops=run.backprop_loops,
        loop_losses=run.loop_losses > 0,
    )


def _flops_with_gradient(config: ModelConfig, seq_len: int | None, last: int) -> int:
    """Forward FLOPs per token of the layers' parts that get gradients.

    `last` is how many steps of each deep path, and repetitions of the core, do. All
    layers get some: `recipe.schedule.check_loops` refuses loop blocks of more steps,
    and a core of more repetitions without injection.
    """
    prelude, core, coda = _stretches(config)
    flops = _once(prelude, seq_len, last) + _once(coda, seq_len, last)

    if core:
        besides = core_flops(config)
        repetitions = min(last, config.core_loops)
        flops += repetitions * _once(core, seq_len, last) + besides.router
        if besides.injection:
            injections = repetitions - (repetitions == config.core_loops)
            flops += injections * besides.injection // (config.core_loops - 1)
    return flops


def _once(layers: Sequence[LayerConfig], seq_len: int | None, last: int | None) -> int:
    """FLOPs of one application of these layers, of the parts that get gradients: the
    last steps of each deep path, or all if `last` is None."""
    flops = 0
    for layer in layers:
        steps = layer.loops if last is None else min(last, layer.loops)
        with_gradient = replace(layer, loops=steps, core_loops=1)
        flops += layer_flops(with_gradient, seq_len).total
    return flops


def _stretches(config: ModelConfig) -> list[list[LayerConfig]]:
    """The layers of prelude, core and coda."""
    return [[config.layers[n] for n in stretch] for stretch in config.stretches]


def over_loops(
    counted: Callable[[ModelConfig], float],
    config: ModelConfig,
    steps: Mapping[int, float],
) -> float:
    """A count, averaged over numbers of loops, weighted by the steps that run each
    number.

    `steps` are `StepLoops.counts`; if empty, the count of the model itself is returned.
    """
    if not any(steps.values()):
        return counted(config)

    total: float = 0  # whole, where steps are
    for loops, n in steps.items():
        varied: dict[str, Any] = {config.varied_loops: loops}
        total += n * counted(replace(config, **varied))
    return total / sum(steps.values())


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    """Number of weights by part of the model, summed over layers.

    Parts: embedding, head (0 when tied), final_norm, deep, wide, gains, conditioning,
    router, gate, injection.
    """
    embedding = config.vocab_size * config.d_model
    counts = {
        "embedding": embedding,
        "head": 0 if config.tie_embeddings else embedding,
        "final_norm": config.d_model,
    }
    counts |= dict.fromkeys(shapes.PARTS, 0)
    for layer, times in Counter(config.layers).items():
        for part, own in shapes.by_part(layer).items():
            counts[part] += times * shapes.numbers(own)
    for part, own in shapes.core(config).items():
        counts[part] += shapes.numbers(own)
    return counts


def parameters(config: ModelConfig) -> int:
    """Number of weights of the model; a tied head counts once."""
    return sum(parameters_by_part(config).values())


def active_parameters(config: ModelConfig) -> int:
    """Number of weights that one token uses: of a layer's experts, only the chosen
    ones."""
    return parameters(config) - sum(map(_idle, config.layers))


def parameters_by_applications(config: ModelConfig) -> dict[int, int]:
    """Number of weights by how often a forward pass over a sequence applies them.

    The embedding, head and final norm count as applied once; of experts, those that a
    token uses. The numbers add up to `active_parameters`.
    """
    found: Counter[int] = Counter()
    parts = parameters_by_part(config)
    for outside in ("embedding", "head", "final_norm"):
        found[1] += parts[outside]
    for layer, times in Counter(config.layers).items():
        for applied, number in _applied(layer):
            found[applied] += times * number

    # injection and router stand between repetitions
    between = config.core_loops - 1
    for of_part in shapes.core(config).values():
        found[between] += shapes.numbers(of_part)

    in_order = sorted(found.items())
    return {applied: number for applied, number in in_order if number}


def _applied(layer: LayerConfig) -> Iterator[tuple[int, int]]:
    """How often a pass applies the weights of a layer's parts, and their number.

    A router counts as often as the layer.
    """
    own = {part: shapes.numbers(of) for part, of in shapes.by_part(layer).items()}
    repetitions = layer.core_loops
    yield 1, own.pop("gains")  # one for each application

    deep = own.pop("deep", 0)
    steps = 1 if layer.untied_steps else layer.loops
    if deep and steps > 1 and layer.step_kv == "first":
        without_kv = shapes.numbers(shapes.sublayer(layer, 0, own_kv=False))
        kv = shapes.numbers(shapes.sublayer(layer, 0)) - without_kv
        yield repetitions, kv
        deep -= kv
    yield repetitions * steps, deep
    yield repetitions, sum(own.values()) - _idle(layer)


def _idle(layer: LayerConfig) -> int:
    """Number of weights of the experts that a token does not use."""
    if not layer.n_experts:
        return 0
    # gate, up and down projection
    expert = 3 * layer.d_model * layer.expert_width
    return expert * (layer.n_experts - layer.top_k)


def kv_bytes(config: ModelConfig) -> int:
    """Bytes in bf16 of the keys and values of one token, in all layers.

    Each pass of a sublayer has a separate cache (`decoding.cache`): 1 in a wide layer,
    K in a loop layer, K + 1 in a dual layer, for each repetition of a core. Steps that
    share keys and values have one.
    """
    total = 0
    for layer in config.layers:
        keys_and_values = 2 * layer.n_kv_heads * layer.head_dim
        steps = 1 if layer.step_kv == "first" else layer.loops
        caches = layer.core_loops * passes(layer.block, steps)
        total += caches * keys_and_values * BFLOAT16
    return total


def parameters_non_embedding(config: ModelConfig) -> int:
    parts = parameters_by_part(config)
    return sum(parts.values()) - parts["embedding"] - parts["head"]
