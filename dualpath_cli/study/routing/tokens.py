"""routing.parquet, a row for each token.

Shapes: N tokens, L places of layers with gates, K loops, R repetitions of the core, C
experts of a token.
"""

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dualpath_cli.base.files import replacing
from dualpath_cli.study.routing.readouts import (
    CORE_READOUTS,
    READOUTS,
    STEP_READOUTS,
    by_name,
)

TOKENS = "routing.parquet"
ROWS = 1 << 16  # of a row group, which is held in memory


@contextmanager
def token_table(
    path: Path,
    token_values: Sequence[bytes],
    layers: int,
    loops: int,
    chosen: int,
    repetitions: int,
) -> Iterator["TokenTable"]:
    """Writes a source's table, whole or not at all; `token_values` are the bytes of
    each id.

    `chosen` is C, or 0 if no layer has experts; `repetitions` R, or 0 if no layers
    repeat.
    """
    schema = _schema(layers, loops, chosen, repetitions)
    with (
        replacing(path) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd") as file,
    ):
        table = TokenTable(file, token_values)
        yield table
        table.flush()


def _schema(layers: int, loops: int, chosen: int, repetitions: int) -> pa.Schema:
    """The columns of `TokenTable`."""
    by_layer = pa.list_(pa.float32(), layers)
    by_step = pa.list_(pa.list_(pa.float32(), loops), layers)
    columns = {
        "source": pa.string(),
        "sequence": pa.int32(),
        "position": pa.int32(),
        "token_id": pa.int32(),
        "token": pa.string(),
        "upos": pa.string(),
        "nats": pa.float32(),
        **dict.fromkeys(READOUTS, by_layer),
        **dict.fromkeys(STEP_READOUTS, by_step),
    }
    if chosen:
        columns["experts"] = pa.list_(pa.list_(pa.int32(), chosen), layers)
        columns["expert_weights"] = pa.list_(pa.list_(pa.float32(), chosen), layers)
    if repetitions:
        of_core = pa.list_(pa.float32(), repetitions)
        columns |= dict.fromkeys(CORE_READOUTS, of_core)

    return pa.schema(columns)


class TokenTable:
    """Writes the rows of a source.

    `sequence` counts within the source, `position` within the sequence's text tokens,
    both from 0; `upos` is null where nothing was tagged; `nats` is the token's loss
    after those before it. Each of `READOUTS` is a list over the layers with gates,
    (L,), each of `STEP_READOUTS` a list of lists, (L, K). Of models with experts also
    `experts` and `expert_weights`, (L, C), with -1 and nan in dense layers; of models
    whose core repeats each of `CORE_READOUTS`, (R,).
    """

    def __init__(self, file: pq.ParquetWriter, token_values: Sequence[bytes]) -> None:
        self._file = file
        self._token_values = token_values
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def add(
        self,
        source: str,
        sequence: int,
        *,
        ids: npt.NDArray[np.integer],
        upos: Sequence[str | None] | None,
        nats: npt.NDArray[np.floating],
        values: npt.NDArray[np.floating],
        experts: npt.NDArray[np.integer],
        expert_weights: npt.NDArray[np.floating],
        core: npt.NDArray[np.floating] | None = None,
    ) -> None:
        """`values` (N, L, columns) is of `dual_layers`, `experts` and their weights (N,
        L, C) of `experts_of`, `core` (N, CORE_READOUTS, R) of `core_steps`."""
        columns = {
            "source": [source] * len(ids),
            "sequence": np.full(len(ids), sequence),
            "position": np.arange(len(ids)),
            "token_id": ids,
            "token": token_texts(self._token_values[id] for id in ids.tolist()),
            "upos": [None] * len(ids) if upos is None else upos,
            "nats": nats,
            **{name: _lists(array) for name, array in by_name(values).items()},
        }
        if experts.shape[-1]:
            columns["experts"] = _lists(experts, np.int32)
            columns["expert_weights"] = _lists(expert_weights)
        if core is not None:
            for place, name in enumerate(CORE_READOUTS):
                columns[name] = _lists(core[:, place])

        # A single sequence would be a small group of rows: they are written together.
        rows = pa.RecordBatch.from_pydict(columns, schema=self._file.schema)
        self._pending.append(rows)
        self._pending_rows += len(rows)
        if self._pending_rows >= ROWS:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._file.write_table(pa.Table.from_batches(self._pending))
        self._pending = []
        self._pending_rows = 0


def join_tables(tables: Sequence[Path], path: Path, facts: Mapping[str, str]) -> None:
    """Joins the tables of sources to one, with some facts as its metadata."""
    schema = pq.read_schema(tables[0])
    metadata = {**(schema.metadata or {}), **facts}
    schema = schema.with_metadata(metadata)

    with (
        replacing(path) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd") as file,
    ):
        # In batches, as the rows of a source may not fit into memory.
        for table in tables:
            for batch in pq.ParquetFile(table).iter_batches(ROWS):
                file.write_batch(batch.replace_schema_metadata(schema.metadata))


def token_texts(values: Iterable[bytes]) -> list[str]:
    """The text of each token; joined they are the whole text.

    A character in several tokens is part of the last one; bytes of no character are
    U+FFFD.
    """
    # The decoder keeps the bytes of an unfinished character for the next token.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(value) for value in values]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts


def _lists(values: npt.NDArray[Any], dtype: type[np.generic] = np.float32) -> pa.Array:
    """An array (N, ...) as nested lists of fixed size."""
    array = pa.array(np.ascontiguousarray(values, dtype).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
