"""RoutingTrace: the routing of a forward pass, recorded on request (Eqs. 6 and 7).

Shapes: B batch, T positions, D model width, K loops, C experts that a token takes.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F


@dataclass
class LayerTrace:
    """One application of a layer; a field is None if the block has no such choice."""

    layer: int = 0
    """The number of the layer, from 0."""
    repetition: int = 0
    """The repetition of the core, from 0."""
    gate_deep: torch.Tensor | None = None
    """g_d of every token, (B, T) (Eq. 5)."""
    gate_wide: torch.Tensor | None = None
    """g_w of every token, (B, T) (Eq. 5)."""
    step_weights: torch.Tensor | None = None
    """Weight of each step in h_deep, pi_k q_k and pi_K, (B, T, K) (Eq. 3); sums to 1
    over K."""
    step_sizes: torch.Tensor | None = None
    """Size of each step's update relative to the state before it, ‖h_k - h_{k-1}‖ /
    ‖h_{k-1}‖ with h_0 = x, (B, T, K); 0 for a step that was not taken."""
    step_cosines: torch.Tensor | None = None
    """Cosine of each step's update h_k - h_{k-1} and the previous step's update, (B, T,
    K); nan at k = 1, the first step; 0 where either update is zero."""
    loops_run: int | None = None
    """Steps that were run: fewer than K where every token of the batch had halted, or
    the state was held."""
    steps_taken: torch.Tensor | None = None
    """Steps that each token took, (B, T): K, unless it halted or skipped the path, or
    the state was held."""
    wide_taken: torch.Tensor | None = None
    """Whether each token took the wide path, (B, T)."""
    experts: torch.Tensor | None = None
    """The experts of the wide path that each token took, from 0, (B, T, C); None where
    tokens may skip the path."""
    expert_weights: torch.Tensor | None = None
    """Weights of these experts in the wide path's output, (B, T, C); sum to 1."""
    update_deep: torch.Tensor | None = None
    """Norm of the deep path's update, Δ_d = h_deep - x, (B, T)."""
    update_wide: torch.Tensor | None = None
    """Norm of the wide path's update, Δ_w = h_wide - x, (B, T)."""
    cosine: torch.Tensor | None = None
    """Cosine of Δ_d and Δ_w, (B, T) (Eq. 7); 0 where either is zero."""
    keeps_states: bool = False
    """Whether the fields below are filled as well: K + 2 states of (B, T, D)."""
    x: torch.Tensor | None = None
    """The layer's input, (B, T, D)."""
    deep_states: list[torch.Tensor] = field(default_factory=list)
    """h_1 .. h_K of the deep path, (B, T, D) each (Eq. 2), for the steps that were
    run."""
    wide_state: torch.Tensor | None = None
    """h_wide, (B, T, D) (Eq. 4)."""

    @property
    def deep_share(self) -> torch.Tensor | None:
        """ρ_d, the deep path's share of the gated update, (B, T) (Eq. 6).

        g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖), from 0 to 1; one half where both updates
        are zero.
        """
        if self.gate_deep is None or self.gate_wide is None:
            return None

        assert self.update_deep is not None
        assert self.update_wide is not None
        deep_BT = self.gate_deep * self.update_deep
        wide_BT = self.gate_wide * self.update_wide
        both_BT = deep_BT + wide_BT
        # 0 / 0 where both updates are zero
        return torch.where(both_BT > 0, deep_BT / both_BT, 0.5)

    @property
    def expected_loops(self) -> torch.Tensor | None:
        """Mean of k under the step weights, (B, T), from 1 to K; 0 if skipped."""
        if self.step_weights is None:
            return None

        loops = self.step_weights.shape[-1]
        steps_K = torch.arange(1, loops + 1, device=self.step_weights.device)
        loops_BT = (self.step_weights * steps_K).sum(-1)
        if self.steps_taken is None:
            return loops_BT

        return loops_BT * (self.steps_taken > 0)

    @property
    def passes(self) -> torch.Tensor:
        """Sublayers applied to each token, (B, T): its steps, and the wide path."""
        taken = (self.steps_taken, self.wide_taken)
        return torch.stack([path.long() for path in taken if path is not None]).sum(0)

    def append(self, later: "LayerTrace") -> None:
        """Appends the trace of the positions that follow."""
        for name, before in list(vars(self).items()):
            if isinstance(before, torch.Tensor):
                both = (before, getattr(later, name))
                setattr(self, name, torch.cat(both, dim=1))

        if self.loops_run is not None and later.loops_run is not None:
            self.loops_run = max(self.loops_run, later.loops_run)

        # In steps that one of the traces did not run, no token moved.
        most = max(len(self.deep_states), len(later.deep_states))
        own_states = _filled(self.deep_states, most)
        later_states = _filled(later.deep_states, most)
        self.deep_states = [
            torch.cat(states, dim=1)
            for states in zip(own_states, later_states, strict=True)
        ]

    def record_steps(
        self,
        x_BTD: torch.Tensor,
        states: list[torch.Tensor],
        weights: list[torch.Tensor],
        loops: int,
        active: list[torch.Tensor] | None = None,
    ) -> None:
        """Records the steps that were run, by their states (B, T, D) after x = h_0.

        `weights` (B, T, 1) are of the last states; all other of the `loops` steps get
        weight 0. `active` marks the tokens that took each step, (B, T, 1); None: all
        took those that were run.
        """
        self.loops_run = len(states)
        if active is None:
            x_BT = states[0][..., 0]
            taken = self.loops_run
            self.steps_taken = torch.full_like(x_BT, taken, dtype=torch.long)
        else:
            active_BTK = torch.cat(active, dim=-1)
            self.steps_taken = active_BTK.sum(-1)

        # Zeros for steps without a weight: the first ones, and those that were not run.
        not_run = loops - self.loops_run
        unweighed = self.loops_run - len(weights)
        weights_BTK = torch.cat(weights, dim=-1)
        self.step_weights = F.pad(weights_BTK, (unweighed, not_run))

        sizes_BTK, cosines_BTK = _updates_of_steps([x_BTD, *states])
        self.step_sizes = F.pad(sizes_BTK, (0, not_run))
        self.step_cosines = F.pad(cosines_BTK, (0, not_run))

        if self.keeps_states:
            self.deep_states = states

    def record_updates(
        self,
        x_BTD: torch.Tensor,
        deep_BTD: torch.Tensor | None,
        wide_BTD: torch.Tensor | None,
    ) -> None:
        """Records h_deep - x and h_wide - x; h_deep and h_wide are (B, T, D) or None.

        In float32 at least, also under autocast. All tokens took the wide path unless
        `wide_taken` is set already.
        """
        if wide_BTD is not None and self.wide_taken is None:
            self.wide_taken = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)

        if self.keeps_states:
            self.x = x_BTD
            self.wide_state = wide_BTD

        with torch.autocast(x_BTD.device.type, enabled=False):
            deep = _update(x_BTD, deep_BTD)
            wide = _update(x_BTD, wide_BTD)
            self.update_deep = None if deep is None else deep.norm(dim=-1)
            self.update_wide = None if wide is None else wide.norm(dim=-1)
            if deep is not None and wide is not None:
                self.cosine = F.cosine_similarity(deep, wide, dim=-1)


