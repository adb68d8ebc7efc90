"""Pieces: some documents of one file, cleaned, signed and tokenised, as Arrow files.

Workers make them from rows: in this process, in other processes, or on other machines.
"""

import hashlib
import json
import pickle
import socket
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.settings import SourceSettings
from data_prep.text import BANDS, Contamination, band_keys
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import replacing
from dualpath_cli.data.documents import clean, document_id, format_of
from dualpath_cli.data.rows import BadRow, Rows
from dualpath_cli.data.tokenizer import Tokenizer

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_COUNTS = b"counts"
REJECTED = ".rejected.zst"  # beside a piece: its rejected documents as JSON lines
SEAL = 32  # bytes at the end of a piece


def _seal(path: Path, content: bytes | pa.Buffer) -> bytes:
    """Returns the sha256 of a content, its place (request, corpus, name) and rejected documents."""
    beside, place = path.with_suffix(REJECTED), "/".join(path.parts[-3:])
    rejected = beside.read_bytes() if beside.exists() else b""
    return hashlib.sha256(b"".join((place.encode(), content, rejected))).digest()


def write_sealed(path: Path, content: bytes | pa.Buffer) -> None:
    """Writes a file that `read_sealed` believes, into a folder that is there."""
    # Shared: a worker of a killed run may still write. Its folder may be gone, and stays gone.
    with replacing(path, shared=True, new_folder=False) as partial, partial.open("wb") as file:
        file.write(content)
        file.write(_seal(path, content))


def read_sealed(path: Path) -> bytes:
    """Returns a file's content; empty where the file is missing or damaged."""
    whole = path.read_bytes() if path.exists() else b""
    return whole[:-SEAL] if whole[-SEAL:] == _seal(path, whole[:-SEAL]) else b""


DOCUMENT = pa.schema(
    [
        ("number", pa.int64()),  # line or record in its file
        ("id", pa.string()),  # name in the corpus
        # 64 bits of the id, or of the text where there is none: decides the split and the order
        ("id_hash", pa.uint64()),
        ("digest", pa.binary(16)),  # 128 bits of the text
        ("text_bytes", pa.uint32()),  # length in UTF-8
        # Keys of the MinHash signature; null unless near-duplicates are sought
        ("bands", pa.list_(pa.uint64(), BANDS)),
    ]
)
"""The columns of a piece, beside the tokens of its documents."""
FORMAT = 2
"""Part of the name of the folder of pieces; raised when `DOCUMENT` changes."""


