"""Pieces: some documents of one file, cleaned, signed and tokenised, as Arrow files."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.text import BANDS
from dualpath_cli.base.files import replacing
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer

TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # as stored on the disk

_COUNTS = b"counts"
REJECTED = ".rejected.zst"  # beside a piece: its rejected documents as JSON lines
SEAL = 32  # bytes at the end of a piece


def _seal(path: Path, content: bytes | pa.Buffer) -> bytes:
    """Returns the sha256 of a content, its place, and the rejected documents beside it.

    The place is the last three parts of the path: request, corpus and name.
    """
    place = "/".join(path.parts[-3:])
    beside = path.with_suffix(REJECTED)
    rejected = beside.read_bytes() if beside.is_file() else b""
    return hashlib.sha256(b"".join((place.encode(), content, rejected))).digest()


def write_sealed(path: Path, content: bytes | pa.Buffer) -> None:
    """Writes a file with the seal that `read_sealed` checks."""
    # Shared: the folder, of many files, is not searched for unfinished ones.
    with replacing(path, shared=True) as partial, partial.open("wb") as file:
        file.write(content)
        file.write(_seal(path, content))


def read_sealed(path: Path) -> bytes:
    """Returns a file's content; empty where the file is missing, damaged or a pipe."""
    sealed = path.read_bytes() if path.is_file() else b""
    content = sealed[:-SEAL]
    seal = sealed[-SEAL:]
    return content if seal == _seal(path, content) else b""


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

PIECE_FORMAT = 3
"""Part of the name of the folder of pieces; increment it when their content changes."""


@dataclass
class PieceCounts:
    """Documents of a piece, by what became of them."""

    read: int = 0
    tokens: int = 0  # tokens of the documents kept so far, each with its end-of-text
    normalised: int = 0
    stored: int = 0  # bytes of the file, as stored, that hold the rows
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Number of documents that are kept."""
        return self.read - sum(self.rejected.values())


@dataclass(frozen=True)
class Piece:
    """A finished piece; its columns are mapped into memory, and read when used."""

    path: Path

    @staticmethod
    def write(
        path: Path,
        documents: list[dict[str, Any]],
        tokens: TokenArray,
        ends: npt.NDArray[np.int64],
        counts: PieceCounts,
    ) -> None:
        """Writes rows of `DOCUMENT`, and the tokens of each.

        `ends`, (documents,), says where each ends in `tokens`.
        """
        counts.tokens = len(tokens)
        schema = DOCUMENT.with_metadata({_COUNTS: json.dumps(asdict(counts))})
        table = pa.Table.from_pylist(documents, schema)
        lists = pa.LargeListArray.from_arrays(np.append(0, ends), tokens)
        table = table.append_column("tokens", lists)

        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        write_sealed(path, sink.getvalue())

    @cached_property
    def counts(self) -> PieceCounts:
        return PieceCounts(**json.loads(self._file().schema.metadata[_COUNTS]))

    def numbers(self, column: str) -> npt.NDArray[np.uint64]:
        """Returns a column of `DOCUMENT` that holds numbers, (documents,)."""
        array = self._column(column)
        numbers: npt.NDArray[np.uint64] = array.to_numpy(zero_copy_only=False)
        return numbers

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
        """Returns the documents' names in the corpus."""
        ids: list[str | None] = self._column("id").to_pylist()
        return ids

    def tokens(self) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """Returns the tokens of all documents; where each begins, (documents + 1,)."""
        column = self._column("tokens")
        if not len(column):
            return np.empty(0, np.uint32), np.zeros(1, np.int64)

        return column.values.to_numpy(), column.offsets.to_numpy()

    def _column(self, name: str) -> pa.Array:
        column = self._file().read_all().column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _file(self) -> pa.RecordBatchFileReader:
        # Columns are read from the map when they are used.
        with pa.memory_map(str(self.path)) as source:
            content = source.read_buffer(source.size() - SEAL)
            return pa.ipc.open_file(pa.BufferReader(content))


def piece_path(folder: Path, file: int, piece: int) -> Path:
    return folder / f"{file:05d}-{piece:05d}.arrow"


def place_and_number(piece: Path) -> tuple[int, int]:
    """Returns the place of a piece's file in its corpus, and its number in the file."""
    place, number = piece.stem.split("-")
    return int(place), int(number)


def token_type(tokenizer: Tokenizer) -> type[np.uint16 | np.uint32]:
    """Returns the smallest type that holds every id."""
    return np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32


def load_tokenizer(folder: Path) -> Tokenizer:
    """Returns the tokenizer in a folder, which a process loads once."""
    # One folder may get another tokenizer while the process lives.
    return _load_tokenizer(folder, (folder / TOKENIZER).stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load_tokenizer(folder: Path, modified: int) -> Tokenizer:
    return Tokenizer.load(folder)
