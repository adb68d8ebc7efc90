"""Small vocabularies, and files of documents to prepare."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.text.byte_level import byte_of_character
from dualpath_cli.text.tokenizer import Tokenizer
from tests.small_tokenizer import tokenizer_with


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