def _update(x_BTD: torch.Tensor, h_BTD: torch.Tensor | None) -> torch.Tensor | None:
    """``h - x`` in float32 at least, (B, T, D)."""
    if h_BTD is None:
        return None

    precise = torch.promote_types(x_BTD.dtype, torch.float32)
    return h_BTD.to(precise) - x_BTD.to(precise)


def _updates_of_steps(states: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes and cosines of the steps between h_0 .. h_K, (B, T, K) each.

    In float32 at least, also under autocast: updates may be a thousandth of the state.
    """
    precise = torch.promote_types(states[0].dtype, torch.float32)
    sizes = []
    cosines = []

    with torch.autocast(states[0].device.type, enabled=False):
        states = [h_BTD.to(precise) for h_BTD in states]
        updates = [after - before for before, after in pairwise(states)]

        for update_BTD, before_BTD in zip(updates, states[:-1], strict=True):
            relative_BT = update_BTD.norm(dim=-1) / before_BTD.norm(dim=-1)
            sizes.append(relative_BT)

        for before_BTD, update_BTD in pairwise(updates):
            cosine_BT = F.cosine_similarity(before_BTD, update_BTD, dim=-1)
            cosines.append(cosine_BT)

    none_BT = torch.full_like(sizes[0], torch.nan)
    sizes_BTK = torch.stack(sizes, -1)
    cosines_BTK = torch.stack([none_BT, *cosines], -1)
    return sizes_BTK, cosines_BTK


def _filled(states: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    return states + states[-1:] * (count - len(states))


@dataclass
class RoutingTrace:
    """Pass an empty one as ``trace``: it gets one LayerTrace per application of a
    layer, in the order of the pass."""

    layers: list[LayerTrace] = field(default_factory=list)
    core: LayerTrace | None = None
    """The repetitions of the core as steps: their weights, sizes and cosines; None
    without a core."""
    keeps_states: bool = False
    """Whether layers keep their states, as for a logit lens: ``head(norm(state))``."""
    output: torch.Tensor | None = None
    """With `keeps_states` the output of the last layer, (B, T, D), before the final
    norm."""

    def add_layer(self, number: int, repetition: int = 0) -> LayerTrace:
        """Appends an empty LayerTrace for the next application, and returns it."""
        self.layers.append(
            LayerTrace(number, repetition, keeps_states=self.keeps_states)
        )
        return self.layers[-1]

    def begin_core(self) -> LayerTrace:
        """The empty trace of the core."""
        self.core = LayerTrace(keeps_states=self.keeps_states)
        return self.core

    def append(self, later: "RoutingTrace") -> None:
        """Appends the trace of the positions that follow."""
        if not self.layers:
            self.layers = later.layers
            self.core = later.core
            self.output = later.output
            return

        for layer, more in zip(self.layers, later.layers, strict=True):
            layer.append(more)
        if self.core is not None and later.core is not None:
            self.core.append(later.core)

        if self.output is not None and later.output is not None:
            self.output = torch.cat((self.output, later.output), dim=1)
