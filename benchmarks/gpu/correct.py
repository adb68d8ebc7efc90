"""Part `correct`: whether the device computes the model that the equations say, and its gradients.

Small models of each kind with large random weights, so that all of each equation shows. The truth
is float64: the reference written from the equations (tests/model/reference.py) for a few tokens,
the model itself on the CPU for more. TF32 is off.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

import torch

from benchmarks.gpu.parts import Bench, Cell, Part, Row, number
from benchmarks.gpu.training import TrainingStep, Variant
from dualpath_cli.config import BlockKind, ModelConfig
from dualpath_cli.model import DualPathLM, loss
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.output.table import Column
from tests.model import reference

MODELS: dict[str, dict[str, Any]] = {kind: {"block": kind} for kind in get_args(BlockKind)}
MODELS["dual with experts"] = {"n_experts": 2, "top_k": 2, "balance": "none"}
"""What is checked, as changes to a dual model. Tokens take both experts, since rounding may turn a
choice, which is no mistake."""
Limits = tuple[float, float]
"""Largest difference of losses or logits, and of gradients."""
EQUATIONS: Limits = (1e-10, 1e-8)
"""Of float64 results, relative to the largest entry, as in the tests of the model."""
FLOAT32: Limits = (1e-5, 1e-4)
"""As ‖difference‖ / ‖truth‖: of the losses, and of the gradients of each group of parameters. With
three seeds of the weights a CPU is off by at most 2.4e-7 and 3.8e-6."""
BFLOAT16: Limits = (1e-2, 1e-1)
"""The same under bf16 autocast, where a CPU is off by at most 3.1e-3 and 4.9e-2."""

TINY = ModelConfig(
    vocab_size=13, n_layers=2, d_model=12, n_heads=2, n_kv_heads=2, max_seq_len=8, loops=2,
    d_ffn=17, d_ffn_wide=31, ffn_multiple_of=4,
)  # fmt: skip


class Outcome(NamedTuple):
    """Losses (B, T) of a model, and its gradients by name, in float64 on the CPU."""

    losses: torch.Tensor
    gradients: dict[str, torch.Tensor]


def equations(bench: Bench, kind: str) -> Row:
    """The model in float64 on the device, beside the reference from the equations."""
    config = dataclasses.replace(TINY, **MODELS[kind])
    weights = reference.random_weights(config, seed=0)
    tokens = reference.random_tokens(config, batch=2, length=5)
    learned = {name: value.clone().requires_grad_() for name, value in weights.items()}
    expected = reference.logits(learned, config, tokens)
    weighting = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    (expected * weighting).sum().backward()
    model = reference.load(DualPathLM(config).double(), weights).to(bench.device)
    logits = model(tokens.to(bench.device))
    (logits * weighting.to(bench.device)).sum().backward()
    worst = 0.0
    for name, parameter in model.named_parameters():
        truth = learned[name].grad
        worst = max(worst, reference.difference(parameter.grad.cpu().view_as(truth), truth))
    return verdict(reference.difference(logits.detach().cpu(), expected), worst, EQUATIONS)


def outcome(model: DualPathLM, tokens: torch.Tensor, autocast: bool = False) -> Outcome:
    """Runs a model forward and backward on tokens (B, T + 1)."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=autocast):
        losses = model(tokens[:, :-1], tokens[:, 1:])
    losses.mean().backward()
    gradients = {name: p.grad.double().cpu() for name, p in model.named_parameters()}
    return Outcome(losses.detach().double().cpu(), gradients)


def off(got: Outcome, truth: Outcome) -> tuple[float, float]:
    """‖difference‖ / ‖truth‖ of losses, and of the group of parameters that is farthest off.

    By group: a single gain's gradient may be a small difference of large numbers.
    """

    def relative(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        gap = sum(((a - b) ** 2).sum() for a, b in parts) / sum((b**2).sum() for _, b in parts)
        return float(gap**0.5)

    groups: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, gradient in truth.gradients.items():
        groups.setdefault(kind_of(name).group, []).append((got.gradients[name], gradient))
    return relative([(got.losses, truth.losses)]), max(map(relative, groups.values()))


def verdict(losses: float, gradients: float, limits: Limits) -> Row:
    """A row; a difference that is no number is above any limit."""
    ok = losses <= limits[0] and gradients <= limits[1]
    return {"losses": losses, "gradients": gradients, "limits": limits, "ok": ok}


EAGER: dict[str, Any] = {"compile": False, "checkpointing": "none"}

PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": EAGER,
    "float32, loss in chunks": EAGER | {"max_logits": 128 * 50},
    "bf16": EAGER | {"bfloat16": True},
    "float32, compiled": {"checkpointing": "none"},
    "bf16, compiled": {"bfloat16": True},
    "float32, compiled, selective": {"checkpointing": "selective"},
    "float32, compiled, full": {"checkpointing": "full"},
}
"""The steps that are compared with float64, as changes to a float32 step."""
DUAL_ALONE = {"float32, compiled, selective", "float32, compiled, full"}
"""Compared with dual blocks alone."""


def precision(bench: Bench, kind: str, name: str) -> Row:
    """The model on the device at a precision, compiled or not, beside float64 on the CPU."""
    width, length = bench.sizes.check_width, bench.sizes.check_len
    heads = max(1, width // 64)
    config = ModelConfig(
        vocab_size=128, n_layers=2, d_model=width, n_heads=heads, n_kv_heads=heads,
        max_seq_len=length, loops=3, d_ffn=width, d_ffn_wide=3 * width, ffn_multiple_of=16,
        **MODELS[kind],
    )  # fmt: skip
    tokens = reference.random_tokens(config, batch=2, length=length + 1)
    weights = reference.random_weights(config, seed=0)
    truth = outcome(reference.load(DualPathLM(config).double(), weights), tokens)
    variant = Variant(2, **{"bfloat16": False, **PRECISIONS[name]})
    step = TrainingStep(bench, config, variant)
    reference.load(step.model, weights)
    with patch.object(loss, "MAX_LOGITS", variant.max_logits):
        got = outcome(step.model, tokens.to(bench.device), autocast=variant.bfloat16)
    step.check_compiled()
    return verdict(*off(got, truth), BFLOAT16 if variant.bfloat16 else FLOAT32)


def cells(bench: Bench) -> dict[str, Cell]:
    """A cell for each check and kind of block: equations first, compiled graphs last.

    Checkpointing with dual blocks alone, which have all there is; compiling takes its time.
    """
    checks = {"float64, equations": equations}
    checks |= {name: partial(precision, name=name) for name in PRECISIONS}
    asked = {
        f"{name}, {kind}": partial(check, bench, kind=kind)
        for name, check in checks.items()
        for kind in (["dual"] if name in DUAL_ALONE else MODELS)
    }
    return {name: lambda name=name, check=check: {name: check()} for name, check in asked.items()}


PART = Part(
    "correct",
    "computed on the device",
    [
        number("losses off by", "losses", ".1e"),
        number("gradients off by", "gradients", ".1e"),
        (Column("at most"), lambda row: ", ".join(f"{limit:.0e}" for limit in row["limits"])),
        (Column(""), lambda row: "right" if row["ok"] else "wrong"),
    ],
    cells,
)
