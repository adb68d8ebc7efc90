"""A layer of a decoding pass: a cache, and tokens that leave steps or paths out.

A token may halt in a deep path or in a routed core (`Intervention.halting`), by the
mass that remains or as a schedule says (`Intervention.blind`), or skip a path
(`Intervention.skip`).

Shapes: B batch, T positions, S positions including earlier passes, D model width, R
some rows of the batch, K loops.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dualpath_cli.decoding.cache import (
    CachedSublayerPass,
    KeysAndValues,
    KeyValueCache,
    LayerCache,
    RowsOfCache,
    rows_of,
)
from dualpath_cli.model.block import WidePath
from dualpath_cli.model.combinations import mixture
from dualpath_cli.model.core import Core
from dualpath_cli.model.deep_path import DeepPath
from dualpath_cli.model.layer_pass import CorePass, KeyValuePair, LayerPass, Repeat
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.sublayer import Scales, Sublayer


@dataclass(frozen=True)
class Schedule:
    """How many steps each token takes, from 1, int64 (B, T) each."""

    layers: Mapping[tuple[int, int], torch.Tensor]
    """By application: layer and repetition of the core, both from 0."""
    core: torch.Tensor | None = None
    """Repetitions of a routed core."""


@dataclass(frozen=True)
class Exit:
    """The step after which a token stops."""

    threshold: float
    """The remaining mass at or below which a token stops."""
    planned: torch.Tensor | None = None
    """The last step of each token, (B, T), instead of the threshold's choice."""

    def goes_on(self, k: int, left_BT1: torch.Tensor) -> torch.Tensor:
        """Whether tokens go on after step k, (B, T, 1), which leaves them this mass."""
        if self.planned is None:
            return left_BT1 > self.threshold
        return self.planned[..., None] > k


@dataclass
class TakenSteps:
    """The steps of a loop that each token has taken so far, and those that go on."""

    active: torch.Tensor  # tokens that take the next step, (B, T, 1)
    remaining: torch.Tensor  # pi, the mass that earlier steps left, (B, T, 1)
    states: list[torch.Tensor] = field(default_factory=list)  # (B, T, D) each
    takers: list[torch.Tensor] = field(default_factory=list)  # (B, T, 1) each
    weights: list[torch.Tensor] = field(default_factory=list)  # (B, T, 1) each

    @classmethod
    def none(cls, x_BTD: torch.Tensor) -> "TakenSteps":
        """No steps of tokens (B, T, D), which all take the first."""
        of_token = x_BTD[..., :1]
        active_BT1 = torch.ones_like(of_token, dtype=torch.bool)
        return cls(active_BT1, torch.ones_like(of_token))

    def add(self, state_BTD: torch.Tensor) -> None:
        """Adds the state after a step, which gets all the mass that remains."""
        self.states.append(state_BTD)
        self.takers.append(self.active)
        self.weights.append(self.remaining)

    def leave(self, q_BT1: torch.Tensor, exit_: Exit) -> torch.Tensor:
        """Lets tokens stop after step k, the last one; returns those that do, (B, T,
        1).

        The step gets the weight ``pi_k q_k``, and all the mass of tokens that stop.
        """
        k = len(self.states)
        pi_BT1 = self.remaining
        left_BT1 = pi_BT1 * (1 - q_BT1)
        before_BT1 = self.active
        active_BT1 = before_BT1 & exit_.goes_on(k, left_BT1)

        self.weights[-1] = torch.where(active_BT1, pi_BT1 * q_BT1, pi_BT1)
        self.remaining = torch.where(active_BT1, left_BT1, 0)
        self.active = active_BT1
        return before_BT1 & ~active_BT1

    def go_on(self, token_mask: torch.Tensor | None) -> bool:
        """Whether any token goes on, of those in a mask (B, T) if there is one."""
        counted_BT1 = self.active
        if token_mask is not None:
            counted_BT1 = counted_BT1 & token_mask[..., None]
        return bool(counted_BT1.any())

    def end(self) -> None:
        """Gives the last step the mass of tokens that would go on, but do not count."""
        self.weights[-1] = self.weights[-1] + self.remaining


