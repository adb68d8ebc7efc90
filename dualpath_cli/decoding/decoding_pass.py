"""The pass of decoding: it may follow others, be padded, and leave out steps, paths, keys, values.

Shapes: B batch, T positions, D model width, V vocabulary, H heads, N head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.cache import Cache, CachedSublayerPass, LayerCache
from dualpath_cli.decoding.early_exit import EarlyExit, EarlyExitOfRows, keep, only_some
from dualpath_cli.decoding.positions import positions_in_cache
from dualpath_cli.intervention import Intervention
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
    """`DualPathLM.forward` of tokens (B, T) that may be padded, or follow those in a cache.

    `attention_mask` (B, T) is False at padding, wherever it is: other tokens neither look at it nor
    count it in their positions; outputs there mean nothing, and interventions leave it out unless
    `token_mask` includes it. With a `cache` the tokens follow those of earlier passes.
    `Intervention.kv_slots` without a cache means one pass a token, without gradients.

    Raises:
        ValueError: as the model's own; for a cache of which the intervention needs the whole text,
            or that was begun under another intervention.
    """
    if intervention is not None and intervention.needs_whole_text and cache is not None:
        raise ValueError(f"{intervention.name}: needs the whole sequence, without a cache")
    if intervention is not None and intervention.kv_slots is not None and cache is None:
        outputs = _token_by_token(
            model, tokens, trace, intervention,
            targets=targets, attention_mask=attention_mask, token_mask=token_mask,
        )  # fmt: skip
        return outputs if last_logits is None or targets is not None else outputs[:, -last_logits:]
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
    trace: RoutingTrace | None,
    intervention: Intervention,
    **by_position: torch.Tensor | None,
) -> torch.Tensor:
    """`forward` as T passes of one token each, so that a token sees what the earlier ones left in
    the slots.
    """
    cache, outputs = Cache(model.config, capacity=tokens.shape[1]), []
    for t in range(tokens.shape[1]):
        part = None if trace is None else RoutingTrace(keeps_states=trace.keeps_states)
        of_t: dict[str, Any] = {
            name: x if x is None else x[:, t : t + 1] for name, x in by_position.items()
        }
        outputs.append(
            forward(
                model, tokens[:, t : t + 1], cache=cache, trace=part, intervention=intervention,
                **of_t,
            )
        )  # fmt: skip
        if trace is not None and part is not None:
            trace.append(part)
    return torch.cat(outputs, dim=1)


@dataclass
class DecodingPass(ModelPass):
    """A pass under an intervention, of tokens that may follow those in a cache."""

    intervention: Intervention | None = None
    cache: Cache | None = None
    attention_mask: torch.Tensor | None = None  # false at padding, (B, T); None: there is none

    leaves_out = True

    def positions(self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor) -> Positions:
        """The positions after those in the cache; they are added to it."""
        if self.cache is not None:
            self.cache.begin(self.intervention)
        elif self.attention_mask is None:
            return super().positions(config, tokens, like)
        cache = Cache(config) if self.cache is None else self.cache
        return positions_in_cache(config, tokens, self.attention_mask, cache, like)

    def layer(self, number: int, plain: LayerPass) -> LayerPass:
        """A pass with the layer's part of the cache."""
        cache = None if self.cache is None else self.cache.layers[number]
        return DecodingLayerPass(**vars(plain), cache=cache)


@dataclass
class DecodingLayerPass(LayerPass):
    """A layer's pass in which tokens may halt in the loop or skip a path; maybe with a cache."""

    cache: LayerCache | None = None

    @property
    def writes(self) -> bool:
        """True: a layer that is computed twice would write its cache twice."""
        return True

    def wide(self) -> CachedSublayerPass:
        """Arguments for the sublayer of the wide path."""
        cache = None if self.cache is None else self.cache.wide
        skips = self.intervention is not None and self.intervention.skip is not None
        trace = None if skips else self.trace  # not all tokens take experts
        return CachedSublayerPass(
            self.positions, self.auxiliary, trace, self.intervention, self.draws, cache
        )

    def step(self, k: int) -> CachedSublayerPass:
        """Arguments for the sublayer of the deep path in step k, from 1."""
        cache = None if self.cache is None else self.cache.step(k - 1)
        return CachedSublayerPass(self.positions, self.auxiliary, cache=cache)

    def run_deep(
        self, path: nn.Module, x_BTD: torch.Tensor, g_d: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_deep, (B, T, D); a token that takes no step gets x."""
        awake_BT1 = self._awake(g_d)
        halts = self.intervention is not None and self.intervention.halting is not None
        if awake_BT1 is None and not halts:
            return super().run_deep(path, x_BTD)
        assert isinstance(path, DeepPath)
        loop = EarlyExitOfRows if self._rows_separable(x_BTD) else EarlyExit
        return loop(path, self, self.cache).run(x_BTD, awake_BT1)

    def run_wide(
        self, path: nn.Module, x_BTD: torch.Tensor, g_w: torch.Tensor | None = None
    ) -> torch.Tensor:
        """h_wide, (B, T, D); a token that skips the path gets x."""
        awake_BT1 = self._awake(g_w)
        if awake_BT1 is None:
            return super().run_wide(path, x_BTD)
        if self.trace is not None:
            self.trace.wide_taken = awake_BT1.squeeze(-1)
        if not self._rows_separable(x_BTD):
            return torch.where(awake_BT1, path(x_BTD, self), x_BTD)
        assert self.cache is not None
        assert isinstance(path, WidePath)
        awake_B, scales = awake_BT1[:, 0, 0], path.scales()
        keep(path.sublayer, x_BTD, ~awake_B, scales, self.positions, [self.cache.wide])
        return only_some(path.sublayer, x_BTD, awake_B, scales, self.wide())

    def _awake(self, gate_BT1: torch.Tensor | None) -> torch.Tensor | None:
        """Which tokens take a path, by its gate, (B, T, 1); None: all do."""
        if gate_BT1 is None or self.intervention is None or self.intervention.skip is None:
            return None
        return gate_BT1 >= self.intervention.skip

    def _rows_separable(self, x_BTD: torch.Tensor) -> bool:
        """Whether some sequences of the batch can be computed without the others."""
        return self.cache is not None and self.cache.rows_separable and x_BTD.shape[1] == 1
