"""GPT-2's vocabulary from the shared data, and a small vocabulary that needs no files."""

from pathlib import Path

import pytest

from dualpath_cli.text.tokenizer import Tokenizer
from tests.small_tokenizer import definition_with


@pytest.fixture(scope="session")
def gpt2_folder(shared_data: Path) -> Path:
    return shared_data / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path) -> Tokenizer:
    return Tokenizer.load(gpt2_folder)


@pytest.fixture(scope="session")
def small_definition() -> dict:
    """The 256 bytes, three merges and end-of-text."""
    return definition_with(["h e", "l l", "he ll"])


@pytest.fixture(scope="session")
def small(small_definition: dict) -> Tokenizer:
    return Tokenizer(small_definition)
