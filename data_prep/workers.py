"""Workers: rows of documents -> pieces, in this process or in several."""

import hashlib
import json
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.pieces import REJECTED, Piece, PieceCounts, TokenArray, token_type
from data_prep.settings import SourceSettings
from data_prep.text import Contamination, band_keys
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.data.documents import clean, document_id, format_of
from dualpath_cli.data.rows import BadRow, Rows
from dualpath_cli.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class PieceTask:
    """A piece to make: its rows, and its place."""

    source: SourceSettings
    file: str  # the file's name in records
    rows: Rows
    out: Path


@dataclass(frozen=True)
class PieceSettings:
    tokenizer: Path  # a folder with tokenizer.json
    min_chars: int
    near: bool  # whether documents are signed for near-duplicate removal
    contamination: Contamination | None
    strict: bool  # whether an unreadable row stops the preparation


class Worker:
    """Makes pieces; holds the tokenizer, which takes long to load."""

    def __init__(self, settings: PieceSettings) -> None:
        self._settings = settings
        self._tokenizer = Tokenizer.load(settings.tokenizer)
        self._dtype = token_type(self._tokenizer)

    def make(self, task: PieceTask) -> Path:
        """Writes a piece and, beside it, the rejected documents.

        Returns the piece's path.
        """
        source = task.source
        format = format_of(source.name, task.rows.kind, source.field)
        counts = PieceCounts()
        documents: list[dict[str, Any]] = []
        texts: list[str] = []
        rejected: list[dict[str, Any]] = []

        for number, row in task.rows.parsed():
            counts.read += 1
            id = document_id(row)
            try:
                original = format.render(row)
            except BadRow as bad:
                if self._settings.strict:
                    raise UserError(f"{task.rows.place(number)}: {bad}") from None
                text = task.rows.raw(number)
                reason, detail = "unreadable", str(bad)
            else:
                text = clean(original)
                counts.normalised += text != original
                reason, detail = self._refusal(text)
                if not reason:
                    documents.append(self._document(number, id, text))
                    texts.append(text)
                    continue

            counts.rejected[reason] = counts.rejected.get(reason, 0) + 1
            rejected.append(
                {
                    "source": source.name,
                    "file": task.file,
                    "row": number,
                    "id": id,
                    "reason": reason,
                    "detail": detail,
                    "text": text,
                }
            )

        tokens, ends = self._encode(texts)
        # Before the piece, whose presence means both files.
        if rejected:
            _write_rejected(task.out.with_suffix(REJECTED), rejected)
        Piece.write(task.out, documents, tokens, ends, counts)
        return task.out

    def _encode(self, texts: list[str]) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """Returns the tokens of all texts, each with its end-of-text; where each ends.

        The ends are (texts,), in tokens.
        """
        ids: list[npt.NDArray[np.uint32]] = []
        start = 0
        characters = 0
        for end, text in enumerate(texts, 1):
            characters += len(text)
            # A megabyte of text at a time: `tokenizers` takes some 100 bytes a token.
            if characters >= 1 << 20 or end == len(texts):
                ids += self._tokenizer.encode_batch(texts[start:end])
                start = end
                characters = 0

        lengths = [len(document) + 1 for document in ids]
        ends = np.cumsum(lengths, dtype=np.int64)
        total = ends[-1] if ids else 0
        # End-of-text everywhere, then the documents over it.
        tokens = np.full(total, self._tokenizer.eot_id, self._dtype)
        for document, end in zip(ids, ends.tolist(), strict=True):
            last = end - 1
            tokens[last - len(document) : last] = document
        return tokens, ends

    def _refusal(self, text: str) -> tuple[str, str]:
        """Returns the reason to leave a text out, and details.

        Both are empty for a text to keep.
        """
        if not text or text.isspace():
            return "empty", ""
        if len(text) < self._settings.min_chars:
            return "too short", ""

        contamination = self._settings.contamination
        shared_words = contamination.find(text) if contamination else None
        if shared_words:
            return "contaminated", shared_words
        return "", ""

    def _document(self, number: int, id: str | None, text: str) -> dict[str, Any]:
        """Returns a row of `DOCUMENT`."""
        encoded = text.encode()
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        name = digest if id is None else id.encode()
        id_hash = hashlib.blake2b(name, digest_size=8).digest()
        return {
            "number": number,
            "id": id,
            "id_hash": int.from_bytes(id_hash, "little"),
            "digest": digest,
            "text_bytes": len(encoded),
            "bands": band_keys(text) if self._settings.near else None,
        }


def _write_rejected(path: Path, rejected: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejected)
    # Shared: the folder, of many files, is not searched for unfinished ones.
    with (
        replacing(path, shared=True) as unfinished,
        pa.CompressedOutputStream(str(unfinished), "zstd") as sink,
    ):
        sink.write(lines.encode("utf-8", errors="backslashreplace"))


BeginPiece = Callable[[PieceTask], Callable[[], Path]]
"""Begins a piece; returns a function that waits for the piece and returns its path."""


@contextmanager
def workers(count: int, settings: PieceSettings, folder: Path) -> Iterator[BeginPiece]:
    """Yields a function that begins pieces: in `count` processes, or in this one.

    Processes find the settings in `folder`. Leaving the context by an exception ends
    them; the exception of a process that was killed becomes an OSError.
    """
    if count == 1:
        worker = Worker(settings)
        yield lambda task: partial(worker.make, task)
        return

    # Not by the pool's initargs: a process that is killed before it has read long ones
    # leaves this one writing to its pipe for ever.
    file = folder / "settings.pickle"
    with replacing(file) as unfinished:
        unfinished.write_bytes(pickle.dumps(settings))

    with ProcessPoolExecutor(count, get_context("spawn"), _follow_parent) as pool:

        def begin(task: PieceTask) -> Callable[[], Path]:
            # A new process has the mask of the thread that starts it: this process
            # handles Ctrl-C.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                return pool.submit(_make_piece, file, task).result
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

        try:
            yield begin
        except BaseException as error:
            # Pieces are whole or not there, so unfinished ones are made again after a
            # failure. Waiting for them would hold up Ctrl-C.
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)

            if isinstance(error, BrokenProcessPool):
                raise OSError(
                    "a worker process was killed, perhaps for want of memory: use "
                    "fewer --workers"
                ) from None
            raise


def _follow_parent() -> None:
    """Prepares a process of a pool to end with its parent, also a killed one."""
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism


def _make_piece(settings: Path, task: PieceTask) -> Path:
    return _worker_of_process(settings).make(task)


@cache
def _worker_of_process(settings: Path) -> Worker:
    return Worker(pickle.loads(settings.read_bytes()))
