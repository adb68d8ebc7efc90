"""GPT-2's vocabulary from the shared data, and a small vocabulary that needs no files."""

from pathlib import Path

import pytest

from dualpath_cli.text.tokenizer import Tokenizer
from tests.small_tokenizer import definition_with, tokenizer_with


@pytest.fixture(scope="session")
def gpt2_folder(shared_data: Path) -> Path:
    return shared_data / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path) -> Tokenizer:
    return Tokenizer.load(gpt2_folder)


MERGES = ["h e", "l l", "he ll"]


@pytest.fixture
def definition() -> dict:
    """The 256 bytes, three merges and end-of-text, to be changed."""
    return definition_with(MERGES)


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return tokenizer_with(MERGES)