@dataclass
class PieceCounts:
    read: int = 0
    tokens: int = 0  # tokens of the documents kept so far, each with its end-of-text
    normalised: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """A finished piece; columns are mapped into memory, not read, until they are used."""

    path: Path

    @staticmethod
    def write(
        path: Path,
        documents: list[dict[str, Any]],
        tokens: Tokens,
        ends: npt.NDArray[np.int64],
        counts: PieceCounts,
    ) -> None:
        """Writes rows of `DOCUMENT`; `ends`, (documents,), says where each ends in `tokens`."""
        counts.tokens = len(tokens)
        schema = DOCUMENT.with_metadata({_COUNTS: json.dumps(asdict(counts))})
        lists = pa.LargeListArray.from_arrays(np.append(0, ends), tokens)
        table = pa.Table.from_pylist(documents, schema).append_column("tokens", lists)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        write_sealed(path, sink.getvalue())

    def is_usable(self) -> bool:
        """Whether the file is as it was written, and for this place; else deletes the file."""
        usable = bool(read_sealed(self.path))
        if not usable:
            self.path.unlink()
        return usable

    @cached_property
    def counts(self) -> PieceCounts:
        return PieceCounts(**json.loads(self._file().schema.metadata[_COUNTS]))

    @property
    def documents(self) -> int:
        return self.counts.read - sum(self.counts.rejected.values())

    def numbers(self, column: str) -> npt.NDArray[np.uint64]:
        array: npt.NDArray[np.uint64] = self._column(column).to_numpy(zero_copy_only=False)
        return array

    def digests(self) -> npt.NDArray[np.uint64]:
        """Returns the texts' digests, (documents, 2)."""
        column = self._column("digest")
        words = np.frombuffer(column.buffers()[1] or b"", np.uint64)
        return words.reshape(-1, 2)[: len(column)]

    def bands(self) -> npt.NDArray[np.uint64]:
        """Returns the keys of the texts' signatures, (documents, BANDS)."""
        keys: npt.NDArray[np.uint64] = self._column("bands").flatten().to_numpy()
        return keys.reshape(-1, BANDS)

    def ids(self) -> list[str | None]:
        ids: list[str | None] = self._column("id").to_pylist()
        return ids

    def tokens(self) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Returns the tokens of all documents and, (documents + 1,), where each begins."""
        column = self._column("tokens")
        if not len(column):
            return np.empty(0, np.uint32), np.zeros(1, np.int64)
        return column.values.to_numpy(), column.offsets.to_numpy()

    def _column(self, name: str) -> pa.Array:
        column = self._file().read_all().column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _file(self) -> pa.RecordBatchFileReader:
        with pa.memory_map(str(self.path)) as source:
            return pa.ipc.open_file(pa.BufferReader(source.read_buffer(source.size() - SEAL)))


@dataclass(frozen=True)
class Batch:
    """The rows of a piece, and the place of the piece."""

    source: SourceSettings
    file: str  # the file's name in records
    rows: Rows
    out: Path


def piece_path(folder: Path, file: int, piece: int) -> Path:
    return folder / f"{file:05d}-{piece:05d}.arrow"


def file_number(piece: Path) -> int:
    """Returns which of its corpus's files a piece is of."""
    return int(piece.name.partition("-")[0])


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

    def make(self, batch: Batch) -> Path:
        """Writes a piece and, beside it, the rejected documents; returns the piece's path."""
        counts, name = PieceCounts(), batch.source.name
        documents: list[dict[str, Any]] = []
        texts: list[str] = []
        rejected: list[dict[str, Any]] = []
        format = format_of(name, batch.rows.kind, batch.source.field)
        for number, row in batch.rows.parsed():
            counts.read += 1
            id = document_id(row)
            try:
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
            place = {"source": name, "file": batch.file, "row": number, "id": id}
            rejected.append({**place, "reason": reason, "detail": detail, "text": text})
        tokens, ends = self._tokens(texts)
        if batch.out.exists():  # made by another worker: NFS would take it from its readers
            return batch.out
        # Before the piece, whose presence means both files. Shared: see `write_sealed`.
        if rejected:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rejected)
            path = batch.out.with_suffix(REJECTED)
            with (
                replacing(path, shared=True, new_folder=False) as partial,
                pa.CompressedOutputStream(str(partial), "zstd") as sink,
            ):
                sink.write(lines.encode("utf-8", errors="backslashreplace"))
        Piece.write(batch.out, documents, tokens, ends, counts)
        return batch.out

    def _tokens(self, texts: list[str]) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """Returns the tokens of all texts, each with its end-of-text, and where each ends."""
        ids: list[npt.NDArray[np.uint32]] = []
        start = characters = 0
        for end, text in enumerate(texts, 1):
            characters += len(text)
            # A megabyte of text at a time: `tokenizers` takes some 100 bytes a token.
            if characters >= 1 << 20 or end == len(texts):
                ids += self._tokenizer.encode_batch(texts[start:end])
                start, characters = end, 0
        ends = np.cumsum([len(document) + 1 for document in ids], dtype=np.int64)
        tokens = np.full(ends[-1] if ids else 0, self._tokenizer.eot_id, self._dtype)
        for document, end in zip(ids, ends.tolist(), strict=True):
            tokens[end - 1 - len(document) : end - 1] = document
        return tokens, ends

    def _refusal(self, text: str) -> tuple[str, str]:
        """Returns the reason to leave a text out, and details; both empty without a reason."""
        if not text or text.isspace():
            return "empty", ""
        if len(text) < self._settings.min_chars:
            return "too short", ""
        if self._settings.contamination and (words := self._settings.contamination.hit(text)):
            return "contaminated", words
        return "", ""

    def _document(self, number: int, id: str | None, text: str) -> dict[str, Any]:
        """Returns a row of `DOCUMENT`."""
        encoded = text.encode()
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        name = hashlib.blake2b(digest if id is None else id.encode(), digest_size=8).digest()
        return {
            "number": number,
            "id": id,
            "id_hash": int.from_bytes(name, "little"),
            "digest": digest,
            "text_bytes": len(encoded),
            "bands": band_keys(text) if self._settings.near else None,
        }


def token_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Returns the smallest type that holds every id."""
    return np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32


def make(orders: Path, batch: Batch) -> Path:
    """Makes a piece by the settings in the file `orders`, which is there while they are wanted."""
    if not orders.exists():
        raise UserError(
            f"{socket.gethostname()} does not see '{orders}': --out must lie on a file system that "
            "all workers share"
        )
    return _worker(orders).make(batch)


@lru_cache(maxsize=1)
def _worker(orders: Path) -> Worker:
    """Returns the maker of pieces for one run, whose orders have a unique name."""
    return Worker(pickle.loads(orders.read_bytes()))
