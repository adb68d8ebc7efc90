"""Tokens that leave a path, by their gate, or its loop, by the mass that the router leaves.

Shapes: B batch, T positions, R some rows of the batch, D model width, K loops.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dualpath_cli.decoding.cache import (
    CachedSublayerPass,
    KeysAndValues,
    KeyValueCache,
    LayerCache,
    RowsOfCache,
)
from dualpath_cli.decoding.positions import rows_of
from dualpath_cli.model.deep_path import DeepPath, mixture
from dualpath_cli.model.layer_pass import LayerPass
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.sublayer import Scales, Sublayer


class EarlyExit:
    """The loop of a deep path that tokens leave; each step is computed for all of them.

    A token that has stopped keeps its state, which the others go on seeing, and gives what remained
    of its step weights to its last step. With a cache all steps are run, also where every token has
    stopped: a later one may go on further, and asks for their keys and values.
    """

    def __init__(self, path: DeepPath, layer: LayerPass, cache: LayerCache | None) -> None:
        self.path, self.layer, self.cache = path, layer, cache
        self.step_indices = path.config.step_indices(layer.loops)
        self.loops = len(self.step_indices)
        self.threshold = None if layer.intervention is None else layer.intervention.halting
        """A token stops once at most this mass remains; None: never."""

    def run(self, x_BTD: torch.Tensor, awake_BT1: torch.Tensor | None) -> torch.Tensor:
        """h_deep, (B, T, D); where `awake_BT1` is False, no step is taken and x comes out."""
        active_BT1 = torch.ones_like(x_BTD[..., :1], dtype=torch.bool)
        if awake_BT1 is not None:
            active_BT1 = awake_BT1
            self.leave(x_BTD, ~awake_BT1, 1)
        h_BTD, remaining_BT1 = x_BTD, torch.ones_like(x_BTD[..., :1])  # h_0 and pi_1
        states, taken, weights = [], [], []
        for k, step_index in enumerate(self.step_indices, 1):
            h_BTD = self.next_state(h_BTD, k, active_BT1)
            states.append(h_BTD)
            taken.append(active_BT1)
            weights.append(remaining_BT1)
            if k == self.loops:
                break
            if self.threshold is not None:
                q_BT1 = self.step_probability(h_BTD, step_index)
                left_BT1 = remaining_BT1 * (1 - q_BT1)
                goes_on_BT1 = active_BT1 & (left_BT1 > self.threshold)
                self.leave(h_BTD, active_BT1 & ~goes_on_BT1, k + 1)
                active_BT1 = goes_on_BT1
                weights[-1] = torch.where(active_BT1, remaining_BT1 * q_BT1, remaining_BT1)
                remaining_BT1 = torch.where(active_BT1, left_BT1, 0)
            if self.may_end and not self.counted(active_BT1).any():
                weights[-1] = weights[-1] + remaining_BT1  # of tokens that do not count
                break
        if self.threshold is None:
            weights = self.weights_of_awake(states, taken[0])
        if self.layer.trace is not None:
            self.layer.trace.record_steps(x_BTD, states, weights, self.loops, taken)
        return mixture(weights, states)

    @property
    def may_end(self) -> bool:
        """Whether no further step is run once no token takes it."""
        return self.cache is None

    def next_state(self, h_BTD: torch.Tensor, k: int, active_BT1: torch.Tensor) -> torch.Tensor:
        """h_k, (B, T, D), where `active_BT1` is True; elsewhere h_{k-1}, which is given."""
        return torch.where(active_BT1, self.path.next_state(h_BTD, k, self.layer), h_BTD)

    def leave(self, h_BTD: torch.Tensor, who_BT1: torch.Tensor, k: int) -> None:
        """Takes note of the tokens that stop before step k, with the state h."""

    def counted(self, active_BT1: torch.Tensor) -> torch.Tensor:
        """The active tokens that keep the loop running, (B, T, 1)."""
        mask_BT = self.layer.token_mask
        return active_BT1 if mask_BT is None else active_BT1 & mask_BT[..., None]

    def step_probability(self, h_BTD: torch.Tensor, step_index: float) -> torch.Tensor:
        """The part q_k of the remaining mass that a step's state gets, (B, T, 1)."""
        router: Any = self.path.router
        with torch.autocast(h_BTD.device.type, enabled=False):
            q_BT1: torch.Tensor = router.step_probability(
                h_BTD.to(self.path.gains.dtype), step_index
            )
        return q_BT1

    def weights_of_awake(
        self, states: Sequence[torch.Tensor], awake_BT1: torch.Tensor
    ) -> list[torch.Tensor]:
        """The weight of each state, (B, T, 1), where a token takes all steps or none of them.

        One that takes none has the same state in all of them, and the first one weighs 1.
        """
        weights = self.path.step_weights(states, self.step_indices[: len(states)])
        zero_BT1 = torch.zeros_like(weights[0])
        first, *others = [zero_BT1] * (len(states) - len(weights)) + weights
        return [
            torch.where(awake_BT1, first, 1),
            *(torch.where(awake_BT1, weight, 0) for weight in others),
        ]


