"""Shapes of a model's parameters by unit, from its configuration.

Torch-free. FSDP2 divides rows of parameters, and gathers and reduces a unit at once:
each block is one, and so is the root, with embedding, final norm and head. The shapes
of a unit come in no particular order.
"""

from itertools import chain
from math import prod

from dualpath_cli.spec.config import (
    COMBINATIONS,
    GATE_OUTPUTS,
    LayerConfig,
    ModelConfig,
)
from dualpath_cli.spec.own_checks import own_shapes

Shape = tuple[int, ...]

# the parts of blocks and of the core
PARTS = ("deep", "wide", "gains", "conditioning", "router", "gate", "injection")


def units(config: ModelConfig) -> list[list[Shape]]:
    """Shapes of the parameters of each block, then of the root; a tied head counts
    once."""
    found = []
    for layer in config.layers:
        parts = by_part(layer).values()
        found.append(list(chain.from_iterable(parts)))

    embedding = (config.vocab_size, config.d_model)
    root: list[Shape] = [embedding, (config.d_model,)]
    if not config.tie_embeddings:
        root.append(embedding)
    root += chain.from_iterable(core(config).values())
    return [*found, root]


def core(config: ModelConfig) -> dict[str, list[Shape]]:
    """Shapes of the core's parameters by part, besides those of its layers."""
    shapes: dict[str, list[Shape]] = {}
    d = config.d_model
    if config.learns_injection:
        shapes["injection"] = [(d, 2 * d)]
    if config.routes_core:
        shapes["router"] = [(1, d + 1), (1,)]
    return shapes


def by_part(layer: LayerConfig) -> dict[str, list[Shape]]:
    """Shapes of a block's parameters by part, for those PARTS that the block has."""
    shapes: dict[str, list[Shape]] = {"gains": []}
    if layer.block != "wide":
        shapes["deep"] = _steps(layer)
        shapes["gains"] += [(layer.core_loops * layer.loops,)]
        shapes["conditioning"] = []
        if layer.step_conditioning == "film":
            # a scale and a shift of both norms, by step
            shapes["conditioning"] += [(layer.loops, 2, 2, layer.d_model)]
        shapes["router"] = router(layer)

    if layer.block != "loop":
        shapes["gains"] += [(layer.core_loops,)]
        if layer.n_experts:
            # The choice of experts counts as the router's.
            shapes["wide"] = sublayer(layer, layer.expert_width, layer.n_experts)
            choice = [(layer.n_experts, layer.d_model), *untrained(layer)]
            shapes["router"] = [*shapes.get("router", []), *choice]
        else:
            width = layer.effective_width(layer.d_ffn_wide or 0)
            shapes["wide"] = sublayer(layer, width)

    if layer.block == "dual":
        shapes["gate"] = gate(layer)
    return shapes


def hidden(config: ModelConfig) -> list[Shape]:
    """Shapes of the parameters of attention, FFNs and injection, which Muon moves."""
    parts = [by_part(layer) for layer in config.layers]
    paths = [part.get(path, []) for part in parts for path in ("deep", "wide")]
    paths.append(core(config).get("injection", []))
    return [shape for shape in chain.from_iterable(paths) if len(shape) == 2]


def untrained(layer: LayerConfig) -> list[Shape]:
    """Shapes of a block's parameters without a gradient: the bias on the choice of
    experts."""
    return [(layer.n_experts,)] if layer.n_experts and layer.balance == "bias" else []


def _steps(layer: LayerConfig) -> list[Shape]:
    """Shapes of the sublayer of a deep path, or of one for each step."""
    width = layer.effective_width(layer.d_ffn or 0) if layer.deep_ffn else 0
    first = sublayer(layer, width)
    if not layer.untied_steps:
        return first

    later = sublayer(layer, width, own_kv=layer.step_kv == "own")
    return first + (layer.loops - 1) * later


def sublayer(
    config: ModelConfig, width: int, experts: int = 1, own_kv: bool = True
) -> list[Shape]:
    """Shapes of the attention, norms and feed-forward of a path; `experts` are stacked
    by rows. With width 0 there is no feed-forward."""
    d = config.d_model
    kv = config.n_kv_heads * config.head_dim
    h = experts * width

    shapes: list[Shape] = [(d, d), (d, d), (d,)]  # q, output, norm
    if config.qk_norm != "none":
        shapes += [(config.head_dim,)]
    if own_kv:
        shapes += [(kv, d), (kv, d)]  # k, v
        if config.qk_norm != "none":
            shapes += [(config.head_dim,)]
    if width:
        shapes += [(h, d), (h, d), (experts * d, width), (d,)]  # gate, up, down, norm
    return shapes


def gate(config: ModelConfig) -> list[Shape]:
    if config.gate not in GATE_OUTPUTS:
        return list(own_shapes(config, "gate").values())
    outputs = GATE_OUTPUTS[config.gate]
    return [(outputs, config.d_model), (outputs,)] if outputs else []


def router(layer: LayerConfig) -> list[Shape]:
    """Shapes of the parameters that weigh the steps of a deep path."""
    if not layer.routes_steps:
        return []
    if layer.combination not in COMBINATIONS:
        return list(own_shapes(layer, "combination").values())
    return [(1, layer.d_model + 1), (1,)]  # the last column is for the step index


def numbers(unit: list[Shape], shards: int = 1) -> int:
    """Numbers in a unit whose parameters are divided by rows among `shards` devices.

    Rows are padded to a multiple of `shards`.
    """
    total = 0
    for rows, *columns in unit:
        # All devices hold equally many rows of a parameter, and send equally much.
        padded = -(-rows // shards) * shards
        total += padded * prod(columns)
    return total