def leave_early(
    path: DeepPath,
    layer: "DecodingLayerPass",
    x_BTD: torch.Tensor,
    awake_BT1: torch.Tensor | None,
) -> torch.Tensor:
    """Runs the loop with per-token early exit; returns h_deep, (B, T, D).

    Where `awake_BT1` is False, a token takes no step and gets x. A token that has
    stopped keeps its state, which other tokens still see; its last step gets the
    remaining mass.
    """
    step_indices = path.config.step_indices(layer.loops)
    loops = len(step_indices)
    exit_ = layer.exit_of(path)  # None: no token stops
    # Of the next token of each sequence, only active tokens are computed. In other
    # passes each step is computed for all tokens, with a cache also after every token
    # has stopped: a later token may run more steps, and needs their keys and values.
    by_rows = layer.rows_separable(x_BTD)
    may_end = by_rows or layer.cache is None
    # the tokens that keep the loop running; None: all
    counted = None if by_rows else layer.token_mask

    shared = path.shared_keys_and_values(x_BTD, layer)
    steps = TakenSteps.none(x_BTD)
    if awake_BT1 is not None:
        steps.active = awake_BT1
        if by_rows:
            _keep_later_steps(path, layer, x_BTD, ~awake_BT1, 1, loops)

    h_BTD = x_BTD  # h_0
    for k, step_index in enumerate(step_indices, 1):
        h_BTD = _next_state(path, layer, h_BTD, k, shared, steps.active, by_rows)
        steps.add(h_BTD)
        if k == loops:
            break

        if exit_ is not None:
            q_BT1 = _step_probability(path.router, h_BTD, path.gains.dtype, step_index)
            stops_BT1 = steps.leave(q_BT1, exit_)
            if by_rows:
                _keep_later_steps(path, layer, h_BTD, stops_BT1, k + 1, loops)
        if may_end and not steps.go_on(counted):
            steps.end()
            break

    states = steps.states
    weights = steps.weights
    if exit_ is None:
        weights = _weights_of_awake(path, states, step_indices, steps.takers[0])
    if layer.trace is not None:
        layer.trace.record_steps(x_BTD, states, weights, loops, steps.takers)
    return mixture(weights, states)


