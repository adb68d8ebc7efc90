"""Byte-level vocabularies that need no files."""

from dualpath_cli.data.tokenizer import Tokenizer, definition_from_gpt2_files
from dualpath_cli.data.tokenizer_json import BYTE_OF_CHARACTER


def definition_with(merges: list[str]) -> dict:
    """The 256 bytes, these merges (`"h e"`) and end-of-text, as a `tokenizer.json`
    holds them."""
    tokens = [
        *BYTE_OF_CHARACTER,
        *(m.replace(" ", "") for m in merges),
        "<|endoftext|>",
    ]
    vocab = {token: id for id, token in enumerate(tokens)}
    return definition_from_gpt2_files(
        vocab, "#version: 0.2\n" + "\n".join(merges) + "\n"
    )


def tokenizer_with(merges: list[str]) -> Tokenizer:
    """The same as a tokenizer."""
    return Tokenizer(definition_with(merges))
