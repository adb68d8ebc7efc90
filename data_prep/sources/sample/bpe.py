"""The sample's own tokenizer: a byte-level BPE trained on its texts."""

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dualpath_cli.text.tokenizer import Tokenizer

VOCAB_SIZE = 2048


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Trains a BPE of 2,048 entries, end-of-text included; equal texts give an equal one."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Tokenizer(json.loads(tokenizer.to_str()), "the sample's own")
