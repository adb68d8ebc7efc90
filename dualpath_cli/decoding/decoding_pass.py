"""The pass of decoding: may follow others, be padded, and leave out steps or paths.

Its layers are those of `early_exit.py`.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dualpath_cli.decoding.cache import Cache, positions_in_cache
from dualpath_cli.decoding.early_exit import (
    DecodingLayerPass,
    Exit,
    Schedule,
    leave_core_early,
)
from dualpath_cli.model.core import Core
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.layer_pass import CorePass, LayerPass, ModelPass, Repeat
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.routing import RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention


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
    schedule: Schedule | None = None,
    embeds: torch.Tensor | None = None,
    head: bool = True,
) -> torch.Tensor:
    """`DualPathLM.forward` of tokens (B, T) that may be padded, or follow those in a
    cache.

    `attention_mask` (B, T) is False at padding, anywhere: other tokens neither look at
    padding nor count it in their positions; its outputs are meaningless, and
    interventions apply to it only if `token_mask` includes it. With a `cache` the
    tokens follow tokens of earlier passes. `Intervention.kv_slots` without a cache
    means one pass for each token, without gradients. `schedule` is that of
    `Intervention.blind`.

    Raises:
        ValueError: as in the model's `forward`; also for a cache if the intervention
            needs the whole text, or if the cache was begun under another intervention;
            and for a blind exit without a schedule.
    """
    if intervention is not None:
        _check(intervention, cache, schedule)

    if intervention is not None and intervention.kv_slots is not None and cache is None:
        return _token_by_token(
            model,
            tokens,
            trace,
            intervention,
            head,
            targets=targets,
            attention_mask=attention_mask,
            token_mask=token_mask,
            embeds=embeds,
        )

    if token_mask is None and attention_mask is not None and intervention is not None:
        token_mask = attention_mask.bool()
    # An overriding `forward` calls this function; else `forward` is called: FSDP2
    # gathers weights.
    own = type(model).forward is not DualPathLM.forward
    call = partial(DualPathLM.forward, model) if own else model
    logits: torch.Tensor = call(
        tokens,
        targets,
        trace=trace,
        intervention=intervention,
        token_mask=token_mask,
        embeds=embeds,
        head=head,
        model_pass=DecodingPass(
            intervention=intervention,
            cache=cache,
            attention_mask=attention_mask,
            schedule=schedule,
        ),
    )
    return logits


def _check(
    intervention: Intervention, cache: Cache | None, schedule: Schedule | None
) -> None:
    """Raises ValueError for an intervention that a pass cannot carry out."""
    if intervention.blind and schedule is None:
        raise ValueError(
            f"{intervention.name}: schedule must say how many steps each token takes"
        )

    if intervention.needs_whole_text and cache is not None:
        raise ValueError(
            f"{intervention.name}: needs the whole sequence, without a cache"
        )


@torch.no_grad()
def _token_by_token(
    model: DualPathLM,
    tokens: torch.Tensor,
    trace: RoutingTrace | None,
    intervention: Intervention,
    head: bool,
    **by_position: torch.Tensor | None,
) -> torch.Tensor:
    """`forward` as T passes of one token each, so that a token sees earlier tokens
    through their slots.
    """
    # The next token must find the slots that earlier ones left.
    cache = Cache(model.config, capacity=tokens.shape[1])
    outputs = []
    for t in range(tokens.shape[1]):
        at_t = slice(t, t + 1)
        arguments_of_t: dict[str, Any] = {
            name: None if x is None else x[:, at_t] for name, x in by_position.items()
        }
        trace_of_t = None
        if trace is not None:
            trace_of_t = RoutingTrace(keeps_states=trace.keeps_states)

        output = forward(
            model,
            tokens[:, at_t],
            cache=cache,
            trace=trace_of_t,
            head=head,
            intervention=intervention,
            **arguments_of_t,
        )
        outputs.append(output)
        if trace is not None and trace_of_t is not None:
            trace.append(trace_of_t)

    return torch.cat(outputs, dim=1)


@dataclass
class DecodingPass(ModelPass):
    """A pass under an intervention, of tokens that may follow those in a cache."""

    intervention: Intervention | None = None
    cache: Cache | None = None
    # False at padding, (B, T); None: no padding
    attention_mask: torch.Tensor | None = None
    fixed: Positions | None = None  # replace the positions after the cache
    schedule: Schedule | None = None  # of a blind exit

    leaves_out = True

    def positions(
        self, config: ModelConfig, tokens: torch.Tensor, like: torch.Tensor
    ) -> Positions:
        """The positions after those in the cache, added to the cache."""
        if self.fixed is not None:
            return self.fixed
        if self.cache is not None:
            self.cache.begin(self.intervention)
        elif self.attention_mask is None:
            return super().positions(config, tokens, like)

        cache = Cache(config) if self.cache is None else self.cache
        return positions_in_cache(config, tokens, self.attention_mask, cache, like)

    def layer(self, number: int, repetition: int, plain: LayerPass) -> LayerPass:
        """A pass with the layer's part of the cache."""
        cache = None if self.cache is None else self.cache.at(number, repetition)
        planned = None
        if self.schedule is not None:
            planned = self.schedule.layers.get((number, repetition))
        return DecodingLayerPass(**vars(plain), cache=cache, planned=planned)

    def run_core(
        self, core: nn.Module, e_BTD: torch.Tensor, repeat: Repeat, here: CorePass
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The output and the states of the core, (B, T, D) each."""
        assert isinstance(core, Core)
        if here.halting is None or not core.config.routes_core:
            return super().run_core(core, e_BTD, repeat, here)

        planned_BT = None if self.schedule is None else self.schedule.core
        exit_ = Exit(here.halting, planned_BT)
        cached = self.cache is not None
        return leave_core_early(core, e_BTD, repeat, here, exit_, cached)
