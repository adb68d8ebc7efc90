"""A pass besides the equations: read-outs, overrides, the entry for decoding.

Training takes plain passes, each method of which is one call of the equations.
`decoding` derives passes that keep keys and values, and that leave steps and paths out.

Shapes: B batch, T positions, D model width, H heads, N head size, R repetitions of
the core, K steps of a deep path, E experts, C of them chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from dualpath_cli.model.gates import Gates
from dualpath_cli.model.positions import Positions, whole_sequences
from dualpath_cli.model.routing import LayerTrace, RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import RANDOM, SHUFFLED, Intervention

KeyValuePair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of tokens, (B, T, H, N) each."""


@dataclass
class LayerAuxiliary:
    """The auxiliary loss of one layer's feed-forwards, and the load of its experts.

    Of one application of the layer.
    """

    layer: int = 0
    """The number of the layer, from 0."""
    loss: torch.Tensor | float = 0.0
    """Sum of the terms of all applications, a 0-d tensor in nats per token."""
    load: torch.Tensor | None = None
    """Choices of each expert by the tokens of the batch, int64; None without
    experts."""


@dataclass
class AuxiliaryLoss:
    """Pass an empty one to ``DualPathLM.forward``: it gets one entry per application.

    Each application of a feed-forward adds a term, so K loops add K terms.
    """

    loop_losses: float = 0.0
    """The factor of the mean loss of the earlier repetitions of the core, each read out
    through coda, norm and head; 0 leaves them out."""
    layers: list[LayerAuxiliary] = field(default_factory=list)
    earlier: list[torch.Tensor] = field(default_factory=list)
    """The losses of the earlier repetitions, in nats, (B, T) each."""

    @property
    def total(self) -> torch.Tensor | float:
        """Sum over layers, in nats per token, a 0-d tensor; 0.0 without a loss."""
        total = sum((layer.loss for layer in self.layers), 0.0)
        if self.earlier:
            total = total + self.loop_losses * torch.stack(self.earlier).mean()
        return total

    @property
    def loads(self) -> dict[int, torch.Tensor]:
        """The loads of the layers, from 0 on, that have experts."""
        loads: dict[int, torch.Tensor] = {}
        for layer in self.layers:
            if layer.load is not None:
                before = loads.get(layer.layer)
                load = layer.load
                loads[layer.layer] = load if before is None else before + load
        return loads

    def add_layer(self, number: int) -> LayerAuxiliary:
        """Appends an empty entry for an application of a layer, and returns it."""
        self.layers.append(LayerAuxiliary(number))
        return self.layers[-1]


