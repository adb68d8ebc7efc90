"""DualPathLM: embedding, blocks, some of them maybe in a loop, final norm, head.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from dualpath_cli.kernels.rms_norm import RMSNorm
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.core import Core
from dualpath_cli.model.draws import expert_draws, shuffled_positions
from dualpath_cli.model.layer_pass import (
    PLAIN,
    AuxiliaryLoss,
    Draws,
    LayerPasses,
    ModelPass,
)
from dualpath_cli.model.loss import NextTokenLoss
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.model.routing import RoutingTrace
from dualpath_cli.spec.config import Kind, ModelConfig
from dualpath_cli.spec.intervention import RANDOM, SHUFFLED, Intervention


class DualPathLM(nn.Module):
    """A decoder-only language model whose layers are dual-path, loop or wide blocks."""

    def __init__(self, config: ModelConfig, seed: int | None = None) -> None:
        """Draws the weights from `seed`; without one, torch's generator draws the seed.

        On the meta device nothing is drawn: after ``to_empty`` call `init_weights`, or
        `tie_weights` and load a checkpoint.
        """
        super().__init__()
        self.config = config
        device = torch.get_default_device()

        # On the meta device, or torch's modules would first draw their own values.
        with torch.device("meta"):
            self.embed = nn.Embedding(config.vocab_size, config.d_model)
            self.blocks = nn.ModuleList(map(DualPathBlock, config.layers))
            if config.core is not None:
                self.core = Core(config)
            self.norm = RMSNorm(config.d_model, eps=config.norm_eps)
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.loss = NextTokenLoss()
        self.tie_weights()

        if device.type != "meta":
            self.to_empty(device=device)
            self.init_weights(seed)

    def forward(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor | None = None,
        *,
        trace: RoutingTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
        auxiliary: AuxiliaryLoss | None = None,
        embeds: torch.Tensor | None = None,
        head: bool = True,
        model_pass: ModelPass = PLAIN,
    ) -> torch.Tensor:
        """Maps tokens (B, T) to logits (B, T, V), or with targets to losses (B, T).

        Losses are in nats. Targets are the next tokens; positions whose target is
        ``loss.IGNORE`` get 0. An empty `trace` is filled with one LayerTrace per
        application of a layer, under the `intervention` if there is one. An
        intervention applies where `token_mask` (B, T) is True: at tokens that are not
        padding, or that are of the class `Intervention.tokens`; without a mask,
        everywhere. `auxiliary` collects the auxiliary losses of feed-forwards, and
        those of the core's earlier repetitions, which the returned losses exclude.
        `embeds` (B, T, D) replace the tokens' embeddings. Without `head`, the head's
        input (B, T, D) is returned. `model_pass` cuts gradients in training; that of
        `decoding`, whose `forward` also takes padding and a cache, leaves steps or
        paths out.

        Raises:
            ValueError: if the intervention makes no sense for this model, needs the
                `forward` of `decoding`, or names a class of tokens and `token_mask` is
                missing.
        """
        self._check(intervention, token_mask, model_pass)

        x_BTD = self.embed(tokens) if embeds is None else embeds
        # float32 but for studies: bfloat16 would swallow the updates of small gains.
        if self.config.residual_dtype == "bfloat16":
            x_BTD = x_BTD.bfloat16()

        orders, draws = self._drawn(intervention, tokens, token_mask)
        passes = LayerPasses(
            config=self.config,
            model_pass=model_pass,
            positions=model_pass.positions(self.config, tokens, like=x_BTD),
            auxiliary=auxiliary,
            trace=trace,
            intervention=intervention,
            token_mask=token_mask,
            orders=orders,
            draws=draws,
        )

        prelude, core, coda = self.config.stretches
        x_BTD = self._through(prelude, x_BTD, passes)
        states: list[torch.Tensor] = []
        if core:
            repeat = partial(self._repeated, passes)
            x_BTD, states = model_pass.run_core(self.core, x_BTD, repeat, passes.core())
        x_BTD = self._through(coda, x_BTD, passes)
        if trace is not None and trace.keeps_states:
            trace.output = x_BTD

        x_BTD = self.norm(x_BTD)
        if targets is None:
            return self.head(x_BTD) if head else x_BTD

        if auxiliary is not None and auxiliary.loop_losses:
            for state_BTD in states[:-1]:
                losses_BT = self._losses_after_core(state_BTD, targets, passes)
                auxiliary.earlier.append(losses_BT)
        return self.loss(x_BTD, self.head.weight, targets)

    def _through(
        self, layers: range, x_BTD: torch.Tensor, passes: LayerPasses
    ) -> torch.Tensor:
        """The state after layers that are applied once, (B, T, D)."""
        for number in layers:
            x_BTD = self.blocks[number](x_BTD, passes.of(number))
        return x_BTD

    def _repeated(
        self,
        passes: LayerPasses,
        x_BTD: torch.Tensor,
        repetition: int,
        active_BT1: torch.Tensor | None,
    ) -> torch.Tensor:
        """`layer_pass.Repeat`: the state after the core's layers, (B, T, D)."""
        _, core, _ = self.config.stretches
        for number in core:
            here = passes.of(number, repetition, active_BT1)
            y_BTD = self.blocks[number](x_BTD, here)
            if active_BT1 is None:
                x_BTD = y_BTD
            else:
                x_BTD = torch.where(active_BT1, y_BTD, x_BTD)
        return x_BTD

    def _losses_after_core(
        self, x_BTD: torch.Tensor, targets: torch.Tensor, passes: LayerPasses
    ) -> torch.Tensor:
        """The losses (B, T) of a state of the core, read out by coda, norm and head."""
        _, _, coda = self.config.stretches
        only_read = replace(passes, auxiliary=None, trace=None)
        x_BTD = self._through(coda, x_BTD, only_read)
        losses_BT: torch.Tensor = self.loss(self.norm(x_BTD), self.head.weight, targets)
        return losses_BT

    def _drawn(
        self,
        intervention: Intervention | None,
        tokens: torch.Tensor,
        token_mask: torch.Tensor | None,
    ) -> tuple[Draws, Draws]:
        """`shuffled_positions` and `expert_draws`, if an intervention needs them."""
        if intervention is None:
            return {}, {}

        orders: Draws = {}
        draws: Draws = {}
        seed = intervention.seed
        applications = self.config.applications(intervention.core_loops)
        count = len(applications)
        if intervention.gates == SHUFFLED:
            order_LB2T = shuffled_positions(tokens, token_mask, count, seed)
            orders = dict(zip(applications, order_LB2T, strict=True))

        if intervention.experts == RANDOM:
            most = max(layer.n_experts for layer in self.config.layers)
            draws_LBTE = expert_draws(tokens, token_mask, count, most, seed)
            draws = dict(zip(applications, draws_LBTE, strict=True))

        return orders, draws

    def _check(
        self,
        intervention: Intervention | None,
        token_mask: torch.Tensor | None,
        model_pass: ModelPass,
    ) -> None:
        """Raises ValueError for an intervention that cannot be carried out."""
        if intervention is None:
            return

        if problem := intervention.problem(self.config):
            raise ValueError(f"{intervention.name}: {problem}")

        if intervention.tokens and token_mask is None:
            raise ValueError(
                f"{intervention.name}: token_mask must say which tokens those are"
            )

        if intervention.leaves_out and not model_pass.leaves_out:
            raise ValueError(
                f"{intervention.name}: takes the forward of dualpath_cli.decoding"
            )

    def tie_weights(self) -> None:
        """Lets the head share the embedding's weight if the configuration says so."""
        if self.config.tie_embeddings:
            self.head.weight = self.embed.weight

    @torch.no_grad()
    def init_weights(
        self,
        seed: int | None = None,
        copy: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_,
        std_factors: Mapping[Kind, float] = {},
    ) -> None:
        """Draws every parameter, see `parameters.KINDS`; draws a missing seed, too.

        `copy` puts a whole value, float32 on the CPU, into a parameter; `std_factors`
        are those of `initial_value`.
        """
        self.tie_weights()  # to_empty() gives each tied parameter a separate storage
        if seed is None:
            drawn = torch.randint(2**62, (), device="cpu")
            seed = int(drawn.item())

        for name, parameter in self.named_parameters():
            value = initial_value(name, parameter.shape, self.config, seed, std_factors)
            copy(parameter, value)
