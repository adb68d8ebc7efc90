"""The Llama of `transformers` at any number of training FLOPs, to compare our models
with.

Shapes: B batch, T positions, H heads, N head size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dualpath_cli.spec.config import ModelConfig

CAUSAL = "causal_kernel"
"""The name of `causal_kernel` among transformers' kinds of attention."""


def llama_width(config: ModelConfig, n_layers: int, flops: float) -> int:
    """FFN width, a multiple of 8, of the Llama that trains at `flops` FLOPs a token.

    Width, heads, vocabulary and positions are those of `config`. Raises SystemExit
    where its attention alone costs more.
    """
    d = config.d_model
    forward = flops / 3 - 2 * d * config.vocab_size
    width = (forward / n_layers - 8 * d * d - 2 * config.max_seq_len * d) / (6 * d)
    if width < 8:
        raise SystemExit(
            f"{n_layers} Llama layers of width {d} cost over {flops:,.0f} FLOPs"
        )
    return 8 * round(width / 8)


def llama_config(
    config: ModelConfig, n_layers: int, flops: float, positions: int
) -> Any:
    """The configuration of Hugging Face's `transformers` for the Llama of
    `llama_width`."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        intermediate_size=llama_width(config, n_layers, flops),
        num_hidden_layers=n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def causal_kernel(
    module: nn.Module,
    query_BHTN: torch.Tensor,
    key_BHTN: torch.Tensor,
    value_BHTN: torch.Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """PyTorch's causal kernel, without a mask, (B, T, H, N): what transformers has
    eagerly.

    Compiled, its own `sdpa` is given a mask of T x T, and the kernels for masks are
    slower: on an H200 a step took 1.16 times as long.
    """
    assert attention_mask is None, (
        "transformers makes none for a kind of attention that is not its"
    )
    y_BHTN = F.scaled_dot_product_attention(
        query_BHTN, key_BHTN, value_BHTN, is_causal=True, scale=scaling
    )
    return y_BHTN.transpose(1, 2).contiguous(), None


class TransformersLlama(nn.Module):
    """The Llama of Hugging Face's `transformers`, with its loss, at its best:
    `causal_kernel`."""

    def __init__(self, config: ModelConfig, n_layers: int, flops: float) -> None:
        from transformers import AttentionInterface, LlamaForCausalLM

        super().__init__()
        AttentionInterface.register(CAUSAL, causal_kernel)
        theirs = llama_config(config, n_layers, flops, config.max_seq_len)
        theirs.use_cache, theirs._attn_implementation = False, CAUSAL
        self.model = LlamaForCausalLM(theirs)

    def forward(
        self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor
    ) -> torch.Tensor:
        """Mean loss in nats a token."""
        targets_BT = targets_BT.contiguous()  # transformers views it as a row
        return self.model(
            input_ids=tokens_BT, labels=targets_BT, shift_labels=targets_BT
        ).loss
