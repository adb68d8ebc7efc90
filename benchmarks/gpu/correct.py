"""Whether the device computes the model, and its gradients: beside float64 on the CPU.

Small models of each kind with large random weights, so that all of each equation shows;
that the CPU computes the paper's equations is tested (tests/model/reference.py). TF32
is off.
"""

from typing import Any, get_args

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.step import TrainingStep
from benchmarks.results import Row, Rows
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.spec.config import BlockKind, ModelConfig
from tests.model import reference

KINDS: dict[str, dict[str, Any]] = {
    kind: {"block": kind} for kind in get_args(BlockKind)
}
KINDS |= {
    "dual with experts": {"n_experts": 2, "top_k": 2, "balance": "none"},
    "untied steps": {"untied_steps": True},
    "first keys": {"step_kv": "first"},
    "attention only": {"deep_ffn": False},
    "core": {
        "block": "wide",
        "core": [1, 1],
        "core_loops": 2,
        "injection": "linear",
        "core_combination": "router",
    },
}
"""What is checked, as changes to a dual model. Tokens take both experts, since rounding
may turn a choice, which is no mistake."""
LIMITS = {"float64": (1e-10, 1e-8), "float32": (1e-5, 1e-4), "bf16": (1e-2, 1e-1)}
"""Largest ‖difference‖ / ‖truth‖ of the losses, and of the gradients of each group of
parameters. With three seeds of the weights a CPU is off by at most 2.4e-7 and 3.8e-6 in
float32, by 3.1e-3 and 4.9e-2 under bf16 autocast, with the first four of KINDS."""


def eager(bench: Bench, kind: str) -> Rows:
    """A kind of block in each precision."""
    return {
        f"{precision}, {kind}": check(bench, kind, precision) for precision in LIMITS
    }


def check(bench: Bench, kind: str, precision: str) -> Row:
    """How far losses and gradients are off, and whether that is little enough."""
    width, length = bench.sizes.check_width, bench.sizes.check_len
    heads = max(1, width // 64)
    config = ModelConfig(
        vocab_size=128,
        n_layers=2,
        d_model=width,
        n_heads=heads,
        n_kv_heads=heads,
        max_seq_len=length,
        loops=3,
        d_ffn=width,
        d_ffn_wide=3 * width,
        ffn_multiple_of=16,
        **KINDS[kind],
    )
    tokens = reference.random_tokens(config, batch=2, length=length + 1)
    weights = reference.random_weights(config, seed=0)
    exact = reference.load(DualPathLM(config).double(), weights)
    truth = exact(tokens[:, :-1], tokens[:, 1:])
    truth.mean().backward()
    made = TrainingStep(bench, config, 2, "none", False, precision == "bf16")
    reference.load(
        made.model.double() if precision == "float64" else made.model, weights
    )
    losses = made.losses(tokens.to(bench.device))
    losses.mean().backward()
    # By group: a single gain's gradient may be a small difference of large numbers.
    groups: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for (name, got), wanted in zip(
        made.model.named_parameters(), exact.parameters(), strict=True
    ):
        groups.setdefault(kind_of(name).group, []).append((got.grad, wanted.grad))
    found = (
        relative([(losses.detach(), truth.detach())]),
        max(map(relative, groups.values())),
    )
    # nan never
    ok = all(off <= limit for off, limit in zip(found, LIMITS[precision], strict=True))
    limits = ", ".join(f"{limit:.0e}" for limit in LIMITS[precision])
    return {
        "losses off": found[0],
        "gradients off": found[1],
        "at most": limits,
        "right": ok,
    }


def relative(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """‖difference‖ / ‖truth‖ of several tensors together."""
    squares = [((a.double().cpu() - b) ** 2).sum() for a, b in pairs]
    return float((sum(squares) / sum((b**2).sum() for _, b in pairs)) ** 0.5)