@dataclass
class SublayerPass:
    """The arguments of one application of a sublayer, besides input and gain."""

    positions: Positions
    auxiliary: LayerAuxiliary | None = None
    """Collects the feed-forward's auxiliary loss and load."""
    trace: LayerTrace | None = None
    """Records the experts that were chosen."""
    intervention: Intervention | None = None
    """The intervention on the choice of experts."""
    draws: torch.Tensor | None = None
    """Random numbers that replace the scores in the choice of experts, (B, T, E)."""
    shared: KeyValuePair | None = None
    """The first step's keys and values, also of earlier tokens, which the tokens attend
    to instead of this step's."""

    def seen(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> KeyValuePair:
        """The keys and values that the tokens attend to: here, only their own."""
        return k_BTHN, v_BTHN

    def chosen(self, scores_BTE: torch.Tensor, top_k: int) -> torch.Tensor:
        """The `top_k` experts of the largest scores, (B, T, C), or overridden ones."""
        forced = None if self.intervention is None else self.intervention.experts
        if forced == RANDOM:
            assert self.draws is not None
            n_experts = scores_BTE.shape[-1]
            scores_BTE = self.draws[..., :n_experts]
        elif forced is not None:
            top_k = forced

        return scores_BTE.topk(top_k, sorted=False).indices

    def record_experts(
        self, chosen_BTC: torch.Tensor, weights_BTC: torch.Tensor
    ) -> None:
        """Records each token's experts, and their weights."""
        if self.trace is not None:
            self.trace.experts = chosen_BTC
            self.trace.expert_weights = weights_BTC


@dataclass
class LayerPass:
    """The arguments of one layer, besides its input."""

    positions: Positions
    auxiliary: LayerAuxiliary | None = None
    trace: LayerTrace | None = None
    """Records what the layer did."""
    intervention: Intervention | None = None
    """The one that applies to this layer."""
    token_mask: torch.Tensor | None = None
    """True at the tokens that the intervention applies to, (B, T)."""
    order: torch.Tensor | None = None
    """This layer's permutations, from `shuffled_positions`, (B, 2, T)."""
    draws: torch.Tensor | None = None
    """This layer's random scores, from `expert_draws`, (B, T, E)."""
    repetition: torch.Tensor | None = None
    """The repetition of the core that this is, from 0, int64 (1,), at most R - 1; None
    for layers that are applied once."""
    backprop_loops: int | None = None
    """The last steps of each loop that get gradients; None: all."""
    active: torch.Tensor | None = None
    """False at tokens that have left the core, which take no step and no path, (B, T,
    1); None: all take them."""

    @property
    def loops(self) -> int | None:
        """The forced number of loops; None: the trained number."""
        return None if self.intervention is None else self.intervention.loops

    def moving(self, loops: int) -> int:
        """How many of `loops` steps change the state; later steps leave it as it is."""
        held = None if self.intervention is None else self.intervention.held
        return loops if held is None else min(held, loops)

    @property
    def writes(self) -> bool:
        """Whether the layer records anything, and so must not be recomputed."""
        return self.trace is not None

    def own_gains(self, gains: torch.Tensor, repetitions: int) -> torch.Tensor:
        """This repetition's part of `gains`, the gains of all repetitions."""
        if self.repetition is None:
            return gains

        # By a tensor: one compiled graph serves all repetitions.
        gains_RK = gains.view(repetitions, -1)
        return gains_RK.index_select(0, self.repetition)[0]

    def constant(self, h_BTD: torch.Tensor, k: int, loops: int) -> torch.Tensor:
        """The state after step k of `loops`, see `without_gradient`."""
        return without_gradient(h_BTD, k, loops, self.backprop_loops)

    def wide(self) -> SublayerPass:
        """Arguments for the sublayer of the wide path."""
        return SublayerPass(
            positions=self.positions,
            auxiliary=self.auxiliary,
            trace=self.trace,
            intervention=self.intervention,
            draws=self.draws,
        )

    def step(self, k: int) -> SublayerPass:
        """Arguments for the sublayer of the deep path in step k, from 1."""
        return SublayerPass(self.positions, self.auxiliary)

    def gates(self, learned: Gates) -> Gates:
        """g_d and g_w, (B, T, 1) each: as learned, or as overridden."""
        g_d, g_w = learned
        forced = None if self.intervention is None else self.intervention.gates
        if forced is not None:
            g_d, g_w = overridden(learned, forced, self.token_mask, self.order)

        if self.trace is not None:
            self.trace.gate_deep = g_d.squeeze(-1)
            self.trace.gate_wide = g_w.squeeze(-1)
        return g_d, g_w

    def run_deep(
        self, path: nn.Module, x_BTD: torch.Tensor, g_d: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_deep, (B, T, D). Only decoding reads `g_d`, (B, T, 1), to skip the path."""
        h_BTD: torch.Tensor = path(x_BTD, self)
        return h_BTD

    def run_wide(
        self, path: nn.Module, x_BTD: torch.Tensor, g_w: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_wide, (B, T, D). Only decoding reads `g_w`, (B, T, 1), to skip the path."""
        h_BTD: torch.Tensor = path(x_BTD, self)
        return h_BTD

    def record_steps(
        self,
        x_BTD: torch.Tensor,
        states: list[torch.Tensor],
        weights: list[torch.Tensor],
        loops: int,
    ) -> None:
        """Records the steps of the deep path, see `LayerTrace.record_steps`."""
        if self.trace is not None:
            self.trace.record_steps(x_BTD, states, weights, loops)

    def record_updates(
        self,
        x_BTD: torch.Tensor,
        deep_BTD: torch.Tensor | None,
        wide_BTD: torch.Tensor | None,
    ) -> None:
        """Records the updates of the paths to x, see `LayerTrace.record_updates`."""
        if self.trace is not None:
            self.trace.record_updates(x_BTD, deep_BTD, wide_BTD)


Repeat = Callable[[torch.Tensor, int, torch.Tensor | None], torch.Tensor]
"""Applies the core's layers once. Takes a state (B, T, D), the repetition, from 0, and
a mask (B, T, 1); tokens outside the mask keep their state. None: all tokens."""


@dataclass
class CorePass:
    """The arguments of the core, besides its input."""

    loops: int | None = None
    """The forced number of repetitions; None: the trained number."""
    held: int | None = None
    """See `Intervention.core_held`."""
    backprop_loops: int | None = None
    """The last repetitions that get gradients; None: all."""
    halting: float | None = None
    """See `Intervention.halting`."""
    trace: LayerTrace | None = None
    """Records the repetitions, as the steps of a deep path."""
    token_mask: torch.Tensor | None = None
    """False at tokens that do not keep the loop running, (B, T)."""

    def moving(self, loops: int) -> int:
        """How many of `loops` repetitions change the state; later ones do not."""
        return loops if self.held is None else min(self.held, loops)

    def constant(self, h_BTD: torch.Tensor, r: int, loops: int) -> torch.Tensor:
        """The state after repetition r of `loops`, see `without_gradient`."""
        return without_gradient(h_BTD, r, loops, self.backprop_loops)


@dataclass
class ModelPass:
    """A pass through the whole model.

    Makes its positions, and the `LayerPass` of each layer.
    """

    backprop_loops: int | None = None
    """The last steps of each loop, or repetitions of the core, that get gradients;
    None: all."""

    leaves_out: ClassVar = False
    """Whether the pass supports the interventions `halting`, `skip` and `kv_slots`."""

    def positions(
        self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor
    ) -> Positions:
        """The positions of whole, unpadded sequences, on the device of `like`."""
        return whole_sequences(config, tokens, like)

    def layer(self, number: int, repetition: int, plain: LayerPass) -> LayerPass:
        """The pass of a layer in a repetition of the core, both from 0."""
        return plain

    def run_core(
        self, core: nn.Module, e_BTD: torch.Tensor, repeat: Repeat, here: CorePass
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The output and the states of the core, (B, T, D) each."""
        made: tuple[torch.Tensor, list[torch.Tensor]] = core(e_BTD, repeat, here)
        return made


PLAIN = ModelPass()


def without_gradient(
    h_BTD: torch.Tensor, k: int, loops: int, backprop_loops: int | None
) -> torch.Tensor:
    """The state after step k of `loops`: a constant unless it is one of the last
    `backprop_loops`."""
    if backprop_loops is None or k > loops - backprop_loops:
        return h_BTD
    return h_BTD.detach()


Draws = Mapping[tuple[int, int], torch.Tensor]
"""Draws of an intervention by layer and repetition, both from 0; empty without."""


@dataclass
class LayerPasses:
    """Makes the `LayerPass` of each application of a layer in one forward pass."""

    config: ModelConfig
    model_pass: ModelPass
    positions: Positions
    auxiliary: AuxiliaryLoss | None = None
    trace: RoutingTrace | None = None
    intervention: Intervention | None = None
    token_mask: torch.Tensor | None = None
    orders: Draws = field(default_factory=dict)
    """From `shuffled_positions`, (B, 2, T)."""
    draws: Draws = field(default_factory=dict)
    """From `expert_draws`, (B, T, E)."""

    def of(
        self,
        number: int,
        repetition: int = 0,
        active_BT1: torch.Tensor | None = None,
    ) -> LayerPass:
        """The pass of a layer in a repetition of the core, both from 0, at the active
        tokens."""
        auxiliary = trace = intervention = None
        if self.auxiliary is not None:
            auxiliary = self.auxiliary.add_layer(number)
        if self.trace is not None:
            trace = self.trace.add_layer(number, repetition)
        if self.intervention is not None:
            intervention = self.intervention.within(number)

        plain = LayerPass(
            positions=self.positions,
            auxiliary=auxiliary,
            trace=trace,
            intervention=intervention,
            token_mask=self.token_mask,
            order=self.orders.get((number, repetition)),
            draws=self.draws.get((number, repetition)),
            repetition=self._repetition_of(number, repetition),
            backprop_loops=self.model_pass.backprop_loops,
            active=active_BT1,
        )
        return self.model_pass.layer(number, repetition, plain)

    def core(self) -> CorePass:
        """The pass of the core."""
        here = CorePass(
            backprop_loops=self.model_pass.backprop_loops,
            token_mask=self.token_mask,
        )
        if self.trace is not None:
            here.trace = self.trace.begin_core()

        change = self.intervention
        if change is not None:
            here.loops = change.core_loops
            here.held = change.core_held
            # Tokens leave all layers of the core together.
            _, core, _ = self.config.stretches
            if all(map(change.within, core)):
                here.halting = change.halting
        return here

    def _repetition_of(self, number: int, repetition: int) -> torch.Tensor | None:
        """`LayerPass.repetition`: beyond R, the last one's gains."""
        trained = self.config.layers[number].core_loops
        if trained == 1:
            return None

        last = min(repetition, trained - 1)
        return torch.full((1,), last, device=self.positions.rope.cos.device)


def overridden(
    learned: Gates,
    forced: tuple[float, float] | str,
    token_mask: torch.Tensor | None,
    order_B2T: torch.Tensor | None,
) -> Gates:
    """The gates that `Intervention.gates` puts in place of the learned ones.

    Constants hold where `token_mask` (B, T) is True; `order_B2T` are the layer's
    permutations, from `shuffled_positions`.
    """
    g_d, g_w = learned
    if forced == SHUFFLED:
        assert order_B2T is not None
        from_deep_BT1 = order_B2T[:, 0, :, None]
        from_wide_BT1 = order_B2T[:, 1, :, None]
        return g_d.gather(1, from_deep_BT1), g_w.gather(1, from_wide_BT1)

    assert not isinstance(forced, str)
    deep, wide = forced
    if token_mask is None:
        return torch.full_like(g_d, deep), torch.full_like(g_w, wide)

    mask_BT1 = token_mask[..., None]
    deep_BT1 = torch.where(mask_BT1, deep, g_d)
    wide_BT1 = torch.where(mask_BT1, wide, g_w)
    return deep_BT1, wide_BT1
