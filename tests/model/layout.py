"""What a model is made of, for the float64 reference: stretches of layers, each layer's
own configuration, and names and shapes of all weights.

Written from the description of the configuration, without a line shared with
``dualpath_cli.model`` or ``dualpath_cli.flops``.
"""

import dataclasses
import math
from typing import Any

from dualpath_cli.spec.config import ModelConfig


def stretches(config: ModelConfig) -> tuple[list[int], list[int], list[int]]:
    """The layers of the prelude, of the core and of the coda."""
    every = list(range(config.n_layers))
    if config.core is None:
        return every, [], []
    first, last = config.core
    return every[:first], every[first : last + 1], every[last + 1 :]


def of_layer(config: ModelConfig, layer: int) -> ModelConfig:
    """The configuration of a model of this one layer."""
    own = {name: at_layer(getattr(config, name), layer) for name in BY_LAYER}
    return dataclasses.replace(config, n_layers=1, core=None, **own)


BY_LAYER = (
    "block",
    "loops",
    "untied_steps",
    "step_kv",
    "deep_ffn",
    "d_ffn",
    "d_ffn_wide",
    "n_experts",
)
"""The fields that may be lists with a value for each layer."""


def at_layer(value: Any, layer: int) -> Any:
    """A value for all layers, or the one of a list with a value for each."""
    return value[layer] if isinstance(value, list) else value


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights of a model; a tied head is not listed."""
    d = config.d_model
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (config.vocab_size, d),
        "norm.weight": (d,),
    }
    if not config.tie_embeddings:
        shapes["head.weight"] = (config.vocab_size, d)
    _, core, _ = stretches(config)
    if core and config.core_loops > 1:
        if config.injection == "linear":
            shapes["core.injection.weight"] = (d, 2 * d)
        if config.core_combination == "router":
            shapes |= router_shapes(config, "core")
    for layer in range(config.n_layers):
        own = of_layer(config, layer)
        here = f"blocks.{layer}"
        R = config.core_loops if layer in core else 1
        if own.block != "wide":
            shapes |= deep_shapes(own, f"{here}.deep", R)
        if own.block != "loop":
            shapes |= sublayer_shapes(own, f"{here}.wide.sublayer", own.d_ffn_wide)
            shapes |= expert_shapes(own, f"{here}.wide.sublayer.ffn")
            shapes[f"{here}.wide.gain"] = () if R == 1 else (R,)
        if own.block == "dual" and config.gate != "fixed":
            n_logits = 1 if config.gate == "convex" else 2
            shapes[f"{here}.gate.proj.weight"] = (n_logits, d)
            shapes[f"{here}.gate.proj.bias"] = (n_logits,)
    return shapes


def router_shapes(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a router of steps or repetitions."""
    return {
        f"{prefix}.router.weight": (1, config.d_model + 1),
        f"{prefix}.router.bias": (1,),
    }


def deep_shapes(config: ModelConfig, prefix: str, R: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the deep path of a layer that is applied R times."""
    K = config.loops
    assert isinstance(K, int)
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.gains": (R * K,)}
    width = config.d_ffn if config.deep_ffn else None
    if config.untied_steps:
        for k in range(K):
            own = sublayer_shapes(config, f"{prefix}.sublayers.{k}", width)
            if k > 0 and config.step_kv == "first":
                unused = ("k_proj.weight", "v_proj.weight", "k_norm.weight")
                own = {name: own[name] for name in own if not name.endswith(unused)}
            shapes |= own
    else:
        shapes |= sublayer_shapes(config, f"{prefix}.sublayer", width)
    if config.step_conditioning == "film":
        shapes[f"{prefix}.film"] = (K, 2, 2, config.d_model)
    if K > 1 and config.combination == "router":
        shapes |= router_shapes(config, prefix)
    return shapes


def sublayer_shapes(
    config: ModelConfig, prefix: str, d_ffn: Any
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one sublayer; the FFN width is rounded up to a multiple, and
    None without a feed-forward."""
    d = config.d_model
    N = d // config.n_heads
    shapes = {
        "attn_norm.weight": (d,),
        "attn.q_proj.weight": (config.n_heads * N, d),
        "attn.k_proj.weight": (config.n_kv_heads * N, d),
        "attn.v_proj.weight": (config.n_kv_heads * N, d),
        "attn.o_proj.weight": (d, config.n_heads * N),
    }
    if config.qk_norm != "none":
        shapes |= {"attn.q_norm.weight": (N,), "attn.k_norm.weight": (N,)}
    if d_ffn is not None:
        multiple = config.ffn_multiple_of
        h = multiple * math.ceil((2 * d_ffn // 3) / multiple)
        shapes |= {
            "ffn_norm.weight": (d,),
            "ffn.gate_proj.weight": (h, d),
            "ffn.up_proj.weight": (h, d),
            "ffn.down_proj.weight": (d, h),
        }
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def expert_shapes(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of n experts and their router, in place of a SwiGLU of the same
    names.

    k experts and the router cost as many multiplications, ``3 d k H + d n``, as the
    SwiGLU's 3 d h.
    """
    n, k, d = config.n_experts, config.top_k, config.d_model
    if not n:
        return {}
    assert isinstance(n, int)
    assert isinstance(config.d_ffn_wide, int)
    multiple = config.ffn_multiple_of
    h = multiple * math.ceil((2 * config.d_ffn_wide // 3) / multiple)
    H = 8 * math.floor((3 * d * h - d * n) / (3 * d * k) / 8 + 0.5)
    shapes = {
        "router.weight": (n, d),
        "gate_proj.weight": (n * H, d),
        "up_proj.weight": (n * H, d),
        "down_proj.weight": (n * d, H),
    }
    if config.balance == "bias":
        shapes["balance_bias"] = (n,)
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}
