"""Read-outs between a frozen model and its head, fitted on other text than is scored.

A model that was trained to read out K steps reads out fewer badly in two ways: the
state lacks what later steps add, and norm and head were never trained on it. A fitted
read-out mends the second alone. Of the head's input z,

    temperature    z / tau        logits divided by tau
    affine         z + M z + b    a map before the head, as of a tuned lens
                                  (arXiv 2303.08112)

Both begin as the identity. On three quarters of the text, L-BFGS with a strong Wolfe
line search minimises the mean nats per token plus c / 2 times the squared distance of
the numbers from the identity: a convex problem. c falls from `PENALTIES[0]`, each
solution begins at the one before it, and the loss of the last quarter chooses c, or the
identity. So no read-out is worse than the identity on either part.

Shapes: N tokens, D model width, V vocabulary.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.loss import NextTokenLoss
from dualpath_cli.study.bench import Arrays

PENALTIES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""c; the first that is worse on the last quarter than the one before ends a fit."""
MOST_STEPS = 50
"""Steps of L-BFGS for one penalty."""
TOLERANCE = 1e-4
"""Nats per token that the last step gains at most."""
FACTS: dict[str, Any] = {
    "optimizer": "L-BFGS, strong Wolfe, from the identity",
    "penalties": PENALTIES,
    "most_steps": MOST_STEPS,
    "tolerance": TOLERANCE,
}
"""The facts on fits in a report."""


class Temperature(nn.Module):
    """``z / tau``, by ``1 / tau``."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inverse = nn.Parameter(torch.ones(1))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * self.inverse


class Affine(nn.Module):
    """``z + M z + b``."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(d_model, d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + F.linear(z, self.matrix, self.bias)


READ_OUTS: dict[str, type[Temperature | Affine]] = {
    "temperature": Temperature,
    "affine": Affine,
}


@dataclass(frozen=True)
class Fit:
    """How a read-out was fitted; losses in nats per token of the text it is fitted
    on."""

    penalty: float  # the chosen c; infinite for the identity
    steps: int  # of L-BFGS for it
    converged: bool  # whether the last of them gained at most `TOLERANCE`
    loss_before: float
    loss: float


@dataclass
class Text:
    """The head's inputs (N, D), float32, and next tokens (N,) of a text."""

    states: torch.Tensor
    targets: torch.Tensor

    def nats(self, read_out: nn.Module, head_VD: torch.Tensor) -> torch.Tensor:
        """The sum over tokens, ()."""
        z_BND = read_out(self.states)[None]
        nll_BN: torch.Tensor = NextTokenLoss()(z_BND, head_VD, self.targets[None])
        return nll_BN.sum()


def fit(
    read_out: nn.Module, fitted: Text, validation: Text, head_VD: torch.Tensor
) -> Fit:
    """Fits a read-out in place on one text, by the penalty that is best on the
    other."""

    def nats(text: Text) -> float:
        with torch.no_grad():
            return float(text.nats(read_out, head_VD))

    tokens = len(fitted.targets) + len(validation.targets)
    lowest = nats(validation)
    before = (nats(fitted) + lowest) / tokens
    identity = [value.detach().clone() for value in read_out.parameters()]
    kept = copy.deepcopy(read_out.state_dict())
    chosen = (math.inf, 0, True)
    for penalty in PENALTIES:
        steps = _solve(read_out, fitted, head_VD, identity, penalty)
        loss = nats(validation)
        if not loss < lowest:
            break
        lowest = loss
        kept = copy.deepcopy(read_out.state_dict())
        chosen = (penalty, steps, steps < MOST_STEPS)

    read_out.load_state_dict(kept)
    after = (nats(fitted) + nats(validation)) / tokens
    return Fit(*chosen, before, after)


def _solve(
    read_out: nn.Module,
    text: Text,
    head_VD: torch.Tensor,
    identity: Sequence[torch.Tensor],
    penalty: float,
) -> int:
    """Minimises the penalised loss in place; returns the steps of L-BFGS."""
    optimizer = torch.optim.LBFGS(
        read_out.parameters(),
        max_iter=MOST_STEPS,
        max_eval=10 * MOST_STEPS,
        tolerance_change=TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        mean = text.nats(read_out, head_VD) / len(text.targets)
        for value, start in zip(read_out.parameters(), identity, strict=True):
            mean = mean + penalty / 2 * (value - start).square().sum()
        mean.backward()
        return mean

    with torch.enable_grad():
        optimizer.step(loss)
    (state,) = optimizer.state.values()
    steps: int = state["n_iter"]
    return steps


def fit_all(fitted: Text, validation: Text, head_VD: torch.Tensor) -> Arrays:
    """Fits each read-out; returns its numbers and those of its `Fit`, by name."""
    d_model = fitted.states.shape[-1]
    arrays = {}
    for name, kind in READ_OUTS.items():
        read_out = kind(d_model).to(head_VD.device)
        found = fit(read_out, fitted, validation, head_VD)
        for key, value in read_out.state_dict().items():
            arrays[f"{name}.{key}"] = value.cpu().numpy()
        for key, fact in asdict(found).items():
            arrays[f"{name}.{key}"] = np.array(fact)
    return arrays


def read_outs_of(arrays: Arrays, device: torch.device) -> dict[str, nn.Module]:
    """The read-outs whose numbers `fit_all` returned."""
    read_outs: dict[str, nn.Module] = {}
    for name, kind in READ_OUTS.items():
        # Every read-out has the size of its own numbers.
        read_out = kind(len(arrays["affine.bias"]))
        for key, parameter in read_out.named_parameters():
            parameter.data = torch.from_numpy(arrays[f"{name}.{key}"])
        read_outs[name] = read_out.to(device).requires_grad_(False)
    return read_outs


def facts_of(arrays: Arrays) -> dict[str, dict[str, Any]]:
    """The `Fit` of each read-out, and the temperature, for a report."""
    facts: dict[str, dict[str, Any]] = {}
    for name in READ_OUTS:
        fact = {
            field.name: arrays[f"{name}.{field.name}"].item() for field in fields(Fit)
        }
        # JSON has no infinity.
        is_identity = math.isinf(fact["penalty"])
        facts[name] = fact | {"penalty": None if is_identity else fact["penalty"]}
    inverse = arrays["temperature.inverse"].item()
    facts["temperature"]["temperature"] = 1 / inverse
    return facts
