"""Small vocabularies, requests to prepare, and a prepared folder's content, read
plainly."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import litdata
import pytest
import zstandard

from data_prep import prepare as pipeline
from data_prep.corpora import find_corpus
from data_prep.encoding import Fetch
from data_prep.engine import local_engine
from data_prep.prepare import Request
from data_prep.settings import PreparationSettings, SourceSettings
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.tokenizer_json import BYTE_OF_CHARACTER
from tests.data.small_tokenizer import tokenizer_with


@pytest.fixture(scope="session")
def large() -> Tokenizer:
    """More entries than 16 bits can tell apart: every pair of bytes is a token."""
    characters = list(BYTE_OF_CHARACTER)
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
    """`ask(data, **settings)`: a request for a tuple of sources, or for one, of a path
    or of texts.

    `settings` are fields of PreparationSettings.
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
        chosen = PreparationSettings(
            sources, "given", **{"chunk_tokens": 64, **settings}
        )
        corpora = [
            find_corpus(s, out.parent / "downloads", "http://nowhere", None)
            for s in sources
        ]
        return Request(chosen, corpora, tokenizer, out, strict=strict)

    return asked


def prepare(
    request: Request,
    processes: int = 1,
    *,
    fetch: Fetch = lambda file, on_received: file.origin,
    memory: int = 10**9,
    overwrite: bool = False,
) -> Manifest:
    """`data_prep.prepare.make_data_folder`, of files that are here."""
    with local_engine(processes) as engine:
        return pipeline.make_data_folder(
            request, engine, fetch, memory, overwrite=overwrite
        )


@contextmanager
def interrupted_at_the_end(
    meanwhile: Callable[[Path], object] = lambda folder: None,
    end: type[BaseException] = KeyboardInterrupt,
) -> Iterator[None]:
    """A preparation in the block raises `end` before it writes its manifest.

    Before that `meanwhile` gets the unfinished folder.
    """

    def interrupted(manifest: Manifest, folder: Path) -> None:
        meanwhile(folder)
        raise end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "write", interrupted)
        yield


def source(name: str, path: Path | str, **settings: Any) -> SourceSettings:
    return SourceSettings(name, str(path), **settings)


def write_jsonl(
    path: Path, texts: Iterable[str], ids: Iterable[str] | None = None
) -> Path:
    rows = [{"text": text} for text in texts]
    if ids:
        rows = [{"id": id, **row} for id, row in zip(ids, rows, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokens_of(folder: Path) -> list[int]:
    """All tokens in the order of the stream, by litdata itself."""
    dataset = litdata.StreamingDataset(
        str(folder), item_loader=litdata.TokensLoader(block_size=1), shuffle=False
    )
    return [int(dataset[index][0]) for index in range(len(dataset))]


def texts_of(folder: Path) -> list[str]:
    """The texts of all documents in the order of the stream."""
    tokenizer = Tokenizer.load(folder)
    texts: list[str] = []
    ids: list[int] = []
    for token in tokens_of(folder):
        if token == tokenizer.eot_id:
            texts.append(tokenizer.decode(ids))
            ids = []
        else:
            ids.append(token)
    assert not ids
    return texts


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file, compressed or not; none where it does not exist."""
    if not path.exists():
        return []
    data = path.read_bytes()
    if path.suffix == ".zst":
        reader = zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(data), read_across_frames=True
        )
        data = reader.read()
    return [json.loads(line) for line in data.decode("utf-8").splitlines()]


_PROGRESS = re.compile(
    r"^(reading|comparing|writing [a-z ]+|tidying up): .*\n", re.MULTILINE
)


def without_progress(errors: str) -> str:
    """What a preparation says on stderr, without the lines that say how far it is: a
    busy machine has some."""
    return _PROGRESS.sub("", errors)
