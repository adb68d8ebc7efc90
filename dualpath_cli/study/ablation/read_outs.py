"""Read-outs between a frozen model and its head, fitted on other text than is scored.

A model that was trained to read out K steps reads out fewer badly in two ways: the
state lacks what later steps add, and norm and head were never trained on it. A fitted
read-out mends the second alone. Of the head's input z,

    temperature    z / tau        logits divided by tau
    affine         z + M z + b    a map before the head, as of a tuned lens
                                  (arXiv 2303.08112)

Both begin as the identity. L-BFGS with a strong Wolfe line search minimises the mean
nats per token, convex in 1 / tau, M and b, over three quarters of the text; the loss of
the last quarter says at which step to stop. So no read-out is worse than the identity
on either part.

Shapes: N tokens, D model width, V vocabulary.
"""

import copy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.loss import NextTokenLoss
from dualpath_cli.study.bench import Arrays

MOST_STEPS = 50
PATIENCE = 3
"""Steps without a lower loss on the last quarter that end a fit."""
LEAST_GAIN = 1e-5
"""Nats per token by which a loss is lower."""
FACTS: dict[str, Any] = {
    "optimizer": "L-BFGS, strong Wolfe, from the identity",
    "most_steps": MOST_STEPS,
    "patience": PATIENCE,
    "least_gain": LEAST_GAIN,
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

    steps: int  # those that are kept: the loss on the last quarter is lowest there
    converged: bool  # whether that loss stopped falling within MOST_STEPS
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
    read_out: nn.Module, fitted: Text, stopping: Text, head_VD: torch.Tensor
) -> Fit:
    """Fits a read-out in place on one text, as long as it helps on the other."""
    optimizer = torch.optim.LBFGS(
        read_out.parameters(), max_iter=1, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        mean: torch.Tensor = fitted.nats(read_out, head_VD) / len(fitted.targets)
        mean.backward()
        return mean

    def nats(text: Text) -> float:
        with torch.no_grad():
            return float(text.nats(read_out, head_VD))

    fitted_before = nats(fitted)
    stopping_before = nats(stopping)
    lowest = stopping_before
    kept = copy.deepcopy(read_out.state_dict())
    kept_step = 0
    converged = False
    for step in range(1, MOST_STEPS + 1):
        with torch.enable_grad():
            optimizer.step(loss)
        now = nats(stopping)
        if now < lowest - LEAST_GAIN * len(stopping.targets):
            lowest = now
            kept = copy.deepcopy(read_out.state_dict())
            kept_step = step
        elif step - kept_step >= PATIENCE:
            converged = True
            break

    read_out.load_state_dict(kept)
    tokens = len(fitted.targets) + len(stopping.targets)
    before = (fitted_before + stopping_before) / tokens
    after = (nats(fitted) + nats(stopping)) / tokens
    return Fit(kept_step, converged, before, after)


def fit_all(fitted: Text, stopping: Text, head_VD: torch.Tensor) -> Arrays:
    """Fits each read-out; returns its numbers and those of its `Fit`, by name."""
    d_model = fitted.states.shape[-1]
    arrays = {}
    for name, kind in READ_OUTS.items():
        read_out = kind(d_model).to(head_VD.device)
        found = fit(read_out, fitted, stopping, head_VD)
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
        facts[name] = {
            key: arrays[f"{name}.{key}"].item()
            for key in ("steps", "converged", "loss_before", "loss")
        }
    inverse = arrays["temperature.inverse"].item()
    facts["temperature"]["temperature"] = 1 / inverse
    return facts
