"""routing.parquet, a row for every token that was read; and sequences of it, for figures and pages.

Shapes: N tokens, L layers with gates, K loops, S = K + 3 states of a layer: its input, those of the
loops, of the wide path, its output, C experts that a token takes.
"""

import codecs
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dualpath_cli.base.system import replacing
from dualpath_cli.study.routing.readouts import EXPERT_READOUTS, READOUTS, STEP_READOUTS, by_name

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Example:
    """A sequence's tokens and what each dual layer did with them."""

    source: str
    number: int  # its place among the source's sequences, from 0 on
    tokens: tuple[str, ...]  # the text of each token, (N,), as `token_texts` has it
    upos: tuple[str, ...] | None  # part of speech of each token; None where nothing was tagged
    nats: Floats  # loss of each token, given those before it, (N,)
    gate_deep: Floats  # g_d, (N, L); so are those that follow
    gate_wide: Floats
    update_deep: Floats  # ‖Δ_d‖
    update_wide: Floats
    cosine: Floats
    deep_share: Floats
    step_weights: Floats  # weight of each step in h_deep, (N, L, K); so are those that follow
    step_sizes: Floats  # ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖
    step_cosines: Floats  # of each step's update and the one before it; nan at k = 1
    length: int  # tokens of the whole sequence, of which these are the first
    experts: Floats | None = None  # (N, L, C), -1 in a layer without any; None where all are
    expert_weights: Floats | None = None  # (N, L, C)
    # For the page:
    said: npt.NDArray[np.int32] | None = None  # likeliest next ids of each state, (N, L, S, 3)
    shares: Floats | None = None  # their probabilities, (N, L, S, 3)
    next_ids: npt.NDArray[np.int32] | None = None  # what comes next, (N,); -1 where text was cut
    next_nats: Floats | None = None  # its loss, (N,)
    costs: Floats | None = None  # nats that forcing adds to it, all layers, each, (N, 1 + L, F)

    def first(self, count: int) -> "Example":
        per_token: dict[str, Any] = {
            name: values[:count]
            for name, values in vars(self).items()
            if isinstance(values, tuple | np.ndarray)
        }
        return replace(self, **per_token)


@dataclass(frozen=True)
class Model:
    """A model's read-outs of the sequences of a page."""

    steps: Sequence[int]  # of each layer with gates, (L,); K, the most of them, have columns
    examples: Sequence[Example]
    forced: Sequence[str] = ()  # names of the interventions in `Example.costs`, (F,)
    experts: Sequence[int] = ()  # of each layer with gates, (L,)


def share_reach(shares: Sequence[Floats]) -> float:
    """How far from one half colours should reach: 98 % of the shares are inside.

    From 0.05 to 0.5 in steps of 0.05; 0.5 where there is no share.
    """
    far = np.abs(np.concatenate([np.ravel(values) for values in shares]) - 0.5)
    if not np.isfinite(far).any():
        return 0.5
    return min(0.5, max(1, math.ceil(float(np.nanpercentile(far, 98)) * 20)) / 20)


TOKENS = "routing.parquet"
ROWS = 1 << 16  # rows of a row group: what is held in memory


