"""Example: the read-outs of one sequence, token by token, for figures, the page and the terminal.

Shapes: N tokens, L layers with gates, K loops.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Example:
    """A sequence's tokens and what each dual layer did with them."""

    source: str
    number: int
    """Its place among the source's sequences, from 0 on."""
    tokens: tuple[str, ...]
    """The text of each token, (N,), as `tokens.token_texts` has it."""
    upos: tuple[str, ...] | None
    """The universal part of speech of each token, (N,); None where nothing was tagged."""
    nats: Floats
    """Loss of each token, given those before it, (N,)."""
    gate_deep: Floats
    """g_d, (N, L); so are those that follow."""
    gate_wide: Floats
    update_deep: Floats
    """‖Δ_d‖."""
    update_wide: Floats
    cosine: Floats
    deep_share: Floats
    step_weights: Floats
    """Weight of each step in h_deep, (N, L, K)."""
    length: int
    """Tokens of the whole sequence, of which these are the first."""

    def first(self, count: int) -> "Example":
        """Returns the example cut to its first tokens."""
        arrays = {
            name: getattr(self, name)[:count]
            for name in (
                "tokens", "nats", "gate_deep", "gate_wide", "update_deep", "update_wide", "cosine",
                "deep_share", "step_weights",
            )
        }  # fmt: skip
        upos = None if self.upos is None else self.upos[:count]
        return Example(self.source, self.number, upos=upos, length=self.length, **arrays)


def share_reach(shares: Sequence[Floats]) -> float:
    """How far from one half colours should reach: 98 % of the shares are inside.

    From 0.05 to 0.5 in steps of 0.05; 0.5 where there is no share.
    """
    far = np.abs(np.concatenate([np.ravel(values) for values in shares]) - 0.5)
    if not np.isfinite(far).any():
        return 0.5
    return min(0.5, max(1, math.ceil(float(np.nanpercentile(far, 98)) * 20)) / 20)
