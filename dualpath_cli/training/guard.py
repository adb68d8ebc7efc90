"""Which optimizer steps are skipped, and whether all matrices train.

Only the global gradient norm decides. It is the same on all ranks (gradients are
averaged under `ddp`, the norm is summed over shards under `fsdp` and `hsdp`), and it is
not finite if a loss is not.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dualpath_cli.run.weights import from_all_ranks, own_part

SkipReason = Literal["loss", "gradient", "outlier"]

# steps until all matrices must have a gradient; late behind a matrix of zeros
PATIENCE = 5
# steps in the running mean of the norm; the first HISTORY steps are not outliers
HISTORY = 100


@dataclass(frozen=True)
class BadStep:
    """A skipped step: the reason, and this rank's mean loss, ()."""

    kind: SkipReason
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

    def judge(self, norm: float) -> SkipReason | None:
        """Returns the reason to skip a step with this gradient norm, or None."""
        reason = self._reason(norm)
        if reason is None:
            self.in_a_row = 0
        else:
            self.in_a_row += 1
            self.skipped += 1
            self.unreported += 1
        return reason

    def _reason(self, norm: float) -> SkipReason | None:
        if not math.isfinite(norm):
            return "gradient"
        if self.sigma is None or norm <= 0:
            return None

        size = math.log(norm)
        limit = math.inf
        if self.seen >= HISTORY:
            limit = self.mean + self.sigma * math.sqrt(self.variance)

        # An outlier enters the statistics as the limit that it passed.
        self._see(min(size, limit))
        return "outlier" if size > limit else None

    def _see(self, value: float) -> None:
        self.seen += 1
        weight = 1 / min(self.seen, HISTORY)
        gap = value - self.mean
        self.mean += weight * gap
        self.variance = (1 - weight) * (self.variance + weight * gap**2)

    def report(self) -> int:
        """Returns the number of steps skipped since the last call."""
        count = self.unreported
        self.unreported = 0
        return count

    def state_dict(self) -> dict[str, Any]:
        """The state with which a continued run judges as if it had never stopped."""
        return {name: value for name, value in vars(self).items() if name != "sigma"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def joined_names(names: Iterable[str]) -> str:
    """The names of weights for a message, those of all layers as one."""
    return ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in names}))


def largest_gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The largest absolute value in each gradient, over all ranks.

    Gradients of None are left out. A gradient must be finite.
    """
    own = {}
    for name, parameter in parameters.items():
        if parameter.grad is None:
            continue

        # Under fsdp a rank may have no row of a small matrix.
        part = own_part(parameter.grad)
        own[name] = 0.0
        if part.numel():
            own[name] = torch.linalg.vector_norm(part, torch.inf).item()

    ranks = from_all_ranks(own)
    return {name: max(rank[name] for rank in ranks) for name in own}


def without_gradient(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters whose gradient is exactly zero on all ranks.

    A gradient of None does not count.
    """
    sizes = largest_gradients(parameters)
    return {name: p for name, p in parameters.items() if sizes.get(name) == 0}
