"""A pass that may follow others, be padded, and leave steps, paths, keys and values out.

Shapes: B batch, T positions, D model width, V vocabulary, H heads, N head size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.cache import Cache, CachedSublayerPass, LayerCache
from dualpath_cli.decoding.early_exit import EarlyExit, EarlyExitOfRows, keep, only_some
from dualpath_cli.decoding.positions import positions_in_cache
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model.block import WidePath
from dualpath_cli.model.deep_path import DeepPath
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.layer_pass import LayerPass, ModelPass
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.routing import RoutingTrace


def forward(
    model: DualPathLM,
    tokens: torch.Tensor,
    targets: torch.Tensor | None = None,
    *,
    cache: Cache | None = None,
    attention_mask: torch.Tensor | None = None,
    trace: RoutingTrace | None = None,
    intervention: Intervention | None = None,
    token_mask: torch.Tensor | None = None,
    last_logits: int | None = None,
) -> torch.Tensor:
    """`DualPathLM.forward` of tokens (B, T) that may be padded, or follow those of passes before.

    `attention_mask` (B, T) is False at padding, wherever it is: other tokens do not look at it, and
    count their positions without it; what comes out there means nothing, and no intervention is
    about it unless `token_mask` says so. With a `cache` the tokens follow those of the passes
    before, which they need not repeat. `Intervention.kv_slots` without a cache means one pass a
    token, without gradients.

    Raises:
        ValueError: as the model's own, and if the intervention shuffles the gates of positions that
            are cached, or is another one than that of the passes before.
    """
    if intervention is not None and intervention.gates == SHUFFLED and cache is not None:
        raise ValueError(f"{intervention.name}: needs the whole sequence, without a cache")
    if intervention is not None and intervention.kv_slots is not None and cache is None:
        return _token_by_token(
            model, tokens, targets, trace, intervention, token_mask, attention_mask, last_logits
        )
    if token_mask is None and attention_mask is not None and intervention is not None:
        token_mask = attention_mask.bool()
    return model(
        tokens, targets, trace=trace, intervention=intervention, token_mask=token_mask,
        last_logits=last_logits, model_pass=DecodingPass(intervention, cache, attention_mask),
    )  # fmt: skip


@torch.no_grad()
def _token_by_token(
    model: DualPathLM,
    tokens: torch.Tensor,
    targets: torch.Tensor | None,
    trace: RoutingTrace | None,
    intervention: Intervention,
    token_mask: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    last_logits: int | None,
) -> torch.Tensor:
    """`forward` as T passes, in each of which all tokens before are seen by their slots."""
    cache, outputs = Cache(model.config, capacity=tokens.shape[1]), []

    def of(place: int, whole: torch.Tensor | None) -> torch.Tensor | None:
        return None if whole is None else whole[:, place : place + 1]

    for place in range(tokens.shape[1]):
        part = None if trace is None else RoutingTrace(keeps_states=trace.keeps_states)
        outputs.append(
            forward(
                model, tokens[:, place : place + 1], of(place, targets), cache=cache, trace=part,
                attention_mask=of(place, attention_mask), intervention=intervention,
                token_mask=of(place, token_mask),
            )
        )  # fmt: skip
        if trace is not None and part is not None:
            trace.append(part)
    if last_logits is not None and targets is None:
        outputs = outputs[-last_logits:]
    return torch.cat(outputs, dim=1)


@dataclass
class DecodingPass(ModelPass):
    """A pass under an intervention, of tokens that follow those in a cache, if there is one."""

    intervention: Intervention | None = None
    cache: Cache | None = None
    attention_mask: torch.Tensor | None = None
    """Where the tokens are no padding, (B, T); None: nowhere is any."""

    leaves_out = True

    def positions(self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor) -> Positions:
        """Those behind the positions in the cache, into which they are entered."""
        if self.cache is not None:
            self.cache.begin(self.intervention)
        elif self.attention_mask is None:
            return super().positions(config, tokens, like)
        cache = Cache(config) if self.cache is None else self.cache
        return positions_in_cache(config, tokens, self.attention_mask, cache, like)

    def layer(self, number: int, plain: LayerPass) -> LayerPass:
        """One that knows the layer's part of the cache."""
        cache = None if self.cache is None else self.cache.layers[number]
        return DecodingLayerPass(**vars(plain), cache=cache)


@dataclass
class DecodingLayerPass(LayerPass):
    """A layer's pass in which tokens may leave their loop or a path, with or without a cache."""

    cache: LayerCache | None = None

    @property
    def writes(self) -> bool:
        """Whether the layer writes anything down, which must not be computed twice."""
        return True

    def wide(self) -> CachedSublayerPass:
        """Arguments for the sublayer of the wide path."""
        cache = None if self.cache is None else self.cache.wide
        return CachedSublayerPass(self.positions, self.auxiliary, cache)

    def step(self, number: int) -> CachedSublayerPass:
        """Arguments for the sublayer of the deep path in a step, from 0."""
        cache = None if self.cache is None else self.cache.step(number)
        return CachedSublayerPass(self.positions, self.auxiliary, cache)

    def run_deep(
        self, path: nn.Module, x_BTD: torch.Tensor, g_d: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_deep, (B, T, D), of which tokens may leave steps or all of it out."""
        awake_BT1 = self._awake(g_d)
        halts = self.intervention is not None and self.intervention.halting is not None
        if awake_BT1 is None and not halts:
            return super().run_deep(path, x_BTD)
        assert isinstance(path, DeepPath)
        loop = EarlyExitOfRows if self._rows_part(x_BTD) else EarlyExit
        return loop(path, self, self.cache).run(x_BTD, awake_BT1)

    def run_wide(
        self, path: nn.Module, x_BTD: torch.Tensor, g_w: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_wide, (B, T, D); of tokens that leave it out x comes out."""
        awake_BT1 = self._awake(g_w)
        if awake_BT1 is None:
            return super().run_wide(path, x_BTD)
        if self.trace is not None:
            self.trace.wide_taken = awake_BT1.squeeze(-1)
        if not self._rows_part(x_BTD):
            return torch.where(awake_BT1, path(x_BTD, self), x_BTD)
        assert self.cache is not None
        assert isinstance(path, WidePath)
        awake_B, gain = awake_BT1[:, 0, 0], F.softplus(path.gain[0])
        keep(path.sublayer, x_BTD, ~awake_B, self.positions, [self.cache.wide])
        return only_some(path.sublayer, x_BTD, awake_B, gain, self.wide())

    def _awake(self, gate_BT1: torch.Tensor | None) -> torch.Tensor | None:
        """Which tokens take a path, by its gate, (B, T, 1); None: all do."""
        if gate_BT1 is None or self.intervention is None or self.intervention.skip is None:
            return None
        return gate_BT1 >= self.intervention.skip

    def _rows_part(self, x_BTD: torch.Tensor) -> bool:
        """Whether some sequences of the batch can go on without the others."""
        return self.cache is not None and self.cache.rows_can_part and x_BTD.shape[1] == 1
