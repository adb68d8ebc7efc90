"""DualPathLM: embedding, blocks, final norm, head; and the one place that initialises them.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import SHUFFLED, Intervention
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.loss import next_token_nll
from dualpath_cli.model.norm import RMSNorm
from dualpath_cli.model.rope import rope_tables
from dualpath_cli.model.routing import RoutingTrace
from dualpath_cli.model.shuffle import shuffled_positions


class DualPathLM(nn.Module):
    """A decoder-only language model whose layers are dual-path, loop or wide blocks.

    On the meta device nothing is initialised: after ``to_empty`` call `init_weights`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(DualPathBlock(config, kind) for kind in config.block_kinds)
        self.norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.tie_weights()
        if not self.embed.weight.is_meta:
            self.init_weights()

    def forward(
        self,
        tokens: torch.Tensor,
        targets: torch.Tensor | None = None,
        *,
        trace: RoutingTrace | None = None,
        intervention: Intervention | None = None,
        token_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps tokens (B, T) to logits (B, T, V), or with targets to losses in nats (B, T).

        Targets are the next tokens; positions whose target is ``loss.IGNORE`` get 0. An empty
        `trace` is filled with one LayerTrace per layer, of what an `intervention` made of it.
        `token_mask` (B, T) is True at the tokens that an intervention is about: those that are not
        padding, or those of the class that `Intervention.tokens` names. Gates are overridden and
        shuffled there alone, and for no others a halting loop goes on. Without it, all positions.

        Raises:
            ValueError: if the intervention makes no sense for this model, or names a class of
                tokens and `token_mask` is missing.
        """
        if intervention is not None and (problem := intervention.problem(self.config)):
            raise ValueError(f"{intervention.name}: {problem}")
        if intervention is not None and intervention.tokens and token_mask is None:
            raise ValueError(f"{intervention.name}: token_mask must say which tokens those are")
        x_BTD = self.embed(tokens)
        if self.config.residual_dtype == "bfloat16":
            x_BTD = x_BTD.bfloat16()
        rope = rope_tables(self.config, tokens.shape[1], like=x_BTD)
        orders: Iterable[torch.Tensor | None] = [None] * len(self.blocks)
        if intervention is not None and intervention.gates == SHUFFLED:
            orders = shuffled_positions(tokens, token_mask, len(self.blocks), intervention.seed)
        for number, (block, order_B2T) in enumerate(zip(self.blocks, orders, strict=True)):
            layer = None if trace is None else trace.add_layer()
            change = None if intervention is None else intervention.within(number)
            x_BTD = block(x_BTD, rope, layer, change, token_mask, order_B2T)
        x_BTD = self.norm(x_BTD)
        if targets is None:
            return self.head(x_BTD)
        return next_token_nll(x_BTD, self.head.weight, targets)

    def tie_weights(self) -> None:
        """Lets the head share the embedding's weight where the configuration says so."""
        if self.config.tie_embeddings:
            self.head.weight = self.embed.weight

    @torch.no_grad()
    def init_weights(self, seed: int | None = None) -> None:
        """Draws every parameter anew; without a seed, one is drawn from torch's generator."""
        self.tie_weights()  # to_empty() gives tied parameters a storage each
        for name, value in self.initial_values(seed):
            self.get_parameter(name).copy_(value)

    def initial_values(self, seed: int | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the name and the whole initial value (float32, CPU) of each parameter.

        =============================  ==========================================
        embedding, head, projections,  normal, std `init_std` (0.02)
        router weight
        attention and FFN outputs      normal, std `init_std` / sqrt(2 n_layers)
        norms                          1
        gains before the softplus      `gain_init` (-7: s is 9.1e-4)
        gate weight; all biases        0
        =============================  ==========================================

        Each value comes from a generator of its own, seeded by seed and name: the same whatever
        the device, the number of ranks, the block kinds and the order of construction, so that
        two architectures compared under one seed share all that they have in common.
        """
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        for name, parameter in self.named_parameters():
            yield name, self._initial_value(name, parameter.shape, seed)

    def _initial_value(self, name: str, shape: torch.Size, seed: int) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        if kind in ("gains", "gain"):
            return torch.full(shape, self.config.gain_init)
        if module.endswith("norm"):
            return torch.ones(shape)
        if kind == "bias" or module.endswith("gate.proj"):
            return torch.zeros(shape)
        std = self.config.init_std
        if module.endswith(("o_proj", "down_proj")):
            std /= math.sqrt(2 * self.config.n_layers)
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return torch.empty(shape).normal_(std=std, generator=generator)
