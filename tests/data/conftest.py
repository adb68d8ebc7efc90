"""GPT-2's vocabulary from the shared data, and a small one to be changed."""

from pathlib import Path

import pytest

from dualpath_cli.data.tokenizer import Tokenizer
from tests.data.small_tokenizer import definition_with
from tests.training.tiny_run import MERGES


@pytest.fixture(scope="session")
def gpt2_folder(shared_data: Path) -> Path:
    return shared_data / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path) -> Tokenizer:
    return Tokenizer.load(gpt2_folder)


@pytest.fixture
def definition() -> dict:
    """The 256 bytes, three merges and end-of-text, to be changed."""
    return definition_with(MERGES)
