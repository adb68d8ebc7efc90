"""Tries a model's custom classes on a few tokens: their faults would show late, or not at all.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from typing import Any, get_args

import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.spec.config import LayerConfig, ModelConfig, ParameterGroup
from dualpath_cli.spec.own_checks import explained, on_meta, start_of
from dualpath_cli.spec.own_classes import Role, Start, own_kind, own_roles

KINDS = list(product(get_args(ParameterGroup), get_args(Start)))
BATCH, LENGTH = 2, 3
_close = partial(torch.allclose, atol=1e-4)  # two ways to the same number


def try_classes(config: ModelConfig) -> None:
    """Tries each class in float32 on the CPU; the first fault is a UserError."""
    for layer in dict.fromkeys(config.layers):
        for role in own_roles(layer):
            module = on_meta(layer, role).to_empty(device="cpu")
            with explained(start_of(layer, role), "forward on a few tokens"):
                for fault in _faults(role, module, layer):
                    raise UserError(f"{start_of(layer, role)}: {fault}")


def _faults(role: Role, module: Any, config: LayerConfig) -> Iterator[str]:
    named = dict(module.named_parameters())
    for pattern, kind in dict(getattr(type(module), "parameter_kinds", {})).items():
        if not any(fnmatchcase(name, pattern) for name in named):
            yield f"parameter_kinds has '{pattern}', which none of its parameters is: {[*named]}"
        if kind not in KINDS:
            yield f"parameter_kinds['{pattern}'] must be one of docs/custom.md's, not {kind!r:.60}"
    generator = torch.Generator().manual_seed(0)
    for noise in (0, 0.01):  # zeros, from which weights may start, would hide what they do
        for name, parameter in named.items():
            begin = own_kind(name, type(module), role, parameter.ndim).start
            std = 0.02 if begin.startswith("normal") else noise
            constant = {"gain_init": config.gain_init, "one": 1.0}.get(begin, 0.0)
            parameter.data = constant + std * torch.randn(parameter.shape, generator=generator)
        for count in (2,) if role == "gate" else (config.loops, config.loops + 1):
            yield from _faults_of_weights(role, module, config, count)


def _faults_of_weights(role: Role, module: Any, config: LayerConfig, count: int) -> Iterator[str]:
    """The faults of two gates, or of the weights of as many steps."""
    indices = config.step_indices(count) if role == "combination" else []

    def weigh(h_KBTD: torch.Tensor) -> list[torch.Tensor]:
        return list(module(h_KBTD[0]) if role == "gate" else module(list(h_KBTD), indices))

    generator = torch.Generator().manual_seed(0)
    h_KBTD = torch.randn(count, BATCH, LENGTH, config.d_model, generator=generator)
    weights = weigh(h_KBTD)
    shapes = [tuple(getattr(weight, "shape", ())) for weight in weights]
    if shapes != [(BATCH, LENGTH, 1)] * count:
        yield f"forward must give {count} tensors of (B, T, 1) = {(BATCH, LENGTH, 1)}, not {shapes}"
    if not all(weight.isfinite().all() for weight in weights):
        yield "forward gives no finite numbers; parameter_kinds says what weights start from"
    if not all(map(_close, [w[1:, 1:2] for w in weights], weigh(h_KBTD[:, 1:, 1:2]))):
        yield "what a token gets must follow from its own states alone, as caches keep no others"
    module.zero_grad()
    total = torch.stack([(w * (k + 1)).square().sum() for k, w in enumerate(weights)]).sum()
    if total.requires_grad:
        total.backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            yield f"parameter {name} gets no gradient, for which DDP would wait; use it"
    if role == "gate":
        return
    if not _close(torch.stack(weights).sum(0), torch.ones(BATCH, LENGTH, 1)):
        yield "the weights of a token's steps must sum to 1, or no mean of steps is one"
    if hasattr(module, "step_probability"):
        left_BT1 = torch.ones(BATCH, LENGTH, 1)
        for weight, h_BTD, index in zip(weights, h_KBTD, indices[:-1], strict=False):
            share_BT1 = left_BT1 * module.step_probability(h_BTD, index)
            if not _close(weight, share_BT1):
                yield "forward must weigh steps by step_probability, of what earlier ones left"
            left_BT1 = left_BT1 - share_BT1
