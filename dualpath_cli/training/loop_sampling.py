"""The number of loops of each optimizer step, if a recipe draws it (run.train_loops)."""

from dataclasses import dataclass

import torch

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.seeds import seed_from

GRAPHS_EACH = 4
"""Compiled graphs of a block for one number of loops, at most: by kind, with and without gradients,
and by the first length met."""


@dataclass(frozen=True)
class LoopSampling:
    """Draws K' for each step, all choices with equal probability, and forces it as `ablate` does.

    The draw depends on seed and step alone: ranks, micro-batches and continued runs agree on it.
    """

    choices: tuple[int, ...]
    seed: int

    def at(self, step: int) -> int:
        """K' of an optimizer step, from 0."""
        return self.choices[seed_from("train_loops", self.seed, step) % len(self.choices)]

    def intervention(self, step: int, config: ModelConfig) -> Intervention | None:
        """The intervention that forces K' of a step; None where it is the model's own K."""
        loops = self.at(step)
        return None if loops == config.loops else Intervention(loops=loops)

    def allow_graphs(self) -> None:
        """Lets torch.compile keep a graph for each K', and not fall back to eager execution."""
        config = torch.compiler.config
        config.recompile_limit = max(config.recompile_limit, GRAPHS_EACH * len(self.choices))
