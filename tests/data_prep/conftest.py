"""Small vocabularies, and requests to prepare documents with them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from data_prep.corpora import find
from data_prep.prepare import Request
from data_prep.settings import Preparation, SourceSettings
from dualpath_cli.data.tokenizer import Tokenizer, byte_of_character
from tests.data.small_tokenizer import tokenizer_with
from tests.data_prep.preparing import source, write_jsonl


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
def out(tmp_path: Path) -> Path:
    """Where the data folder is to be."""
    return tmp_path / "out"


@pytest.fixture
def ask(small: Tokenizer, out: Path) -> Callable[..., Request]:
    """`ask(data, **settings)`: a request for a tuple of sources, or for one, of a path or of texts.

    `settings` are fields of Preparation.
    """

    def asked(
        data: tuple[SourceSettings, ...] | Path | Iterable[str],
        tokenizer: Tokenizer = small,
        out: Path = out,
        strict: bool = False,
        **settings: Any,
    ) -> Request:
        if not isinstance(data, (tuple, Path)):
            data = write_jsonl(out.parent / "a.jsonl", data)
        sources = data if isinstance(data, tuple) else (source("a", data),)
        chosen = Preparation(sources, "given", **{"chunk_tokens": 64, **settings})
        corpora = [find(s, out.parent / "downloads", "http://nowhere", None) for s in sources]
        return Request(chosen, corpora, tokenizer, out, strict=strict)

    return asked


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers here need none."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
