"""Small models, their weights and inputs, for the tests of the model."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.spec.config import ModelConfig
from tests.model import reference
from tests.model.reference import Weights, random_tokens

EXACT = 1e-12
"""Largest relative difference of two float64 results that are equal by the
equations."""
OUTPUTS = 1e-10
"""Largest difference of logits to the reference's, relative to the largest logit."""
SHOWS = 1e-4
"""Least difference that an intervention makes, on the same scale."""

SMALL = ModelConfig(
    vocab_size=17,
    n_layers=2,
    d_model=16,
    n_heads=4,
    n_kv_heads=2,
    max_seq_len=16,
    loops=3,
    d_ffn=24,
    d_ffn_wide=48,
    ffn_multiple_of=8,
)
MEDIUM = ModelConfig(
    vocab_size=64,
    n_layers=4,
    d_model=64,
    n_heads=4,
    n_kv_heads=4,
    max_seq_len=32,
    loops=4,
    d_ffn=100,
    d_ffn_wide=200,
    ffn_multiple_of=64,
)
ALL_KINDS: dict[str, Any] = {"block": ["dual", "loop", "wide"], "n_layers": 3}
UNEVEN: dict[str, Any] = {
    "block": ["dual", "wide", "dual"],
    "n_layers": 3,
    "loops": [2, 1, 4],
    "d_ffn": [24, None, 40],
    "d_ffn_wide": [48, 56, 20],
}
"""Layers that differ in loops and widths."""

CORES: dict[str, dict[str, Any]] = {
    "one wide layer": {"n_layers": 3, "block": "wide", "core": [1, 1], "core_loops": 3},
    "added input": {
        "n_layers": 3,
        "block": ["loop", "dual", "wide"],
        "core": [0, 1],
        "core_loops": 2,
        "injection": "add",
        "loops": 2,
    },
    "joined input": {"core": [0, 0], "core_loops": 3, "injection": "linear"},
    "routed": {
        "n_layers": 3,
        "block": ["wide", "dual", "loop"],
        "core": [1, 2],
        "core_loops": 3,
        "core_combination": "router",
        "injection": "add",
        "loops": 2,
    },
}
"""Cores of all kinds of blocks, with a prelude, a coda, or both."""
STEPS: dict[str, dict[str, Any]] = {
    "steps of their own": {"untied_steps": True},
    "keys of the first step": {"step_kv": "first"},
    "steps of their own, keys of the first": {"untied_steps": True, "step_kv": "first"},
    "steps of attention only": {"deep_ffn": False, "d_ffn": None},
    "steps by layer": {
        "untied_steps": [True, False],
        "step_kv": ["own", "first"],
        "deep_ffn": [False, True],
    },
}
"""What the steps of a deep path have of their own."""

EXPERTS: dict[str, Any] = {"n_experts": 4, "top_k": 2, "d_ffn_wide": 100}
"""Four experts, two of which each token takes."""

TOKENS = random_tokens(SMALL, batch=2, length=8)
TARGETS = random_tokens(SMALL, batch=2, length=8, seed=1)


def small(**changes: Any) -> ModelConfig:
    return dataclasses.replace(SMALL, **changes)


def medium(**changes: Any) -> ModelConfig:
    return dataclasses.replace(MEDIUM, **changes)


def with_weights(config: ModelConfig, weights: Weights | None = None) -> DualPathLM:
    """A float64 model with these weights, or with large random ones."""
    weights = weights or reference.random_weights(config, seed=0)
    return reference.load(DualPathLM(config).double(), weights)


def traced(
    model: DualPathLM, tokens: Tensor, *inputs: Tensor, **options: Any
) -> RoutingTrace:
    """The trace of a forward pass."""
    trace = RoutingTrace()
    forward(model, tokens, *inputs, trace=trace, **options)
    return trace


def streams(model: DualPathLM, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The residual stream before and after each block."""
    seen: list[tuple[Tensor, Tensor]] = []
    hooks = [
        block.register_forward_hook(lambda _, inputs, y: seen.append((inputs[0], y)))
        for block in model.blocks
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(p, q) for (a, p), (b, q) in pairs)


class Balanced(nn.Module):
    """A feed-forward with a loss: the mean square of the scale that it puts on its
    input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        if here.auxiliary is not None:
            here.auxiliary.loss = here.auxiliary.loss + self.scale.square().mean()
        return self.scale * x_BTD


def with_balanced(model: DualPathLM) -> tuple[DualPathLM, list[Balanced]]:
    """The model with a `Balanced` in both paths of its first block."""
    block = model.blocks[0]
    assert isinstance(block, DualPathBlock)
    balanced = [Balanced().to(model.embed.weight.dtype) for _ in range(2)]
    block.deep.sublayer.ffn, block.wide.sublayer.ffn = balanced
    return model, balanced
