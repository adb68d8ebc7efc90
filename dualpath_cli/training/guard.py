"""Which optimizer steps are skipped, and whether all matrices get a gradient in the
first steps.

The global gradient norm alone decides. It is the same on all ranks (gradients are
averaged under `ddp`, the norm is summed over shards under `fsdp` and `hsdp`), and it is
not finite if a loss is not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dualpath_cli.run.weights import from_all_ranks, own_part

Kind = Literal["loss", "gradient", "outlier"]

# steps until all matrices must have a gradient; late behind a matrix of zeros
PATIENCE = 5
# steps in the running mean of the norm; the first HISTORY steps are no outliers
HISTORY = 100


@dataclass(frozen=True)
class BadStep:
    """A skipped step: the reason, and the mean loss of its micro-batches on this rank,
    ()."""

    kind: Kind
    loss: torch.Tensor


class StepGuard:
    """Judges each optimizer step by its gradient norm, and counts the skipped ones.

    Outliers are found in the norm's logarithm: norms scatter by factors and fall over
    orders of magnitude during a run, so that the largest norms would dominate a plain
    standard deviation. Mean and variance are over all steps seen, and exponential after
    HISTORY steps. An outlier enters them as the limit that it passed: a single outlier
    changes them little, and a norm that stays high becomes the usual level.
    """

    def __init__(self, sigma: float | None) -> None:
        """Outliers are `sigma` standard deviations above the mean; None finds none."""
        self.sigma = sigma
        self.in_a_row = 0
        """Consecutive steps skipped up to now."""
        self.skipped = 0
        """Steps skipped in the whole run."""
        self.unreported = 0
        """Steps skipped since `report`."""
        self.seen = 0
        self.mean = 0.0
        self.variance = 0.0

    def judge(self, norm: float) -> Kind | None:
        """Returns the reason to skip a step with this gradient norm, or None."""
        kind: Kind | None = None
        if not math.isfinite(norm):
            kind = "gradient"
        elif self.sigma is not None and norm > 0:
            limit = math.inf
            if self.seen >= HISTORY:
                limit = self.mean + self.sigma * math.sqrt(self.variance)
            if math.log(norm) > limit:
                kind = "outlier"
            self._see(min(math.log(norm), limit))
        if kind is None:
            self.in_a_row = 0
        else:
            self.in_a_row += 1
            self.skipped += 1
            self.unreported += 1
        return kind

    def _see(self, value: float) -> None:
        self.seen += 1
        weight = 1 / min(self.seen, HISTORY)
        gap = value - self.mean
        self.mean += weight * gap
        self.variance = (1 - weight) * (self.variance + weight * gap**2)

    def report(self) -> int:
        """Returns the number of steps skipped since the last call."""
        count, self.unreported = self.unreported, 0
        return count

    def state_dict(self) -> dict[str, Any]:
        """The state with which a continued run judges steps as if it had never
        stopped."""
        return {name: value for name, value in vars(self).items() if name != "sigma"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def largest_gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The largest absolute value in each gradient, over all ranks; gradients of None
    are left out.

    A gradient must be finite.
    """
    own = {}
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            part = own_part(parameter.grad)
            # Under fsdp a rank may hold no row of a small matrix.
            largest = (
                torch.linalg.vector_norm(part, torch.inf).item()
                if part.numel()
                else 0.0
            )
            own[name] = largest

    ranks = from_all_ranks(own)
    return {name: max(rank[name] for rank in ranks) for name in own}


def without_gradient(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters whose gradient is exactly zero on all ranks. A gradient of None does
    not count."""
    sizes = largest_gradients(parameters)
    return {name: p for name, p in parameters.items() if sizes.get(name) == 0}
