"""The accounting against the built model: PyTorch's FLOP counter, and its parameters."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops import count as flops
from dualpath_cli.flops import paper
from dualpath_cli.model.language_model import DualPathLM
from tests.flops.test_count_and_widths import small

MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
BATCH = 2

VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{kind}_k{k}": {"block": kind, "loops": k} for kind in ("dual", "loop") for k in (1, 2, 3)},
    "wide": {"block": "wide"},
    "mixed": {"block": ["dual", "loop", "wide"], "n_layers": 3, "loops": 2},
    "gqa": {"n_kv_heads": 2, "loops": 2},
    "multi_query_wide": {"block": "wide", "n_kv_heads": 1},
    "tied": {"tie_embeddings": True, "loops": 2},
    "as_written": {**paper.AS_WRITTEN, "loops": 3},
    "no_qk_norm": {"qk_norm": "none", "loops": 2},
    "convex": {"gate": "convex"},
    "softmax": {"gate": "softmax"},
    "fixed": {"gate": "fixed"},
    "final": {"combination": "final"},
    "mean": {"combination": "mean"},
}
each_variant = pytest.mark.parametrize(
    "config", [small(**changes) for changes in VARIANTS.values()], ids=VARIANTS
)


def counted(config: ModelConfig) -> tuple[int, int]:
    """FLOPs of a forward pass by PyTorch's counter: (linear layers, attention).

    Attention is done as batched products, for not every version counts the CPU's kernel.
    """
    tokens = torch.zeros(BATCH, config.max_seq_len, dtype=torch.long)
    model = DualPathLM(config)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(tokens)
    by_kernel = counter.get_flop_counts()["Global"]
    products = sum(by_kernel.get(kernel, 0) for kernel in MATRIX_PRODUCTS)
    return products, sum(by_kernel.values()) - products


@each_variant
def test_linear_flops_are_pytorchs(config: ModelConfig) -> None:
    products, _ = counted(config)
    layers = flops.flops_by_layer(config)
    linear = sum(layer.linear_total for layer in layers)
    # The model adds the router's step index as one scalar multiply-add for all tokens, not as a
    # column of its matrix, so the counter sees 2 d of each routed step's 2 (d + 1).
    d = config.d_model
    router = sum(layer.router for layer in layers) * d // (d + 1)
    tokens = BATCH * config.max_seq_len
    assert products == tokens * (linear + router + flops.head_flops(config))


@each_variant
def test_attention_scores_are_half_of_pytorchs_count(config: ModelConfig) -> None:
    """The counter takes every query with every key; a causal pass needs half of them."""
    _, attention = counted(config)
    scores = sum(layer.attention_scores for layer in flops.flops_by_layer(config))
    assert attention == 2 * scores * BATCH * config.max_seq_len


@each_variant
def test_parameters_are_those_of_the_built_model(config: ModelConfig) -> None:
    model = DualPathLM(config)
    assert flops.parameters(config) == sum(p.numel() for p in model.parameters())
    matrices = {id(model.embed.weight), id(model.head.weight)}
    rest = [p for p in model.parameters() if id(p) not in matrices]
    assert flops.parameters_non_embedding(config) == sum(p.numel() for p in rest)


@pytest.mark.parametrize("row", paper.configurations(), ids=lambda row: row.recipe)
def test_parameters_of_the_papers_models(row: paper.Configuration) -> None:
    config = row.model_config("as_trained")
    with torch.device("meta"):
        model = DualPathLM(config)
    assert flops.parameters(config) == sum(p.numel() for p in model.parameters())
