"""Example: the read-outs of one sequence, token by token, for figures, the page and the terminal.

Shapes: N tokens, L layers with gates, K loops, S = K + 3 states of a layer: its input, those of the
loops, of the wide path, its output, C experts that a token takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    """Weight of each step in h_deep, (N, L, K); so are those that follow."""
    step_sizes: Floats
    """‖h_k - h_{k-1}‖ / ‖h_{k-1}‖."""
    step_cosines: Floats
    """Of each step's update and the one before it; nan at k = 1."""
    length: int
    """Tokens of the whole sequence, of which these are the first."""
    experts: Floats | None = None
    """Numbers of the token's experts, (N, L, C), -1 in a layer that has none; None where no layer
    has any."""
    expert_weights: Floats | None = None
    """Their weights, (N, L, C)."""
    said: npt.NDArray[np.int32] | None = None
    """Ids of the next tokens that each state makes likeliest, (N, L, S, 3); the fields from here on
    are for the page."""
    shares: Floats | None = None
    """Their probabilities, (N, L, S, 3)."""
    next_ids: npt.NDArray[np.int32] | None = None
    """The token that really comes next, (N,); -1 where the text was cut."""
    next_nats: Floats | None = None
    """Its loss, (N,)."""
    costs: Floats | None = None
    """Nats that forcing adds to its loss, in all layers and in each, (N, 1 + L, F)."""

    def first(self, count: int) -> "Example":
        per_token: dict[str, Any] = {
            name: values[:count]
            for name, values in vars(self).items()
            if isinstance(values, tuple | np.ndarray)
        }
        return replace(self, **per_token)


@dataclass(frozen=True)
class Model:
    """One model's read-outs of the sequences of a page."""

    name: str
    steps: Sequence[int]
    """The steps of each layer with gates, (L,); K, the most of them, have columns."""
    examples: Sequence[Example]
    """The same sequences in the same order for every model of a page."""
    forced: Sequence[str] = ()
    """Names of the interventions in `Example.costs`, (F,)."""
    experts: Sequence[int] = ()
    """The experts of each layer with gates, (L,)."""


def share_reach(shares: Sequence[Floats]) -> float:
    """How far from one half colours should reach: 98 % of the shares are inside.

    From 0.05 to 0.5 in steps of 0.05; 0.5 where there is no share.
    """
    far = np.abs(np.concatenate([np.ravel(values) for values in shares]) - 0.5)
    if not np.isfinite(far).any():
        return 0.5
    return min(0.5, max(1, math.ceil(float(np.nanpercentile(far, 98)) * 20)) / 20)
