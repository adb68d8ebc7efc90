"""Worker: turns rows into a piece; the same in this process and in others."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.documents.clean import clean, problem
from data_prep.documents.contamination import Contamination
from data_prep.documents.minhash import band_keys
from data_prep.documents.piece import Document, Piece, PieceCounts, Tokens
from dualpath_cli.errors import UserError
from dualpath_cli.output.atomic import replacing
from dualpath_cli.text.documents import document_id, format_of
from dualpath_cli.text.rows import BadRow, Rows
from dualpath_cli.text.tokenizer import Tokenizer

TOKENISED_CHARACTERS = 1 << 20
"""About so much text is tokenised at a time; a longer document goes alone."""

REJECTED = ".rejected.zst"
"""Suffix of the file beside a piece that holds its rejected documents as JSON lines."""


@dataclass(frozen=True)
class PieceSettings:
    """How documents become pieces."""

    tokenizer: Path
    """A folder with tokenizer.json."""
    min_chars: int
    near: bool
    """Whether documents are signed for near-duplicate removal."""
    contamination: Contamination | None
    strict: bool
    """Whether a row that is no document stops the preparation."""


@dataclass(frozen=True)
class Batch:
    """One piece's work."""

    source: str
    field: str
    file: str
    rows: Rows
    out: Path


class Worker:
    """Makes pieces; holds what takes long to load."""

    def __init__(self, settings: PieceSettings) -> None:
        self._settings = settings
        self._tokenizer = Tokenizer.load(settings.tokenizer)
        self._dtype = token_type(self._tokenizer)

    def make(self, batch: Batch) -> Path:
        """Writes a piece and, beside it, the rejected documents; returns the piece's path."""
        counts = PieceCounts()
        documents: list[Document] = []
        texts: list[str] = []
        rejected: list[dict[str, Any]] = []
        format = format_of(batch.source, batch.rows.kind, batch.field)
        for number, row in batch.rows.parsed():
            counts.read += 1
            id = None if isinstance(row, BadRow) else document_id(row)
            try:
                if isinstance(row, BadRow):
                    raise row
                original = format.render(row)
            except BadRow as bad:
                if self._settings.strict:
                    raise UserError(f"{batch.rows.place(number)}: {bad}") from None
                reason, detail, text = "unreadable", str(bad), batch.rows.raw(number)
            else:
                text = clean(original)
                counts.normalised += text != original
                reason, detail = self._refusal(text)
                if not reason:
                    documents.append(self._document(number, id, text))
                    texts.append(text)
                    continue
            counts.rejected[reason] = counts.rejected.get(reason, 0) + 1
            place = {"source": batch.source, "file": batch.file, "row": number, "id": id}
            rejected.append({**place, "reason": reason, "detail": detail, "text": text})
        tokens, ends = self._tokens(texts)
        # Before the piece, whose presence says that both are there.
        _write_json_lines(batch.out.with_suffix(REJECTED), rejected)
        Piece.write(batch.out, documents, tokens, ends, counts)
        return batch.out

    def _tokens(self, texts: list[str]) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Returns the tokens of all texts, each with its end-of-text, and where each ends."""
        ids = list(self._encoded(texts))
        ends = np.cumsum([len(document) + 1 for document in ids], dtype=np.int64)
        tokens = np.full(ends[-1] if ids else 0, self._tokenizer.eot_id, self._dtype)
        for document, end in zip(ids, ends.tolist(), strict=True):
            tokens[end - 1 - len(document) : end - 1] = document
        return tokens, ends

    def _encoded(self, texts: list[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """Yields the ids of each text, tokenising about a megabyte at a time.

        `tokenizers` needs some hundred bytes a token while it works.
        """
        start = characters = 0
        for end, text in enumerate(texts, 1):
            characters += len(text)
            if characters >= TOKENISED_CHARACTERS or end == len(texts):
                yield from self._tokenizer.encode_batch(texts[start:end])
                start, characters = end, 0

    def _refusal(self, text: str) -> tuple[str, str]:
        """Returns why a text is left out, and details; empty where it is not."""
        if reason := problem(text, self._settings.min_chars):
            return reason, ""
        if self._settings.contamination and (words := self._settings.contamination.hit(text)):
            return "contaminated", words
        return "", ""

    def _document(self, number: int, id: str | None, text: str) -> Document:
        encoded = text.encode()
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        name = digest if id is None else id.encode()
        return Document(
            number=number,
            id=id,
            id_hash=int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"),
            digest=digest,
            text_bytes=len(encoded),
            bands=band_keys(text) if self._settings.near else None,
        )


def token_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Returns the smallest type that holds every id."""
    return np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32


def _write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # Shared: a worker of a killed run may still be at work.
    with (
        replacing(path, shared=True) as partial,
        pa.CompressedOutputStream(str(partial), "zstd") as sink,
    ):
        sink.write(data.encode("utf-8", errors="backslashreplace"))


_worker: Worker | None = None


def load(settings: PieceSettings) -> None:
    """Makes this process one that can `make`."""
    global _worker
    _worker = Worker(settings)


def start(settings: PieceSettings) -> None:
    """Prepares a process of a pool, which ends with its parent even where that was killed."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    load(settings)


def make(batch: Batch) -> Path:
    """Makes one piece with what `load` or `start` prepared."""
    assert _worker is not None
    return _worker.make(batch)
