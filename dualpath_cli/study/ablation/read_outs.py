"""Read-outs between a frozen model and its head, fitted on other text than is scored.

A model that was trained to read out K steps reads out fewer badly in two ways: the
state lacks what later steps add, and norm and head were never trained on it. A fitted
read-out repairs only the second. Of the head's input z,

    temperature    z / tau        logits divided by tau
    affine         z + M z + b    a map before the head, as of a tuned lens
                                  (arXiv 2303.08112)

Both begin as the identity. L-BFGS with a strong Wolfe line search minimises the mean
nats per token plus c / 2 times the squared distance of the numbers from the identity, a
convex problem, so that no read-out is worse than the identity on its own text. With
c = 1 / N for the temperature and D / N for the map, this is the most probable read-out
under a normal prior around the identity, whose changes of z are about as large as z. So
c is not tuned on any text, and is the same for all rows of a source.

Shapes: N tokens, D model width, V vocabulary.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.model.loss import NextTokenLoss
from dualpath_cli.study.bench import Arrays

MOST_STEPS = 100
"""Steps of L-BFGS."""
TOLERANCE = 1e-5
"""L-BFGS stops when a step gains less than this, in nats per token."""
FACTS: dict[str, Any] = {
    "optimizer": "L-BFGS, strong Wolfe, from the identity",
    "penalty": "1 / tokens of a temperature, d_model / tokens of an affine map",
    "most_steps": MOST_STEPS,
    "tolerance": TOLERANCE,
}
"""The facts on fits in a report."""


class Temperature(nn.Module):
    """``z / tau``, by ``1 / tau``."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        # float32, whatever default Lightning sets by the precision.
        self.inverse = nn.Parameter(torch.ones(1, dtype=torch.float32))
        self.inputs = 1  # of each number that it returns

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * self.inverse


class Affine(nn.Module):
    """``z + M z + b``."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(d_model, d_model, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(d_model, dtype=torch.float32))
        self.inputs = d_model

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + F.linear(z, self.matrix, self.bias)


READ_OUTS: dict[str, type[Temperature | Affine]] = {
    "temperature": Temperature,
    "affine": Affine,
}


@dataclass(frozen=True)
class ReadOutFit:
    """How a read-out was fitted; losses in nats per token of the text it is fitted
    on."""

    steps: int  # of L-BFGS
    converged: bool  # whether L-BFGS stopped before `MOST_STEPS`
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
    read_out: Temperature | Affine, text: Text, head_VD: torch.Tensor
) -> ReadOutFit:
    """Fits a read-out in place."""
    tokens = len(text.targets)
    penalty = read_out.inputs / tokens
    identity = [value.detach().clone() for value in read_out.parameters()]
    optimizer = torch.optim.LBFGS(
        read_out.parameters(),
        max_iter=MOST_STEPS,
        max_eval=10 * MOST_STEPS,
        tolerance_change=TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        mean = text.nats(read_out, head_VD) / tokens
        for value, start in zip(read_out.parameters(), identity, strict=True):
            mean = mean + penalty / 2 * (value - start).square().sum()
        mean.backward()
        return mean

    def nats_per_token() -> float:
        with torch.no_grad():
            return text.nats(read_out, head_VD).item() / tokens

    before = nats_per_token()
    with torch.enable_grad():
        optimizer.step(loss)
    (state,) = optimizer.state.values()
    steps: int = state["n_iter"]
    return ReadOutFit(steps, steps < MOST_STEPS, before, nats_per_token())


def fit_all(text: Text, head_VD: torch.Tensor) -> Arrays:
    """Fits each read-out; returns its numbers, and facts of the fit, by name."""
    d_model = text.states.shape[-1]
    arrays = {}
    for name, kind in READ_OUTS.items():
        read_out = kind(d_model).to(head_VD.device)
        found = fit(read_out, text, head_VD)
        for key, value in read_out.state_dict().items():
            arrays[f"{name}.{key}"] = value.cpu().numpy()
        for key, fact in asdict(found).items():
            arrays[f"{name}.{key}"] = np.array(fact)
    return arrays


def read_outs_of(arrays: Arrays, device: torch.device) -> dict[str, nn.Module]:
    """The read-outs whose numbers `fit_all` returned."""
    d_model = len(arrays["affine.bias"])
    read_outs: dict[str, nn.Module] = {}
    for name, kind in READ_OUTS.items():
        read_out = kind(d_model)
        numbers = {
            key: torch.from_numpy(arrays[f"{name}.{key}"])
            for key in read_out.state_dict()
        }
        read_out.load_state_dict(numbers)
        read_outs[name] = read_out.to(device).requires_grad_(False)
    return read_outs


def facts_of(arrays: Arrays) -> dict[str, dict[str, Any]]:
    """The `ReadOutFit` of each read-out, and the temperature, for a report."""
    facts: dict[str, dict[str, Any]] = {}
    for name in READ_OUTS:
        facts[name] = {
            field.name: arrays[f"{name}.{field.name}"].item()
            for field in fields(ReadOutFit)
        }
    inverse = arrays["temperature.inverse"].item()
    facts["temperature"]["temperature"] = 1 / inverse
    return facts