def leave_core_early(
    core: Core,
    e_BTD: torch.Tensor,
    repeat: Repeat,
    here: CorePass,
    exit_: Exit,
    cached: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Runs the core with per-token early exit; returns output and states, (B, T, D).

    The layers of later repetitions leave a token that has stopped as it is; its last
    repetition gets the remaining mass. With a cache all repetitions run: a later token
    may take more, and needs the keys and values.
    """
    step_indices = core.step_indices(here.loops)
    loops = len(step_indices)
    dtype = core.router.weight.dtype

    x_BTD = e_BTD  # x_0
    steps = TakenSteps.none(e_BTD)
    for r, step_index in enumerate(step_indices, 1):
        if r == 1:
            x_BTD = repeat(x_BTD, 0, None)  # all tokens are active
        else:
            injected_BTD = core.injected(x_BTD, e_BTD)
            x_BTD = torch.where(steps.active, injected_BTD, x_BTD)
            x_BTD = repeat(x_BTD, r - 1, steps.active)
        steps.add(x_BTD)
        if r == loops:
            break

        q_BT1 = _step_probability(core.router, x_BTD, dtype, step_index)
        steps.leave(q_BT1, exit_)
        if not cached and not steps.go_on(here.token_mask):
            steps.end()
            break

    if here.trace is not None:
        here.trace.record_steps(e_BTD, steps.states, steps.weights, loops, steps.takers)
    return mixture(steps.weights, steps.states).to(e_BTD.dtype), steps.states


def _step_probability(
    router: Any, h_BTD: torch.Tensor, dtype: torch.dtype, step_index: float
) -> torch.Tensor:
    """q_k of a state, (B, T, 1), in `dtype` also under autocast."""
    with torch.autocast(h_BTD.device.type, enabled=False):
        q_BT1: torch.Tensor = router.step_probability(h_BTD.to(dtype), step_index)
    return q_BT1


def _next_state(
    path: DeepPath,
    layer: "DecodingLayerPass",
    h_BTD: torch.Tensor,
    k: int,
    shared: KeyValuePair | None,
    active_BT1: torch.Tensor,
    by_rows: bool,
) -> torch.Tensor:
    """h_k of active tokens, and h_{k-1} of others, (B, T, D)."""
    if not by_rows:
        next_BTD = path.next_state(h_BTD, k, layer, shared)
        return torch.where(active_BT1, next_BTD, h_BTD)

    scales = path.scales(k, layer)
    here = replace(layer.step(k), shared=shared)
    return only_some(path.sublayer_of(k), h_BTD, active_BT1[:, 0, 0], scales, here)


def _keep_later_steps(
    path: DeepPath,
    layer: "DecodingLayerPass",
    h_B1D: torch.Tensor,
    stops_B11: torch.Tensor,
    k: int,
    loops: int,
) -> None:
    """Stores keys and values, of steps k to `loops`, of tokens that stop before step k.

    Those of a token's last state serve all its later steps.
    """
    if path.config.step_kv == "first":
        return  # all tokens have those of the first step

    assert layer.cache is not None
    stops_B = stops_B11[:, 0, 0]
    caches = [layer.cache.step(step - 1) for step in range(k, loops + 1)]
    positions = layer.positions

    filmed = path.config.step_conditioning == "film"
    if not filmed and not path.config.untied_steps:
        scales = path.scales(k, layer)
        keep(path.sublayer_of(k), h_B1D, stops_B, scales, positions, caches)
        return

    for step, cache in enumerate(caches, k):
        scales = path.scales(step, layer)
        keep(path.sublayer_of(step), h_B1D, stops_B, scales, positions, [cache])


def _weights_of_awake(
    path: DeepPath,
    states: Sequence[torch.Tensor],
    step_indices: Sequence[float],
    awake_BT1: torch.Tensor,
) -> list[torch.Tensor]:
    """The weight of each state, (B, T, 1), if tokens take all steps or none.

    A token without steps has the same state in all steps, and the first gets weight 1.
    """
    weights = path.step_weights(states, step_indices[: len(states)])
    # Combination `final` weighs only the last state; here each state has a weight.
    missing = len(states) - len(weights)
    weights = [torch.zeros_like(weights[0])] * missing + weights

    of_asleep = [1.0] + [0.0] * (len(states) - 1)
    return [
        torch.where(awake_BT1, weight, asleep)
        for weight, asleep in zip(weights, of_asleep, strict=True)
    ]


def only_some(
    sublayer: Sublayer,
    x_B1D: torch.Tensor,
    chosen_B: torch.Tensor,
    scales: Scales,
    here: CachedSublayerPass,
) -> torch.Tensor:
    """Maps the next tokens of a batch, (B, 1, D), where `chosen_B` is True.

    Other tokens stay unchanged; nothing is computed or stored for them.
    """
    (rows_R,) = chosen_B.nonzero(as_tuple=True)
    if len(rows_R) == 0:
        return x_B1D
    if len(rows_R) == len(x_B1D):
        y_B1D: torch.Tensor = sublayer(x_B1D, scales, here)
        return y_B1D

    cache = shared = None
    if here.shared is None:
        assert isinstance(here.cache, KeyValueCache)
        cache = RowsOfCache(here.cache, rows_R)
    else:
        k_BSHN, v_BSHN = here.shared
        shared = (k_BSHN[rows_R], v_BSHN[rows_R])
    positions = rows_of(here.positions, rows_R)
    here_R = replace(here, positions=positions, cache=cache, shared=shared)
    y_R1D = sublayer(x_B1D[rows_R], scales, here_R)
    return x_B1D.index_copy(0, rows_R, y_R1D)


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
    positions_R = rows_of(positions, rows_R)
    k_R1HN, v_R1HN = sublayer.keys_and_values(x_B1D[rows_R], scales, positions_R)
    for cache in caches:
        assert isinstance(cache, KeyValueCache)
        RowsOfCache(cache, rows_R).write(k_R1HN.to(v_R1HN.dtype), v_R1HN)


@dataclass
class DecodingLayerPass(LayerPass):
    """A layer's pass in which tokens may halt in the loop or skip a path; maybe with a
    cache."""

    cache: LayerCache | None = None
    # steps of each token, instead of those that halting chooses, (B, T)
    planned: torch.Tensor | None = None

    @property
    def writes(self) -> bool:
        """Whether the layer writes a trace or a cache, and so must not be computed
        twice."""
        return self.cache is not None or super().writes

    def wide(self) -> CachedSublayerPass:
        """Arguments for the sublayer of the wide path."""
        cache = None if self.cache is None else self.cache.wide
        skips = self.intervention is not None and self.intervention.skip is not None
        # not all tokens take experts
        trace = None if skips or self.active is not None else self.trace
        return CachedSublayerPass(
            self.positions,
            self.auxiliary,
            trace,
            self.intervention,
            self.draws,
            cache=cache,
        )

    def step(self, k: int) -> CachedSublayerPass:
        """Arguments for the sublayer of the deep path in step k, from 1."""
        cache = None if self.cache is None else self.cache.step(k - 1)
        return CachedSublayerPass(self.positions, self.auxiliary, cache=cache)

    def run_deep(
        self, path: nn.Module, x_BTD: torch.Tensor, g_d: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_deep, (B, T, D); a token that takes no step gets x."""
        assert isinstance(path, DeepPath)
        awake_BT1 = self._awake(g_d)
        if awake_BT1 is None and self.exit_of(path) is None:
            return super().run_deep(path, x_BTD)

        return leave_early(path, self, x_BTD, awake_BT1)

    def exit_of(self, path: DeepPath) -> Exit | None:
        """When tokens stop in a deep path; None if no token stops, as where no router
        weighs steps."""
        if self.intervention is None or not path.config.routes_steps:
            return None

        threshold = self.intervention.halting
        return None if threshold is None else Exit(threshold, self.planned)

    def run_wide(
        self, path: nn.Module, x_BTD: torch.Tensor, g_w: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_wide, (B, T, D); a token that skips the path gets x."""
        awake_BT1 = self._awake(g_w)
        if awake_BT1 is None:
            return super().run_wide(path, x_BTD)

        if self.trace is not None:
            self.trace.wide_taken = awake_BT1.squeeze(-1)
        if not self.rows_separable(x_BTD):
            return torch.where(awake_BT1, path(x_BTD, self), x_BTD)

        assert self.cache is not None
        assert isinstance(path, WidePath)
        awake_B = awake_BT1[:, 0, 0]
        scales = path.scales(self)
        # A token that skips the path still has keys and values for later ones.
        keep(path.sublayer, x_BTD, ~awake_B, scales, self.positions, [self.cache.wide])
        return only_some(path.sublayer, x_BTD, awake_B, scales, self.wide())

    def _awake(self, gate_BT1: torch.Tensor | None) -> torch.Tensor | None:
        """True at tokens that take a path, by its gate and if they are active, (B, T,
        1); None: all tokens."""
        skip = None if self.intervention is None else self.intervention.skip
        if gate_BT1 is None or skip is None:
            return self.active

        chosen_BT1 = gate_BT1 >= skip
        return chosen_BT1 if self.active is None else chosen_BT1 & self.active

    def rows_separable(self, x_BTD: torch.Tensor) -> bool:
        """Whether some sequences of the batch can be computed without the others, see
        `RowsOfCache`."""
        if self.cache is None or x_BTD.shape[1] != 1:
            return False
        wide = self.cache.wide
        return isinstance(wide, KeyValueCache) and wide.span.start > 0
