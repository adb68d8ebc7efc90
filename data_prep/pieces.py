"""Pieces: some documents of one file, cleaned, signed and tokenised, as Arrow files."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.text import BANDS
from dualpath_cli.base.files import replacing
from dualpath_cli.data.tokenizer import Tokenizer

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_COUNTS = b"counts"
REJECTED = ".rejected.zst"  # beside a piece: its rejected documents as JSON lines
SEAL = 32  # bytes at the end of a piece


def _seal(path: Path, content: bytes | pa.Buffer) -> bytes:
    """Returns the sha256 of a content, its place (request, corpus, name) and rejected
    documents."""
    beside, place = path.with_suffix(REJECTED), "/".join(path.parts[-3:])
    rejected = beside.read_bytes() if beside.is_file() else b""
    return hashlib.sha256(b"".join((place.encode(), content, rejected))).digest()


def write_sealed(path: Path, content: bytes | pa.Buffer) -> None:
    """Writes a file that `read_sealed` believes."""
    # Shared: the folder, of many files, is not searched for unfinished ones.
    with replacing(path, shared=True) as partial, partial.open("wb") as file:
        file.write(content)
        file.write(_seal(path, content))


def read_sealed(path: Path) -> bytes:
    """Returns a file's content; empty where the file is missing, damaged or a pipe."""
    whole = path.read_bytes() if path.is_file() else b""
    return whole[:-SEAL] if whole[-SEAL:] == _seal(path, whole[:-SEAL]) else b""


DOCUMENT = pa.schema(
    [
        ("number", pa.int64()),  # line or record in its file
        ("id", pa.string()),  # name in the corpus
        # 64 bits of the id, or of the text where there is none: decides the split and
        # the order
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
    """A finished piece; columns are mapped into memory, not read, until they are
    used."""

    path: Path

    @staticmethod
    def write(
        path: Path,
        documents: list[dict[str, Any]],
        tokens: Tokens,
        ends: npt.NDArray[np.int64],
        counts: PieceCounts,
    ) -> None:
        """Writes rows of `DOCUMENT`; `ends`, (documents,), says where each ends in
        `tokens`."""
        counts.tokens = len(tokens)
        schema = DOCUMENT.with_metadata({_COUNTS: json.dumps(asdict(counts))})
        lists = pa.LargeListArray.from_arrays(np.append(0, ends), tokens)
        table = pa.Table.from_pylist(documents, schema).append_column("tokens", lists)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        write_sealed(path, sink.getvalue())

    @cached_property
    def counts(self) -> PieceCounts:
        return PieceCounts(**json.loads(self._file().schema.metadata[_COUNTS]))

    @property
    def documents(self) -> int:
        return self.counts.read - sum(self.counts.rejected.values())

    def numbers(self, column: str) -> npt.NDArray[np.uint64]:
        array: npt.NDArray[np.uint64] = self._column(column).to_numpy(
            zero_copy_only=False
        )
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
        """Returns the tokens of all documents and, (documents + 1,), where each
        begins."""
        column = self._column("tokens")
        if not len(column):
            return np.empty(0, np.uint32), np.zeros(1, np.int64)
        return column.values.to_numpy(), column.offsets.to_numpy()

    def _column(self, name: str) -> pa.Array:
        column = self._file().read_all().column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _file(self) -> pa.RecordBatchFileReader:
        with pa.memory_map(str(self.path)) as source:
            return pa.ipc.open_file(
                pa.BufferReader(source.read_buffer(source.size() - SEAL))
            )


def piece_path(folder: Path, file: int, piece: int) -> Path:
    return folder / f"{file:05d}-{piece:05d}.arrow"


def file_number(piece: Path) -> int:
    """Returns which of its corpus's files a piece is of."""
    return int(piece.name.partition("-")[0])


def token_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Returns the smallest type that holds every id."""
    return np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
