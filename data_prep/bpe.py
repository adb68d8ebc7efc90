"""Training of a byte-level BPE, by the library tokenizers."""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers


def train(texts: Iterable[str], vocab_size: int) -> str:
    """Trains a BPE and returns its `tokenizer.json`; equal texts give an equal one.

    It has `vocab_size` entries, or fewer where no more pairs are left to merge. End-of-text is the
    first one.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True)
