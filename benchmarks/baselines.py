"""Llama as others write it, of any number of training FLOPs: what our models are set beside.

Shapes: B batch, T positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """What all models of a comparison share."""

    d_model: int
    n_heads: int
    seq_len: int
    vocab_size: int


def llama_width(shape: Shape, n_layers: int, flops: float) -> int:
    """FFN width, a multiple of 8, of the Llama that trains at `flops` FLOPs a token.

    Raises SystemExit where its attention alone costs more.
    """
    d = shape.d_model
    forward = flops / 3 - 2 * d * shape.vocab_size
    width = (forward / n_layers - 8 * d * d - 2 * shape.seq_len * d) / (6 * d)
    if width < 8:
        raise SystemExit(f"{n_layers} Llama layers of width {d} cost over {flops:,.0f} FLOPs")
    return 8 * round(width / 8)


def llama_config(shape: Shape, n_layers: int, flops: float, positions: int) -> Any:
    """The configuration of Hugging Face's `transformers` for the Llama of `llama_width`."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        intermediate_size=llama_width(shape, n_layers, flops),
        num_hidden_layers=n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


class TransformersLlama(nn.Module):
    """That of Hugging Face's `transformers`, with its own loss."""

    def __init__(self, shape: Shape, n_layers: int, flops: float) -> None:
        from transformers import LlamaForCausalLM

        super().__init__()
        config = llama_config(shape, n_layers, flops, shape.seq_len)
        config.use_cache = False
        self.model = LlamaForCausalLM(config)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Mean loss in nats a token."""
        return self.model(input_ids=tokens_BT, labels=targets_BT, shift_labels=targets_BT).loss
