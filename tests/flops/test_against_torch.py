"""The accounting against the built model: PyTorch's FLOP counter, and its parameters."""

from collections import Counter
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.flops import count as flops
from dualpath_cli.flops import paper
from dualpath_cli.flops.shapes import units
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.spec.config import COMBINATIONS, GATE_OUTPUTS, BlockKind, ModelConfig
from tests.flops.test_count_and_widths import small

KINDS = get_args(BlockKind)
GROUPED = torch.ops.dualpath.group_by_group
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, GROUPED)
BATCH = 2

VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}_k{k}": {"block": kind, "loops": k} for kind in KINDS for k in (1, 2, 3)},
    "mixed": {"block": [*KINDS], "n_layers": len(KINDS), "loops": 2},
    "gqa": {"n_kv_heads": 2, "loops": 2},
    "multi_query_wide": {"block": "wide", "n_kv_heads": 1},
    "tied": {"tie_embeddings": True, "loops": 2},
    "as_written": {**paper.AS_WRITTEN, "loops": 3},
    "film": {"step_conditioning": "film", "loops": 2},
    "by_layer": {
        "block": ["wide", "dual", "loop"], "n_layers": 3, "loops": [1, 3, 2],
        "d_ffn": [None, 40, 64], "d_ffn_wide": [96, 80, None],
    },
    "no_qk_norm": {"qk_norm": "none", "loops": 2},
    "experts": {"n_experts": [4, 0, 2], "n_layers": 3, "d_ffn_wide": 96, "loops": 2},
    "experts without a bias": {"block": "wide", "n_experts": 4, "top_k": 1, "d_ffn_wide": 96,
                               "balance": "loss"},
    **{gate: {"gate": gate} for gate in GATE_OUTPUTS},
    **{combination: {"combination": combination} for combination in COMBINATIONS},
}  # fmt: skip
each_variant = pytest.mark.parametrize(
    "config", [small(**changes) for changes in VARIANTS.values()], ids=VARIANTS
)


def counted(config: ModelConfig) -> tuple[int, int]:
    """FLOPs of a forward pass by PyTorch's counter: (linear layers, attention).

    Attention is done as batched products, for not every version counts the CPU's kernel.
    """
    tokens = torch.zeros(BATCH, config.max_seq_len, dtype=torch.long)
    model = DualPathLM(config).requires_grad_(False)  # the counter hooks gradients of arguments
    grouped = {GROUPED: lambda x, w, *_, **__: 2 * x[0] * w[1] * w[2]}
    counter = FlopCounterMode(display=False, custom_mapping=grouped)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(tokens)
    by_kernel = counter.get_flop_counts()["Global"]
    products = sum(by_kernel.get(kernel, 0) for kernel in MATRIX_PRODUCTS)
    return products, sum(by_kernel.values()) - products


@each_variant
def test_flops_are_those_that_pytorch_counts(config):
    """But for two: the step index, and the half of the attention scores that is masked.

    The model adds the router's step index as one scalar multiply-add for all tokens, not as a
    column of its matrix, so the counter sees 2 d of each routed step's 2 (d + 1). And it takes
    every query with every key, of which a causal pass needs half.
    """
    products, attention = counted(config)
    layers = flops.flops_by_layer(config)
    d, tokens = config.d_model, BATCH * config.max_seq_len
    linear = sum(layer.linear_total for layer in layers)
    router = sum(layer.router for layer in layers) * d // (d + 1)
    assert products == tokens * (linear + router + flops.head_flops(config))
    assert attention == 2 * tokens * sum(layer.attention_scores for layer in layers)


@settings(max_examples=30, deadline=None)
@given(
    layers=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4)), min_size=1, max_size=3),
    kv_heads=st.sampled_from([1, 2, 4]),
    d_model=st.sampled_from([16, 32]),
    texts=st.integers(1, 3),
    tokens=st.integers(1, 5),
)
def test_keys_and_values_take_the_bytes_of_the_cache_that_decodes(
    layers, kv_heads, d_model, texts, tokens
):
    """K + 1 caches of a dual layer, K of a loop one, 1 of a wide one, in bf16."""
    config = small(
        n_layers=len(layers), block=[kind for kind, _ in layers], loops=[k for _, k in layers],
        n_kv_heads=kv_heads, d_model=d_model,
    )  # fmt: skip
    decoder = Decoder(DualPathLM(config, seed=0), autocast=torch.bfloat16)
    ids_BT = torch.zeros(texts, tokens, dtype=torch.long)
    decoder.next_logits(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    assert decoder.cache_bytes == texts * tokens * flops.kv_bytes(config)


@each_variant
def test_parameters_are_those_of_the_built_model(config):
    with torch.device("meta"):
        model = DualPathLM(config)
    assert flops.parameters(config) == sum(p.numel() for p in model.parameters())
    matrices = {id(model.embed.weight), id(model.head.weight)}
    rest = [p for p in model.parameters() if id(p) not in matrices]
    assert flops.parameters_non_embedding(config) == sum(p.numel() for p in rest)
    root = {name: p for name, p in model.named_parameters() if not name.startswith("blocks.")}
    modules = [*(dict(block.named_parameters()) for block in model.blocks), root]
    for unit, named in zip(units(config), modules, strict=True):
        assert Counter(unit) == Counter(tuple(p.shape) for p in named.values())
