"""The steps of a deep path's loop, also of more or fewer than were trained, and halting per token.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dualpath_cli.config import ModelConfig
from dualpath_cli.model.halting import Enough


class Step(NamedTuple):
    """One application of the deep sublayer, step k."""

    number: int
    """k - 1."""
    gain_number: int
    """Place of its gain among the K trained ones: k - 1."""
    step_index: float
    """What the router is told about k: (k - 1) / (K - 1), or k / (K - 1) if it counts from one."""


def loop_steps(config: ModelConfig, forced: int | None = None) -> list[Step]:
    """The steps k = 1 .. K, or as many as are forced.

    With fewer than K steps the router's index still runs to 1 with the last of them. Beyond K the
    last gain repeats, and the index, which is that of K steps, stays 1.
    """
    trained = config.loops
    loops = trained if forced is None else forced
    first = 1 if config.step_index == "zero_based" else 0
    span = max(1, min(loops, trained) - 1)
    return [
        Step(k - 1, gain_number=min(k, trained) - 1, step_index=min(1.0, (k - first) / span))
        for k in range(1, loops + 1)
    ]


class Walk(NamedTuple):
    """What tokens did in a loop; each list has an entry for each step that was run."""

    states: list[torch.Tensor]
    """h_k, (B, T, D)."""
    weights: list[torch.Tensor]
    """Of the state in h_deep, (B, T, 1)."""
    active: list[torch.Tensor]
    """Who took the step, (B, T, 1)."""


@dataclass
class Loop:
    """A loop that tokens leave one by one."""

    next_state: Callable[[torch.Tensor, Step, torch.Tensor], torch.Tensor]
    """Of h_{k-1} (B, T, D) the step's h_k, where the mask (B, T, 1) is True; h_{k-1} elsewhere."""
    step_probability: Callable[[torch.Tensor, Step], torch.Tensor]
    """q_k of h_k, (B, T, 1)."""
    enough: Enough
    on_leaving: Callable[[torch.Tensor, torch.Tensor, Step], None] | None = None
    """Called with h_k, with who takes no further step, (B, T, 1), and with the step after k."""
    runs_all: bool = False
    """Whether all steps are run, also those that no token takes."""

    def walk(
        self,
        x_BTD: torch.Tensor,
        steps: Sequence[Step],
        awake_BT1: torch.Tensor | None = None,
        counts_BT1: torch.Tensor | None = None,
    ) -> Walk:
        """Takes steps until no token goes on, or they are over.

        A token that has stopped keeps its state, which the others go on seeing, and gave what
        remained to its last step. Where `awake_BT1` is False, it stops before the first one. Where
        `counts_BT1` is False, it stops as well, but does not keep the loop going.
        """
        walk = Walk([], [], [])
        h_BTD, active_BT1 = x_BTD, awake_BT1
        remaining_BT1 = torch.ones_like(x_BTD[..., :1])  # pi_k
        if active_BT1 is None:
            active_BT1 = torch.ones_like(remaining_BT1, dtype=torch.bool)
        elif self.on_leaving is not None:
            self.on_leaving(h_BTD, ~active_BT1, steps[0])
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            before_BTD, h_BTD = h_BTD, self.next_state(h_BTD, step, active_BT1)
            walk.states.append(h_BTD)
            walk.active.append(active_BT1)
            walk.weights.append(remaining_BT1)
            if following is None:
                break
            q_BT1 = self.step_probability(h_BTD, step)
            left_BT1 = remaining_BT1 * (1 - q_BT1)
            goes_on_BT1 = active_BT1 & ~self.enough(before_BTD, h_BTD, left_BT1)
            if self.on_leaving is not None:
                self.on_leaving(h_BTD, active_BT1 & ~goes_on_BT1, following)
            active_BT1 = goes_on_BT1
            walk.weights[-1] = torch.where(active_BT1, remaining_BT1 * q_BT1, remaining_BT1)
            remaining_BT1 = torch.where(active_BT1, left_BT1, 0)
            counted_BT1 = active_BT1 if counts_BT1 is None else active_BT1 & counts_BT1
            if not self.runs_all and not counted_BT1.any():
                walk.weights[-1] = walk.weights[-1] + remaining_BT1  # of tokens that do not count
                break
        return walk