@contextmanager
def token_table(
    path: Path, token_values: Sequence[bytes], layers: int, loops: int, chosen: int
) -> Iterator["TokenTable"]:
    """Writes a source's table, whole or not at all; `token_values` are the bytes of each id.

    `chosen` is C, 0 where no layer has experts.
    """
    text, whole, number = pa.string(), pa.int32(), pa.float32()
    of_experts = {"experts": whole, "expert_weights": number} if chosen else {}
    schema = pa.schema([
        ("source", text), ("sequence", whole), ("position", whole), ("token_id", whole),
        ("token", text), ("upos", text), ("nats", number),
        *((name, pa.list_(number, layers)) for name in READOUTS),
        *((name, pa.list_(pa.list_(number, loops), layers)) for name in STEP_READOUTS),
        *((name, pa.list_(pa.list_(of, chosen), layers)) for name, of in of_experts.items()),
    ])  # fmt: skip
    with replacing(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as file:
        table = TokenTable(file, token_values)
        yield table
        table.flush()


class TokenTable:
    """The rows of a source on their way to a file.

    `sequence` counts within the source, `position` within the sequence's text tokens, both from 0;
    `upos` is null where nothing was tagged; `nats` is the token's loss given those before it. Each
    of `READOUTS` is a list over the layers with gates, (L,), each of `STEP_READOUTS` a list of
    lists, (L, K). Where layers have experts, so are `experts` and `expert_weights`, (L, C), with -1
    and nan in layers that have none.
    """

    def __init__(self, file: pq.ParquetWriter, token_values: Sequence[bytes]) -> None:
        self._file, self._values = file, token_values
        self._held: list[pa.RecordBatch] = []

    def add(
        self,
        source: str,
        sequence: int,
        ids: npt.NDArray[np.integer],
        upos: Sequence[str | None] | None,
        nats: npt.NDArray[np.floating],
        values: npt.NDArray[np.floating],
        experts: npt.NDArray[np.integer],
        expert_weights: npt.NDArray[np.floating],
    ) -> None:
        """`values` (N, L, columns) is of `dual_layers`, the last two (N, L, C) of `experts_of`."""
        columns = {
            "source": [source] * len(ids),
            "sequence": np.full(len(ids), sequence),
            "position": np.arange(len(ids)),
            "token_id": ids,
            "token": token_texts(self._values[id] for id in ids.tolist()),
            "upos": [None] * len(ids) if upos is None else upos,
            "nats": nats,
            **{name: _lists(array) for name, array in by_name(values).items()},
        }
        if experts.shape[-1]:
            columns["experts"] = _lists(experts, np.int32)
            columns["expert_weights"] = _lists(expert_weights)
        self._held.append(pa.RecordBatch.from_pydict(columns, schema=self._file.schema))
        if sum(map(len, self._held)) >= ROWS:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._file.write_table(pa.Table.from_batches(self._held))
        self._held = []


def merge(tables: Sequence[Path], path: Path, facts: Mapping[str, str]) -> None:
    """Makes one table of those of several sources, with some facts as its metadata."""
    schema = pq.read_schema(tables[0])
    schema = schema.with_metadata({**(schema.metadata or {}), **facts})
    with replacing(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as file:
        for table in tables:
            for batch in pq.ParquetFile(table).iter_batches(ROWS):
                file.write_batch(batch.replace_schema_metadata(schema.metadata))


def token_texts(values: Iterable[bytes]) -> list[str]:
    """The text of each token; together they are the text of all.

    A character in several tokens is the last one's, and bytes that are no character are U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(value) for value in values]
    if rest := decoder.decode(b"", final=True):
        texts[-1] += rest
    return texts


def read_examples(tokens: Path, source: str, numbers: Sequence[int]) -> list[Example]:
    """Reads sequences of a source in the order of `numbers`; those without rows are left out."""
    chosen = (ds.field("source") == source) & ds.field("sequence").isin(list(numbers))
    rows = ds.dataset(tokens).to_table(filter=chosen)
    of_each = {number: rows.filter(pc.equal(rows["sequence"], number)) for number in numbers}
    return [_example(source, number, its) for number, its in of_each.items() if len(its)]


def _example(source: str, number: int, rows: pa.Table) -> Example:
    rows = rows.sort_by("position")
    upos = rows["upos"].to_pylist()
    known = {*READOUTS, *STEP_READOUTS, *EXPERT_READOUTS} & {*rows.schema.names}
    names = known & {*Example.__dataclass_fields__}
    read_outs: dict[str, Any] = {n: np.array(rows[n].to_pylist(), np.float32) for n in names}
    return Example(
        source, number, tokens=tuple(rows["token"].to_pylist()),
        upos=tuple(tag or "" for tag in upos) if any(upos) else None,
        nats=rows["nats"].to_numpy(), length=len(rows), **read_outs,
    )  # fmt: skip


def _lists(values: npt.NDArray[Any], of: type[np.generic] = np.float32) -> pa.Array:
    """An array (N, ...) as lists of fixed size, nested as deep as it has further dimensions."""
    array = pa.array(np.ascontiguousarray(values, of).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