class EarlyExitOfRows(EarlyExit):
    """The same loop for the next token of each sequence, computed for those that go on.

    One that has stopped leaves each later step the keys and values of its last state.
    """

    may_end = True

    def next_state(self, h_BTD: torch.Tensor, k: int, active_BT1: torch.Tensor) -> torch.Tensor:
        """h_k, (B, 1, D), where `active_BT1` is True; elsewhere h_{k-1}, which is given."""
        here = self.layer.step(k)
        assert isinstance(here, CachedSublayerPass)
        return only_some(self.path.sublayer, h_BTD, active_BT1[:, 0, 0], self.path.scales(k), here)

    def leave(self, h_BTD: torch.Tensor, who_BT1: torch.Tensor, k: int) -> None:
        """Keeps what tokens to come see, from step k on, of those that stop before it."""
        assert self.cache is not None
        later = range(k, self.loops + 1)
        alike = self.path.config.step_conditioning == "none"  # one pair serves all steps
        for steps in [later] if alike else [[j] for j in later]:
            scales, caches = self.path.scales(steps[0]), (self.cache.step(j - 1) for j in steps)
            keep(
                self.path.sublayer, h_BTD, who_BT1[:, 0, 0], scales, self.layer.positions, caches
            )  # fmt: skip

    def counted(self, active_BT1: torch.Tensor) -> torch.Tensor:
        """All active tokens: a row that is not computed costs nothing."""
        return active_BT1


def only_some(
    sublayer: Sublayer,
    x_B1D: torch.Tensor,
    chosen_B: torch.Tensor,
    scales: Scales,
    here: CachedSublayerPass,
) -> torch.Tensor:
    """Maps the next tokens of a batch, (B, 1, D), where `chosen_B` is True.

    Of the others, which stay as they are, nothing is computed or kept.
    """
    (rows_R,) = chosen_B.nonzero(as_tuple=True)
    if len(rows_R) == 0:
        return x_B1D
    if len(rows_R) < len(x_B1D):
        assert isinstance(here.cache, KeyValueCache)
        part = RowsOfCache(here.cache, rows_R)
        here = replace(here, positions=rows_of(here.positions, rows_R), cache=part)
        return x_B1D.index_copy(0, rows_R, sublayer(x_B1D[rows_R], scales, here))
    y_B1D: torch.Tensor = sublayer(x_B1D, scales, here)
    return y_B1D


def keep(
    sublayer: Sublayer,
    x_B1D: torch.Tensor,
    chosen_B: torch.Tensor,
    scales: Scales,
    positions: Positions,
    caches: Iterable[KeysAndValues],
) -> None:
    """Writes the keys and values of the chosen tokens into all of `caches`."""
    (rows_R,) = chosen_B.nonzero(as_tuple=True)
    if len(rows_R) == 0:
        return
    x_R1D = scales.attn_input(sublayer.attn_norm(x_B1D[rows_R]))
    k_R1HN, v_R1HN = sublayer.attn.keys_and_values(x_R1D, rows_of(positions, rows_R))
    for cache in caches:
        assert isinstance(cache, KeyValueCache)
        RowsOfCache(cache, rows_R).write(k_R1HN.to(v_R1HN.dtype), v_R1HN)
