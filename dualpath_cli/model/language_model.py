"""DualPathLM: embedding, blocks, final norm, head.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.cache import Cache
from dualpath_cli.model.feed_forward import AuxiliaryLoss
from dualpath_cli.model.gates import shuffled_positions
from dualpath_cli.model.loss import NextTokenLoss
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.model.positions import (
    Positions,
    documents_of,
    mask_in_cache,
    places_in_documents,
)
from dualpath_cli.model.precision import RMSNorm
from dualpath_cli.model.rope import rope_at, rope_tables
from dualpath_cli.model.routing import RoutingTrace


class DualPathLM(nn.Module):
    """A decoder-only language model whose layers are dual-path, loop or wide blocks."""

    def __init__(self, config: ModelConfig, seed: int | None = None) -> None:
        """Draws the weights from `seed`; without one, from a seed by torch's generator.

        On the meta device nothing is drawn: after ``to_empty`` call `init_weights`, or
        `tie_weights` and load a checkpoint.
        """
        super().__init__()
        self.config = config
        device = torch.get_default_device()
        with torch.device("meta"):  # or torch's modules would draw values of their own first
            self.embed = nn.Embedding(config.vocab_size, config.d_model)
            self.blocks = nn.ModuleList(DualPathBlock(config, kind) for kind in config.block_kinds)
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
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        last_logits: int | None = None,
    ) -> torch.Tensor:
        """Maps tokens (B, T) to logits (B, T, V), or with targets to losses in nats (B, T).

        Targets are the next tokens; positions whose target is ``loss.IGNORE`` get 0. An empty
        `trace` is filled with one LayerTrace per layer, of what an `intervention` made of it.
        `token_mask` (B, T) is True at the tokens that an intervention is about: those that are not
        padding, or those of the class that `Intervention.tokens` names. Gates are overridden and
        shuffled there alone, and for no others a halting loop goes on. Without it, all positions
        that `attention_mask` leaves.
        `auxiliary` gets what feed-forwards add to the training loss; the losses are without it.

        `attention_mask` (B, T) is False at padding, wherever it is: other tokens do not look at
        it, and count their positions without it; what comes out there means nothing. With a `cache`
        the tokens follow those of the passes before, which they need not repeat. `last_logits` is
        how many of the last positions logits are wanted of, where there are no targets.
        `Intervention.kv_slots` without a cache means one pass a token, without gradients.

        Raises:
            ValueError: if the intervention makes no sense for this model, names a class of tokens
                and `token_mask` is missing, shuffles the gates of positions that are cached, or is
                another one than that of the passes before.
        """
        if intervention is not None and (problem := intervention.problem(self.config)):
            raise ValueError(f"{intervention.name}: {problem}")
        if intervention is not None and intervention.tokens and token_mask is None:
            raise ValueError(f"{intervention.name}: token_mask must say which tokens those are")
        if intervention is not None and intervention.gates == SHUFFLED and cache is not None:
            raise ValueError(f"{intervention.name}: needs the whole sequence, without a cache")
        if intervention is not None and intervention.kv_slots is not None and cache is None:
            return self._token_by_token(
                tokens, targets, trace, intervention, token_mask, attention_mask, last_logits
            )  # fmt: skip
        if token_mask is None and attention_mask is not None and intervention is not None:
            token_mask = attention_mask.bool()
        if cache is not None:
            cache.begin(intervention)
        x_BTD = self.embed(tokens)
        if self.config.residual_dtype == "bfloat16":
            x_BTD = x_BTD.bfloat16()
        positions = self._positions(tokens, attention_mask, cache, like=x_BTD)
        by_entropy = intervention is not None and intervention.halting_by == "entropy"
        lens = self.lens if by_entropy else None
        orders: Iterable[torch.Tensor | None] = [None] * len(self.blocks)
        if intervention is not None and intervention.gates == SHUFFLED:
            orders = shuffled_positions(tokens, token_mask, len(self.blocks), intervention.seed)
        for number, (block, order_B2T) in enumerate(zip(self.blocks, orders, strict=True)):
            layer = None if trace is None else trace.add_layer()
            change = None if intervention is None else intervention.within(number)
            kept = None if cache is None else cache.layers[number]
            x_BTD = block(
                x_BTD, positions, layer, change, token_mask, order_B2T, auxiliary, kept, lens
            )  # fmt: skip
        if trace is not None and trace.keeps_states:
            trace.output = x_BTD
        if last_logits is not None and targets is None:
            x_BTD = x_BTD[:, -last_logits:]
        x_BTD = self.norm(x_BTD)
        if targets is None:
            return self.head(x_BTD)
        return self.loss(x_BTD, self.head.weight, targets)

    def lens(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """What a state (B, T, D) would say, ended the last layer with it: logits (B, T, V)."""
        return self.head(self.norm(x_BTD))

    @torch.no_grad()
    def _token_by_token(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor | None,
        trace: RoutingTrace | None,
        intervention: Intervention,
        token_mask: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        last_logits: int | None,
    ) -> torch.Tensor:
        """`forward` as T passes, in each of which all tokens before are seen by their slots."""
        cache, outputs = Cache(self.config, capacity=tokens.shape[1]), []
        for place in range(tokens.shape[1]):
            now = slice(place, place + 1)
            masks = (
                None if mask is None else mask[:, now] for mask in (token_mask, attention_mask)
            )
            token_mask_B1, attention_mask_B1 = masks
            part = None if trace is None else RoutingTrace(keeps_states=trace.keeps_states)
            outputs.append(
                self.forward(
                    tokens[:, now], None if targets is None else targets[:, now], trace=part,
                    intervention=intervention, token_mask=token_mask_B1,
                    attention_mask=attention_mask_B1, cache=cache,
                )
            )  # fmt: skip
            if trace is not None and part is not None:
                trace.append(part)
        if last_logits is not None and targets is None:
            outputs = outputs[-last_logits:]
        return torch.cat(outputs, dim=1)

    def _positions(
        self,
        tokens: torch.Tensor,
        attention_mask: torch.Tensor | None,
        cache: Cache | None,
        like: torch.Tensor,
    ) -> Positions:
        """Where the tokens are, and what they may look at."""
        first, count = self.config.document_start, tokens.shape[1]
        starts_BT = None if first is None else tokens == first
        if cache is None and attention_mask is None:
            positions = Positions(rope_tables(self.config, count, like))
            return positions if starts_BT is None else positions.of_documents(starts_BT)
        cache = Cache(self.config) if cache is None else cache
        places_T = torch.arange(cache.length, cache.length + count, device=tokens.device)
        documents_BT = documents_of(tokens, starts_BT, attention_mask, cache.documents_BS)
        documents_BS = cache.extend(count, documents_BT)
        if documents_BS is not None:
            places_BT = places_in_documents(documents_BS)[:, places_T]
            mask = mask_in_cache(documents_BS, places_T, documents_BS.shape[1])
            return Positions(rope_at(self.config, places_BT, like), mask)
        seen = None if cache.static is None else mask_in_cache(None, places_T, cache.capacity)
        return Positions(rope_at(self.config, places_T, like), seen)

    def tie_weights(self) -> None:
        """Lets the head share the embedding's weight where the configuration says so."""
        if self.config.tie_embeddings:
            self.head.weight = self.embed.weight

    @torch.no_grad()
    def init_weights(
        self,
        seed: int | None = None,
        copy: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_,
    ) -> None:
        """Draws every parameter (see `parameters.KINDS`); without a seed, one is drawn, too.

        `copy` puts a whole value, float32 on the CPU, into a parameter.
        """
        self.tie_weights()  # to_empty() gives tied parameters a storage each
        if seed is None:
            seed = int(torch.randint(2**62, (), device="cpu").item())
        for name, parameter in self.named_parameters():
            copy(parameter, initial_value(name, parameter.shape, self.config, seed))
