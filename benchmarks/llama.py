"""The Llama of `transformers` at any number of training FLOPs, to compare our models with.

Shapes: B batch, T positions, V vocabulary.
"""

from typing import Any

import torch
from torch import nn

from dualpath_cli.config import ModelConfig


def llama_width(config: ModelConfig, n_layers: int, flops: float) -> int:
    """FFN width, a multiple of 8, of the Llama that trains at `flops` FLOPs a token.

    Width, heads, vocabulary and positions are those of `config`. Raises SystemExit where its
    attention alone costs more.
    """
    d = config.d_model
    forward = flops / 3 - 2 * d * config.vocab_size
    width = (forward / n_layers - 8 * d * d - 2 * config.max_seq_len * d) / (6 * d)
    if width < 8:
        raise SystemExit(f"{n_layers} Llama layers of width {d} cost over {flops:,.0f} FLOPs")
    return 8 * round(width / 8)


def llama_config(config: ModelConfig, n_layers: int, flops: float, positions: int) -> Any:
    """The configuration of Hugging Face's `transformers` for the Llama of `llama_width`."""
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


class TransformersLlama(nn.Module):
    """The Llama of Hugging Face's `transformers`, with its loss."""

    def __init__(self, config: ModelConfig, n_layers: int, flops: float) -> None:
        from transformers import LlamaForCausalLM

        super().__init__()
        theirs = llama_config(config, n_layers, flops, config.max_seq_len)
        theirs.use_cache = False
        self.model = LlamaForCausalLM(theirs)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Mean loss in nats a token."""
        return self.model(input_ids=tokens_BT, labels=targets_BT, shift_labels=targets_BT).loss
