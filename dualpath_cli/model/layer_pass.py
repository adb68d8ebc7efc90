"""A pass besides the equations: read-outs, overrides, the entry for decoding.

Training takes plain passes, each method of which is one call of the equations.
`decoding` derives passes that keep keys and values, and that leave steps and paths out.

Shapes: B batch, T positions, D model width, H heads, N head size, L layers, E experts,
C of them chosen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from dualpath_cli.model.gates import Gates
from dualpath_cli.model.positions import Positions, whole_sequences
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.report.seeds import seed_from
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import RANDOM, SHUFFLED, Intervention


@dataclass
class LayerAuxiliary:
    """The auxiliary loss of one layer's feed-forwards, and the load of its experts."""

    loss: torch.Tensor | float = 0.0
    """Sum of the terms of all applications, a 0-d tensor in nats per token."""
    load: torch.Tensor | None = None
    """Choices of each expert by the tokens of the batch, int64; None without
    experts."""


@dataclass
class AuxiliaryLoss:
    """Pass an empty one to ``DualPathLM.forward``: it gets one entry per layer.

    Each application of a feed-forward adds a term, so K loops add K terms.
    """

    layers: list[LayerAuxiliary] = field(default_factory=list)

    @property
    def total(self) -> torch.Tensor | float:
        """Sum over layers, in nats per token, a 0-d tensor; 0.0 without a loss."""
        return sum((layer.loss for layer in self.layers), 0.0)

    @property
    def loads(self) -> dict[int, torch.Tensor]:
        """The loads of the layers, from 0 on, that have experts."""
        loads = {}
        for number, layer in enumerate(self.layers):
            if layer.load is not None:
                loads[number] = layer.load
        return loads

    def add_layer(self) -> LayerAuxiliary:
        """Appends an empty LayerAuxiliary for the next block, and returns it."""
        self.layers.append(LayerAuxiliary())
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

    def seen(
        self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that the tokens attend to, given their own: no others."""
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

    @property
    def loops(self) -> int | None:
        """The forced number of loops; None: the trained number."""
        return None if self.intervention is None else self.intervention.loops

    @property
    def writes(self) -> bool:
        """Whether the layer records anything, and so must not be recomputed."""
        return self.trace is not None

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


class ModelPass:
    """A pass through the whole model.

    Makes its positions, and the `LayerPass` of each layer.
    """

    leaves_out = False
    """Whether the pass supports the interventions `halting`, `skip` and `kv_slots`."""

    def positions(
        self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor
    ) -> Positions:
        """The positions of whole, unpadded sequences, on the device of `like`."""
        return whole_sequences(config, tokens, like)

    def layer(self, number: int, plain: LayerPass) -> LayerPass:
        """The pass of a layer, counted from 0."""
        return plain


PLAIN = ModelPass()


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


def shuffled_positions(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, n_layers: int, seed: int
) -> torch.Tensor:
    """Permutations of T that g_d and g_w are taken by, int64 (L, B, 2, T).

    Padding, where `token_mask` (B, T) is False, keeps its own gates, and no token gets
    the gates of padding.
    """
    batch, length = tokens.shape
    order_LB2T = torch.arange(length).repeat(n_layers, batch, 2, 1)

    for row, real, generator in _generators(tokens, token_mask, seed):
        shape = (n_layers, 2, len(real))
        keys = torch.rand(shape, generator=generator, dtype=torch.float64)
        order_LB2T[:, row][..., real] = real[keys.argsort(-1)]

    return order_LB2T.to(tokens.device)


def expert_draws(
    tokens: torch.Tensor,
    token_mask: torch.Tensor | None,
    n_layers: int,
    experts: int,
    seed: int,
) -> torch.Tensor:
    """Random scores that rank experts, (L, B, T, E); 0 at padding."""
    draws_LBTE = torch.zeros(n_layers, *tokens.shape, experts)

    for row, real, generator in _generators(tokens, token_mask, seed):
        shape = (n_layers, len(real), experts)
        draws_LBTE[:, row, real] = torch.rand(shape, generator=generator)

    return draws_LBTE.to(tokens.device)


def _generators(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, seed: int
) -> Iterator[tuple[int, torch.Tensor, torch.Generator]]:
    """Rows of `tokens` (B, T), their unpadded positions and their generators.

    Draws depend only on the seed and on the row's tokens: not on the batch, the
    padding or the device.
    """
    tokens_BT = tokens.long().cpu()
    mask_BT = torch.ones_like(tokens_BT) if token_mask is None else token_mask.cpu()

    for row, tokens_T in enumerate(tokens_BT):
        # Only of tokens that are not padding, which must not change the draws.
        (real,) = mask_BT[row].nonzero(as_tuple=True)
        content = tokens_T[real].numpy().tobytes()
        own_seed = seed_from(seed, content) >> 1
        yield row, real, torch.Generator().manual_seed(own_seed)
