"""routing.parquet, a row for each token; and sequences of it, for figures and pages.

Shapes: N tokens, L layers with gates, K loops, C experts of a token, F interventions, S = K + 3
states of a layer: its input, the state after each loop, that of the wide path, its output.
"""

import codecs
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
    """A sequence's tokens, and the read-outs of the layers with gates."""

    source: str
    number: int  # of the sequence in the source, from 0 on
    tokens: tuple[str, ...]  # the text of each token, (N,), see `token_texts`
    upos: tuple[str, ...] | None  # part of speech of each token; None where nothing was tagged
    nats: Floats  # loss of each token, given those before it, (N,)
    gate_deep: Floats  # g_d, (N, L), as are the next five
    gate_wide: Floats  # g_w
    update_deep: Floats  # ‖Δ_d‖
    update_wide: Floats
    cosine: Floats
    deep_share: Floats
    step_weights: Floats  # weight of each step in h_deep, (N, L, K), as are the next two
    step_sizes: Floats  # ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖
    step_cosines: Floats  # of each step's update and the one before it; nan at k = 1
    length: int  # tokens of the whole sequence; these are the first
    experts: Floats | None = None  # (N, L, C), -1 in a dense layer; None if all are dense
    expert_weights: Floats | None = None  # (N, L, C)
    # For the page:
    said: npt.NDArray[np.int32] | None = None  # likeliest next ids of each state, (N, L, S, 3)
    shares: Floats | None = None  # their probabilities, (N, L, S, 3)
    next_ids: npt.NDArray[np.int32] | None = None  # actual next tokens, (N,); -1 after the last one
    next_nats: Floats | None = None  # their losses, (N,)
    costs: Floats | None = None  # nats that forcing adds: all layers, then each, (N, 1 + L, F)

    @property
    def expected_loops(self) -> Floats:
        """The mean step number under the weights of the steps, (N, L)."""
        steps_K = np.arange(1, self.step_weights.shape[-1] + 1)
        return np.asarray((self.step_weights * steps_K).sum(-1))

    def first(self, count: int) -> "Example":
        """The first tokens of the sequence."""
        per_token: dict[str, Any] = {
            name: values[:count]
            for name, values in vars(self).items()
            if isinstance(values, tuple | np.ndarray)
        }
        return replace(self, **per_token)


@dataclass(frozen=True)
class Model:
    """A model's read-outs of the sequences of a page."""

    steps: Sequence[int]  # of each layer with gates, (L,); K is the largest
    examples: Sequence[Example]
    forced: Sequence[str] = ()  # names of the interventions in `Example.costs`, (F,)
    experts: Sequence[int] = ()  # of each layer with gates, (L,)


TOKENS = "routing.parquet"
ROWS = 1 << 16  # of a row group, which is held in memory


@contextmanager
def token_table(
    path: Path, token_values: Sequence[bytes], layers: int, loops: int, chosen: int
) -> Iterator["TokenTable"]:
    """Writes a source's table, whole or not at all; `token_values` are the bytes of each id.

    `chosen` is C, or 0 if no layer has experts.
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
    """Writes the rows of a source.

    `sequence` counts within the source, `position` within the sequence's text tokens, both from 0;
    `upos` is null where nothing was tagged; `nats` is the token's loss given those before it. Each
    of `READOUTS` is a list over the layers with gates, (L,), each of `STEP_READOUTS` a list of
    lists, (L, K). Of models with experts also `experts` and `expert_weights`, (L, C), with -1 and
    nan in dense layers.
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
    """Joins the tables of sources to one, with some facts as its metadata."""
    schema = pq.read_schema(tables[0])
    schema = schema.with_metadata({**(schema.metadata or {}), **facts})
    with replacing(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as file:
        for table in tables:
            for batch in pq.ParquetFile(table).iter_batches(ROWS):
                file.write_batch(batch.replace_schema_metadata(schema.metadata))


def token_texts(values: Iterable[bytes]) -> list[str]:
    """The text of each token; joined they are the whole text.

    A character in several tokens is part of the last one; bytes of no character are U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(value) for value in values]
    if rest := decoder.decode(b"", final=True):
        texts[-1] += rest
    return texts


def read_examples(tokens: Path, source: str, numbers: Sequence[int]) -> list[Example]:
    """Reads sequences of a source in the order of `numbers`; those without rows are left out."""
    chosen = (ds.field("source") == source) & ds.field("sequence").isin(list(numbers))
    table = ds.dataset(tokens).to_table(filter=chosen).sort_by("position")
    read_outs = {*READOUTS, *STEP_READOUTS, *EXPERT_READOUTS} & {*table.schema.names}
    names = read_outs & {*Example.__dataclass_fields__}
    found = []
    for number in numbers:
        rows = table.filter(pc.equal(table["sequence"], number))
        if not len(rows):
            continue
        upos = rows["upos"].to_pylist()
        own: dict[str, Any] = {n: np.array(rows[n].to_pylist(), np.float32) for n in names}
        found.append(Example(
            source, number, tokens=tuple(rows["token"].to_pylist()),
            upos=tuple(tag or "" for tag in upos) if any(upos) else None,
            nats=rows["nats"].to_numpy(), length=len(rows), **own,
        ))  # fmt: skip
    return found


def _lists(values: npt.NDArray[Any], of: type[np.generic] = np.float32) -> pa.Array:
    """An array (N, ...) as nested lists of fixed size."""
    array = pa.array(np.ascontiguousarray(values, of).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
