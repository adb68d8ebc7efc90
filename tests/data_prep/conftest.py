"""Small vocabularies, and files of documents to prepare."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.text.byte_level import byte_of_character, definition_from_gpt2_files
from dualpath_cli.text.tokenizer import Tokenizer


def tokenizer_with(merges: list[str]) -> Tokenizer:
    """A byte-level BPE with these merges and end-of-text."""
    tokens = [*byte_of_character(), *(m.replace(" ", "") for m in merges), "<|endoftext|>"]
    vocab = {token: id for id, token in enumerate(tokens)}
    return Tokenizer(definition_from_gpt2_files(vocab, "#version: 0.2\n" + "\n".join(merges)))


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return tokenizer_with(["h e", "l l", "he ll"])


@pytest.fixture(scope="session")
def large() -> Tokenizer:
    """More entries than 16 bits can tell apart: every pair of bytes is a token."""
    characters = list(byte_of_character())
    tokenizer = tokenizer_with([f"{a} {b}" for a in characters for b in characters])
    assert tokenizer.vocab_size > 1 << 16
    return tokenizer


@pytest.fixture(scope="session")
def small_folder(small: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    small.save(folder)
    return folder


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """Writes texts as a .jsonl.gz file."""

    def write(name: str, texts: list[str]) -> Path:
        path = tmp_path / name
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
        return path

    return write
