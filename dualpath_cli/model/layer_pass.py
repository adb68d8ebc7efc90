"""The parts of a pass besides the equations: read-outs, overrides, and the entry for decoding.

Training takes plain passes, each method of which is one call of the equations. `decoding` derives
passes that keep keys and values, and that leave steps and paths out.

Shapes: B batch, T positions, D model width, H heads, N head size, L layers.
"""

from dataclasses import dataclass

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model.gates import Gates
from dualpath_cli.model.positions import Positions, whole_sequences
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.seeds import seed_from


@dataclass
class AuxiliaryLoss:
    """Pass an empty one to ``DualPathLM.forward``: feed-forwards add their own losses to it.

    Each application adds its term, so K loops add K of them. An object and not a list, because
    FSDP2 copies the lists among a module's arguments.
    """

    total: torch.Tensor | float = 0.0
    """Sum of all terms, a 0-d tensor in nats per token; 0.0 where no feed-forward has one."""


@dataclass
class SublayerPass:
    """The arguments of one application of a sublayer, besides its input and its gain."""

    positions: Positions
    auxiliary: AuxiliaryLoss | None = None
    """Gets what the feed-forward adds to the training loss."""

    def seen(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that the tokens attend to, given their own: no others."""
        return k_BTHN, v_BTHN


@dataclass
class LayerPass:
    """The arguments of one layer, besides its input."""

    positions: Positions
    auxiliary: AuxiliaryLoss | None = None
    trace: LayerTrace | None = None
    """Records what the layer did."""
    intervention: Intervention | None = None
    """The one that applies to this layer."""
    token_mask: torch.Tensor | None = None
    """Which tokens the intervention is about, (B, T)."""
    order: torch.Tensor | None = None
    """This layer's permutations, from `shuffled_positions`, (B, 2, T)."""

    @property
    def loops(self) -> int | None:
        """The forced number of loops; None: as many as were trained."""
        return None if self.intervention is None else self.intervention.loops

    @property
    def writes(self) -> bool:
        """Whether the layer records anything: then activation checkpointing must not rerun it."""
        return self.trace is not None

    def wide(self) -> SublayerPass:
        """Arguments for the sublayer of the wide path."""
        return SublayerPass(self.positions, self.auxiliary)

    def step(self, k: int) -> SublayerPass:
        """Arguments for the sublayer of the deep path in step k, from 1."""
        return SublayerPass(self.positions, self.auxiliary)

    def gates(self, learned: Gates) -> Gates:
        """g_d and g_w, (B, T, 1) each: as learned, or as overridden."""
        g_d, g_w = learned
        if self.intervention is not None and self.intervention.gates is not None:
            forced = self.intervention.gates
            g_d, g_w = overridden(learned, forced, self.token_mask, self.order)
        if self.trace is not None:
            self.trace.gate_deep, self.trace.gate_wide = g_d.squeeze(-1), g_w.squeeze(-1)
        return g_d, g_w

    def run_deep(
        self, path: nn.Module, x_BTD: torch.Tensor, g_d: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_deep, (B, T, D). Only decoding looks at `g_d`, (B, T, 1), to skip the path by it."""
        h_BTD: torch.Tensor = path(x_BTD, self)
        return h_BTD

    def run_wide(
        self, path: nn.Module, x_BTD: torch.Tensor, g_w: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_wide, (B, T, D). Only decoding looks at `g_w`, (B, T, 1), to skip the path by it."""
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
        self, x_BTD: torch.Tensor, deep_BTD: torch.Tensor | None, wide_BTD: torch.Tensor | None
    ) -> None:
        """Records what the paths added to x, see `LayerTrace.record_updates`."""
        if self.trace is not None:
            self.trace.record_updates(x_BTD, deep_BTD, wide_BTD)


class ModelPass:
    """A pass through the whole model: makes its positions, and the `LayerPass` of each layer."""

    leaves_out = False
    """Whether it supports the interventions `halting`, `skip` and `kv_slots`."""

    def positions(self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor) -> Positions:
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

    Constants hold where `token_mask` (B, T) is True; `order_B2T` are the layer's permutations,
    from `shuffled_positions`.
    """
    g_d, g_w = learned
    if forced == SHUFFLED:
        assert order_B2T is not None
        return g_d.gather(1, order_B2T[:, 0, :, None]), g_w.gather(1, order_B2T[:, 1, :, None])
    assert not isinstance(forced, str)
    if token_mask is None:
        return torch.full_like(g_d, forced[0]), torch.full_like(g_w, forced[1])
    mask_BT1 = token_mask[..., None]
    return torch.where(mask_BT1, forced[0], g_d), torch.where(mask_BT1, forced[1], g_w)


def shuffled_positions(
    tokens: torch.Tensor, token_mask: torch.Tensor | None, n_layers: int, seed: int
) -> torch.Tensor:
    """The positions that g_d and g_w are taken from, permutations of T: (L, B, 2, T) int64.

    Where `token_mask` (B, T) is False there is padding: it keeps its own gates, and no token gets
    them. The permutations of a sequence of `tokens` (B, T) depend on the seed and on its own tokens
    alone: not on its batch, its padding or the device.
    """
    batch, length = tokens.shape
    tokens_BT = tokens.long().cpu()
    mask_BT = torch.ones_like(tokens_BT) if token_mask is None else token_mask.cpu()
    order_LB2T = torch.arange(length).repeat(n_layers, batch, 2, 1)
    for row in range(batch):
        (real,) = mask_BT[row].nonzero(as_tuple=True)
        content = tokens_BT[row, real].numpy().tobytes()
        generator = torch.Generator().manual_seed(seed_from(seed, content) >> 1)
        keys = torch.rand(n_layers, 2, len(real), generator=generator, dtype=torch.float64)
        order_LB2T[:, row][..., real] = real[keys.argsort(-1)]
    return order_LB2T.to(tokens.device)
