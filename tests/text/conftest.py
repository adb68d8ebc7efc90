"""GPT-2's vocabulary from the shared data, and a small vocabulary that needs no files."""

from pathlib import Path

import pytest

from dualpath_cli.text.byte_level import byte_of_character, definition_from_gpt2_files
from dualpath_cli.text.tokenizer import Tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("no shared/data folder beside the checkout")
    return SHARED


@pytest.fixture(scope="session")
def gpt2_folder(shared_data: Path) -> Path:
    return shared_data / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path) -> Tokenizer:
    return Tokenizer.load(gpt2_folder)


@pytest.fixture(scope="session")
def small_definition() -> dict:
    """The 256 bytes, three merges and end-of-text."""
    merges = ["h e", "l l", "he ll"]
    tokens = [*byte_of_character(), "he", "ll", "hell", "<|endoftext|>"]
    vocab = {token: id for id, token in enumerate(tokens)}
    return definition_from_gpt2_files(vocab, "#version: 0.2\n" + "\n".join(merges) + "\n")


@pytest.fixture(scope="session")
def small(small_definition: dict) -> Tokenizer:
    return Tokenizer(small_definition)
