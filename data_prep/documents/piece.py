"""Piece: some documents of one file, cleaned, signed and tokenised, as an Arrow file."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data_prep.documents.minhash import BANDS
from dualpath_cli.files import replacing

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_COUNTS = b"counts"


@dataclass(frozen=True)
class Document:
    """A document that may be used."""

    number: int
    """Line or record in its file."""
    id: str | None
    """Its name in the corpus."""
    id_hash: int
    """64 bits of the id, or of the text where there is none: decides the split and the order."""
    digest: bytes
    """128 bits of the text: equal for equal texts."""
    text_bytes: int
    """Length in UTF-8."""
    bands: npt.NDArray[np.uint64] | None
    """Band keys of the MinHash signature, (BANDS,); None unless near-duplicates are sought."""


@dataclass
class PieceCounts:
    """The outcome of the rows of a piece."""

    read: int = 0
    tokens: int = 0
    """Tokens of the documents kept so far, each with its end-of-text."""
    normalised: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """A finished piece; columns are mapped into memory, not read, until they are used."""

    path: Path

    @classmethod
    def write(
        cls,
        path: Path,
        documents: list[Document],
        tokens: Tokens,
        ends: npt.NDArray[np.int64],
        counts: PieceCounts,
    ) -> None:
        """Writes a piece, whole or not at all.

        `ends`, (documents,), says where each document ends in `tokens`.
        """
        counts.tokens = len(tokens)
        columns = {
            "number": pa.array([d.number for d in documents], pa.int64()),
            "id": pa.array([d.id for d in documents], pa.string()),
            "id_hash": pa.array([d.id_hash for d in documents], pa.uint64()),
            "digest": pa.array([d.digest for d in documents], pa.binary(16)),
            "text_bytes": pa.array([d.text_bytes for d in documents], pa.uint32()),
            "tokens": pa.LargeListArray.from_arrays(np.append(0, ends), tokens),
        }
        signed = [document.bands for document in documents if document.bands is not None]
        if len(signed) == len(documents):  # a piece without documents has the columns, too
            bands = np.array(signed, np.uint64).reshape(-1, BANDS)
            columns |= {f"band{n}": pa.array(bands[:, n]) for n in range(BANDS)}
        table = pa.table(columns).replace_schema_metadata({_COUNTS: json.dumps(asdict(counts))})
        # Shared: a worker that was given up, or of a killed run, may still be at work. What such a
        # one makes is not wanted where its folder has gone.
        with (
            replacing(path, shared=True, new_folder=False) as partial,
            pa.OSFile(str(partial), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)

    @cached_property
    def counts(self) -> PieceCounts:
        with pa.memory_map(str(self.path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata
        return PieceCounts(**json.loads(metadata[_COUNTS]))

    @property
    def documents(self) -> int:
        return self.counts.read - sum(self.counts.rejected.values())

    def numbers(self, column: str) -> npt.NDArray[np.uint64]:
        """Returns a column of numbers, (documents,)."""
        array: npt.NDArray[np.uint64] = self._column(column).to_numpy(zero_copy_only=False)
        return array

    def digests(self) -> npt.NDArray[np.uint64]:
        """Returns the texts' digests, (documents, 2)."""
        column = self._column("digest")
        words = np.frombuffer(column.buffers()[1] or b"", np.uint64)
        return words.reshape(-1, 2)[: len(column)]

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
        with pa.memory_map(str(self.path)) as source:
            column = pa.ipc.open_file(source).read_all().column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)
