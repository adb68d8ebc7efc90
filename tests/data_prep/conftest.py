"""Small vocabularies, and files of documents to prepare."""

from pathlib import Path

import pytest

from data_prep.download.contact import first_contact
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


@pytest.fixture(autouse=True)
def _network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test learns of the network is not known to the next; servers here need no proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(first_contact, "made", False)
    monkeypatch.setattr(first_contact, "trouble", "no answer")
