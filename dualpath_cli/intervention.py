"""Intervention: what one forward pass does instead of what the model has learned.

Plain data and torch-free: studies choose interventions, the model carries them out.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dualpath_cli.config import ModelConfig

LEARNED = "learned"
SHUFFLED: Literal["shuffled"] = "shuffled"


@dataclass(frozen=True)
class Intervention:
    """A row of the paper's inference-time ablations (table `ablations`), or several in one.

    The default changes nothing.

    Raises:
        ValueError: for a field that means nothing.
    """

    loops: int | None = None
    """K', the steps that every deep path runs instead of the trained K. The last one takes the
    remaining mass. Below K the router's step index is rescaled to K' steps; above K it stays that
    of K steps and at most 1, and the K-th gain repeats."""
    gates: tuple[float, float] | Literal["shuffled"] | None = None
    """(g_d, g_w) of every token in every dual block; or `shuffled`: the learned values of g_d, and
    independently those of g_w, permuted over the positions of each sequence, anew in each layer."""
    seed: int = 0
    """Seed of the permutations."""
    halting: float | None = None
    """Threshold: a token whose remaining mass is at or below it after a step stops there. That step
    takes what is left, and the later steps of other tokens see its state as it was then."""
    layers: tuple[int, ...] | None = None
    """Layers, from 0 on, that all this applies to; None: every one."""
    tokens: str | None = None
    """Name of a class of tokens, which `token_mask` gives: gates are overridden there alone."""

    def __post_init__(self) -> None:
        if self.loops is not None and (type(self.loops) is not int or self.loops < 1):
            raise ValueError(f"loops must be a whole number from 1 on, not {self.loops!r}")
        if self.gates is not None and self.gates != SHUFFLED:
            pair = isinstance(self.gates, tuple) and len(self.gates) == 2
            if not pair or not all(_is_fraction(value) for value in self.gates):
                raise ValueError(
                    f"gates must be (g_d, g_w), each from 0 to 1, or 'shuffled', not {self.gates!r}"
                )
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"seed must be a whole number from 0 on, not {self.seed!r}")
        if self.halting is not None and not _is_fraction(self.halting):
            raise ValueError(f"halting must be a number from 0 to 1, not {self.halting!r}")
        if self.layers is not None and not _are_layers(self.layers):
            raise ValueError(
                f"layers must be a tuple of numbers from 0 on in growing order, not {self.layers!r}"
            )
        alone = self.loops is None and self.halting is None
        if self.tokens is not None and not (alone and isinstance(self.gates, tuple)):
            raise ValueError(
                f"tokens='{self.tokens}' goes with constant gates alone: all tokens share the loop"
            )

    @property
    def name(self) -> str:
        """A short name: `learned`, `K=3`, `gates=1,0`, `shuffled`, with a seed `shuffled:7`.

        Also `halting=0.1`; what it is limited to follows: `gates=0,1 layers=0,2 tokens=arithmetic`.
        """
        parts = [] if self.loops is None else [f"K={self.loops}"]
        if self.gates == SHUFFLED:
            parts.append(f"{SHUFFLED}:{self.seed}" if self.seed else SHUFFLED)
        elif self.gates is not None:
            parts.append("gates=" + ",".join(f"{value:g}" for value in self.gates))
        if self.halting is not None:
            parts.append(f"halting={self.halting:g}")
        if self.layers is not None and parts:
            parts.append("layers=" + ",".join(map(str, self.layers)))
        if self.tokens is not None:
            parts.append(f"tokens={self.tokens}")
        return " ".join(parts) or LEARNED

    def within(self, layer: int) -> "Intervention | None":
        """The intervention where it applies to a layer, from 0; else None."""
        return self if self.layers is None or layer in self.layers else None

    def problem(self, config: ModelConfig) -> str | None:
        """Why this makes no sense for a model, as the end of a sentence; None if it does."""
        if self.layers is not None and self.layers[-1] >= config.n_layers:
            return f"the model has no layer {self.layers[-1]}: they go up to {config.n_layers - 1}"
        kinds = [config.block_kinds[layer] for layer in self.layers or range(config.n_layers)]
        place = "the model" if self.layers is None else "that part of the model"
        if self.gates is not None and "dual" not in kinds:
            return f"{place} has no dual block, so it has no gates"
        if self.loops is not None or self.halting is not None:
            if set(kinds) == {"wide"}:
                return f"{place} has only wide blocks, so it has no loop"
            if config.loops == 1 and config.combination == "router" and (self.loops or 1) > 1:
                return "the model was trained with one loop, so it has no router to weigh more"
        if self.halting is not None and not config.routes_steps:
            return "the model has no router, so no mass remains that a threshold could be for"
        return None


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1


def _are_layers(layers: object) -> bool:
    if not isinstance(layers, tuple) or not layers:
        return False
    return all(type(n) is int and n >= 0 for n in layers) and list(layers) == sorted(set(layers))
