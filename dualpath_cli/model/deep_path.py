"""The deep path: one sublayer applied K times, its states mixed per token by a router.

Shapes: B batch, T positions, D model width, K loops.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model.cache import KeyValueCache, LayerCache
from dualpath_cli.model.combinations import learned_combination, settled
from dualpath_cli.model.feed_forward import AuxiliaryLoss, SwiGLU
from dualpath_cli.model.halting import Enough, Lens, criterion
from dualpath_cli.model.loops import Loop, Step, loop_steps
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.model.sublayer import Sublayer


class DeepPath(nn.Module):
    """h_deep (Eqs. 2 and 3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ffn is not None  # ModelConfig refuses deep blocks without it
        self.config = config
        ffn = SwiGLU(config.d_model, config.effective_width(config.d_ffn))
        self.sublayer = Sublayer(config, ffn)
        self.gains = nn.Parameter(torch.empty(config.loops))
        if config.routes_steps:
            self.router = learned_combination(config)

    def forward(
        self,
        x_BTD: torch.Tensor,
        positions: Positions,
        trace: LayerTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
        auxiliary: AuxiliaryLoss | None = None,
        cache: LayerCache | None = None,
        awake_BT1: torch.Tensor | None = None,
        lens: Lens | None = None,
    ) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D); writes steps and their weights into `trace`.

        Of `intervention` the forced loops and the halting threshold matter here; `lens` is what
        halting by entropy takes. Where `awake_BT1` is False, x comes out.
        """
        steps = loop_steps(self.config, None if intervention is None else intervention.loops)
        active: list[torch.Tensor] | None = None
        if awake_BT1 is None and (intervention is None or intervention.halting is None):
            h_BTD = x_BTD
            states = []
            for step in steps:
                h_BTD = self.next_state(h_BTD, step, positions, auxiliary, cache)
                states.append(h_BTD)
            weights = self.step_weights(states, steps)
        else:
            enough = criterion(intervention, lens)
            if cache is not None and cache.rows_can_part and x_BTD.shape[1] == 1:
                loop, counts_BT1 = self._loop_of_rows(steps, enough, positions, cache), None
            else:
                loop = self._whole_loop(steps, enough, positions, auxiliary, cache)
                counts_BT1 = None if token_mask is None else token_mask[..., None]
            states, weights, active = loop.walk(x_BTD, steps, awake_BT1, counts_BT1)
            if not self._leaves_mass:
                unrun = [states[-1]] * (len(steps) - len(states))
                weights = settled(self.step_weights([*states, *unrun], steps), active, len(steps))
        if trace is not None:
            trace.record_steps(states, weights, loops=len(steps), active=active)
        weighed = states[-len(weights) :]  # combination `final` weighs the last state alone
        return reduce(torch.add, (w * h for w, h in zip(weights, weighed, strict=True)))

    def _whole_loop(
        self,
        steps: Sequence[Step],
        enough: Enough,
        positions: Positions,
        auxiliary: AuxiliaryLoss | None,
        cache: LayerCache | None,
    ) -> Loop:
        """A loop that tokens leave, in which each step is computed for all of them.

        With a cache all steps are run, also where every token has halted: a later one may go on
        further, and asks for their keys and values.
        """

        def next_state(h_BTD: torch.Tensor, step: Step, active_BT1: torch.Tensor) -> torch.Tensor:
            h_next_BTD = self.next_state(h_BTD, step, positions, auxiliary, cache)
            return torch.where(active_BT1, h_next_BTD, h_BTD)

        return Loop(next_state, self._share, enough, runs_all=cache is not None)

    def _loop_of_rows(
        self, steps: Sequence[Step], enough: Enough, positions: Positions, cache: LayerCache
    ) -> Loop:
        """The same loop for the next token of each sequence, computed for those that go on.

        The keys and values of one that has stopped, computed once, serve all later steps.
        """

        def next_state(h_B1D: torch.Tensor, step: Step, active_B11: torch.Tensor) -> torch.Tensor:
            kept = cache.step(step.number)
            assert isinstance(kept, KeyValueCache)
            return self.sublayer.only_some(
                h_B1D, active_B11[:, 0, 0], self.gain(step), positions, kept
            )

        def leave(h_B1D: torch.Tensor, who_B11: torch.Tensor, following: Step) -> None:
            later = (cache.step(step.number) for step in steps[following.number :])
            self.sublayer.keep(h_B1D, who_B11[:, 0, 0], positions, later)

        return Loop(next_state, self._share, enough, leave)

    def gain(self, step: Step) -> torch.Tensor:
        """``softplus(a_k)``, a 0-d tensor."""
        return F.softplus(self.gains[step.gain_number])

    def next_state(
        self,
        h_BTD: torch.Tensor,
        step: Step,
        positions: Positions,
        auxiliary: AuxiliaryLoss | None,
        cache: LayerCache | None,
    ) -> torch.Tensor:
        """``h_k = Phi_deep(h_{k-1}; softplus(a_k))``, (B, T, D) (Eq. 2)."""
        kept = None if cache is None else cache.step(step.number)
        return self.sublayer(h_BTD, self.gain(step), positions, auxiliary, kept)

    def step_weights(
        self, states: Sequence[torch.Tensor], steps: Sequence[Step]
    ) -> list[torch.Tensor]:
        """What each state (B, T, D) weighs in h_deep, (B, T, 1): as the router says (Eq. 3).

        Combination `mean` weighs all alike; `final` gives one weight, that of the last state.
        """
        if self.config.combination == "final" or len(states) == 1:
            return [torch.ones_like(states[0][..., :1])]
        if self.config.combination == "mean":
            return [torch.ones_like(states[0][..., :1]) / len(states)] * len(states)
        with torch.autocast(states[0].device.type, enabled=False):
            precise = [h_BTD.to(self.gains.dtype) for h_BTD in states]
            return list(self.router(precise, [step.step_index for step in steps]))

    @property
    def _leaves_mass(self) -> bool:
        """Whether what a step weighs is known before those after it are run."""
        return hasattr(self, "router") and hasattr(self.router, "step_probability")

    def _share(self, h_BTD: torch.Tensor, step: Step) -> torch.Tensor:
        """The part q_k of the remaining mass that a step's state gets, (B, T, 1).

        Where that does not show yet, all is left to the last step, for `settled` to divide.
        """
        if not self._leaves_mass:
            return torch.zeros_like(h_BTD[..., :1])
        with torch.autocast(h_BTD.device.type, enabled=False):
            router: Any = self.router
            q_BT1: torch.Tensor = router.step_probability(
                h_BTD.to(self.gains.dtype), step.step_index
            )
        return q_BT1
