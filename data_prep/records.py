"""Records beside the shards: held-out texts, rejected documents, duplicates, counts.

Tasks make the lines of a group of pieces each; the command joins them.
"""

import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.catalogue import PieceGroup
from data_prep.duplicates import EXACT, NEAR, UNLIKE, Judgement
from data_prep.encoding import Encoded
from data_prep.engine import Between, Engine, read_shared, write_shared
from data_prep.input_files import Corpus
from data_prep.mix import Portion
from data_prep.pieces import REJECTED, read_sealed, write_sealed
from data_prep.scramble import scramble
from data_prep.settings import SourceSettings
from data_prep.similarity import Texts
from dualpath_cli.base.files import hash_file, replacing
from dualpath_cli.data.manifest import INDEX, MANIFEST, SourceCount, StoredFile
from dualpath_cli.data.storage import file_sizes
from dualpath_cli.data.tokenizer import TOKENIZER

DUPLICATES = "duplicates.jsonl.zst"
PAIRS = "compared.jsonl.zst"
SAMPLED_PAIRS = 1000
"""About how many pairs whose texts were compared are written with their texts."""
MOST_CHARACTERS = 20_000  # of a text that is kept

KINDS = {EXACT: "exact", NEAR: "near", UNLIKE: "unlike"}


@dataclass(frozen=True)
class Records:
    """What the tasks share."""

    judgement: Judgement
    corpora: Sequence[tuple[str, Sequence[str]]]
    """The name of each source, and the names of its files."""
    folder: Path
    sampled: float  # share of the compared pairs that keep their texts

    def path(self, group: PieceGroup, kind: str) -> Path:
        return self.folder / f"{group.number:05d}.{kind}.jsonl"


@dataclass(frozen=True)
class Record:
    """A task: the lines of a group's held-out documents, duplicates and pairs."""

    records: Path  # shared `Records`
    group: PieceGroup

    def run(self, between: Between) -> None:
        records: Records = read_shared(self.records)
        lines = {
            "held_out": _held_out_rows,
            "duplicates": _duplicate_rows,
            "pairs": _pair_rows,
        }
        for kind, rows_of in lines.items():
            path = records.path(self.group, kind)
            if read_sealed(path):
                continue

            rows = rows_of(records, self.group)
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            if text:
                write_sealed(path, text.encode())


def _held_out_rows(records: Records, group: PieceGroup) -> Iterator[dict[str, Any]]:
    judgement = records.judgement
    texts = Texts(judgement.catalogue, judgement.tokenizer)
    for number in group.pieces:
        chosen = judgement.is_kept(number) & judgement.is_held_out(number)
        ids = judgement.catalogue.piece(number).ids() if chosen.any() else []
        start = int(judgement.catalogue.starts[number])
        for document in np.flatnonzero(chosen).tolist():
            yield {"id": ids[document], "text": texts.text(start + document)}


def _duplicate_rows(records: Records, group: PieceGroup) -> Iterator[dict[str, Any]]:
    places = _Places(records)
    pairs = records.judgement.verdicts(group).pairs
    for pair in pairs[pairs["kind"] != UNLIKE]:
        yield {
            **places.of(int(pair["document"])),
            "id": places.id(int(pair["document"])),
            **_judged(pair),
            "of": places.of(int(pair["of"])),
        }


def _pair_rows(records: Records, group: PieceGroup) -> Iterator[dict[str, Any]]:
    """Some of the pairs whose texts were compared, with the beginnings of the texts."""
    places = _Places(records)
    texts = Texts(records.judgement.catalogue, records.judgement.tokenizer)
    pairs = records.judgement.verdicts(group).pairs
    pairs = pairs[~np.isnan(pairs["jaccard"])]

    drawn = scramble(pairs["document"].astype(np.uint64), "pairs")
    for pair in pairs[drawn * 2.0**-64 < records.sampled]:
        documents = [int(pair["document"]), int(pair["of"])]
        yield {
            **_judged(pair),
            "places": [places.of(document) for document in documents],
            "texts": [texts.text(each)[:MOST_CHARACTERS] for each in documents],
        }


def _judged(pair: Any) -> dict[str, Any]:
    row = {"kind": KINDS[int(pair["kind"])]}
    if np.isnan(pair["jaccard"]):
        return row
    return {**row, "jaccard": round(float(pair["jaccard"]), 4)}


class _Places:
    """Where documents stand in the input."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._catalogue = records.judgement.catalogue
        self._rows = lru_cache(maxsize=256)(self._rows_of)
        self._ids = lru_cache(maxsize=1)(lambda n: self._catalogue.piece(n).ids())

    def _rows_of(self, piece: int) -> list[int]:
        rows: list[int] = self._catalogue.piece(piece).numbers("number").tolist()
        return rows

    def of(self, document: int) -> dict[str, Any]:
        piece, index = self._catalogue.locate(document)
        source, files = self._records.corpora[int(self._catalogue.source[piece])]
        return {
            "source": source,
            "file": files[int(self._catalogue.file[piece])],
            "row": self._rows(piece)[index],
        }

    def id(self, document: int) -> str | None:
        piece, index = self._catalogue.locate(document)
        id: str | None = self._ids(piece)[index]
        return id


def write_records(
    folder: Path,
    engine: Engine,
    judgement: Judgement,
    corpora: Sequence[Corpus],
    numbers: Any,
    on_task: Callable[[int], None],
) -> None:
    """Writes held-out documents, duplicates, and some compared pairs into a folder.

    A file without lines is not written. `numbers` are `NUMBERS` of all pieces;
    `on_task` is called with 1 for each group.
    """
    compared = int(numbers["near"].sum() + numbers["unlike"].sum())
    records = Records(
        judgement,
        [
            (corpus.settings.name, [file.name for file in corpus.files])
            for corpus in corpora
        ],
        judgement.folder / "records",
        min(SAMPLED_PAIRS / max(compared, 1), 1.0),
    )
    common = write_shared(judgement.folder, "records", records)
    groups = judgement.catalogue.groups
    for _ in engine.run([Record(common, group) for group in groups]):
        on_task(1)

    for number, corpus in enumerate(corpora):
        own = [group for group in groups if group.source == number]
        path = folder / "val" / f"{corpus.settings.name}.jsonl"
        _join(records, own, "held_out", path)
    _join(records, groups, "duplicates", folder / DUPLICATES)
    _join(records, groups, "pairs", folder / PAIRS)


def _join(
    records: Records, groups: Sequence[PieceGroup], kind: str, path: Path
) -> None:
    """Joins the lines of some groups; a name with .zst is compressed."""
    parts = [records.path(group, kind) for group in groups]
    parts = [part for part in parts if part.exists()]
    if not parts:
        return

    with replacing(path) as partial, partial.open("wb") as file:
        stream: Any = file
        if path.suffix == ".zst":
            stream = pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd")
        for part in parts:
            stream.write(read_sealed(part))
        stream.close()


def write_rejected(folder: Path, pieces: Sequence[Path]) -> None:
    """Writes rejected.jsonl.zst: rejected documents with their place and the reason.

    `pieces` are those with rejected documents; without any there is no file.
    """
    if not pieces:
        return

    path = folder / "rejected.jsonl.zst"
    with replacing(path) as partial, open(partial, "wb") as out:
        for piece in pieces:
            with open(piece.with_suffix(REJECTED), "rb") as file:
                # Frames one after the other are a zstd file.
                shutil.copyfileobj(file, out)


def first_reason(piece: Path) -> str:
    """Returns the reason of the first rejected document of a piece that has one."""
    row = next(rows_in(piece.with_suffix(REJECTED)))
    reason = f"row {row['row']} {row['reason']}"
    if not row["detail"]:
        return reason
    return f"{reason}: {row['detail']}"


def rows_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file of compressed JSON lines."""
    with pa.CompressedInputStream(str(path), "zstd") as stream:
        yield from map(json.loads, io.BufferedReader(stream))


def files_beside(folder: Path, chunks: Sequence[StoredFile]) -> list[StoredFile]:
    """Returns the files beside the chunks, with hashes, in the order of their names."""
    known = {chunk.name for chunk in chunks}
    known |= {INDEX, MANIFEST, TOKENIZER}

    beside = []
    for name, size in sorted(file_sizes(folder).items()):
        if name not in known:
            digest = hash_file(folder / name)
            beside.append(StoredFile(name, size, digest))
    return beside


def count_documents(
    source: SourceSettings, encoded: Encoded, portion: Portion
) -> SourceCount:
    """Counts the documents of a source, each of which is in one of the counts."""
    numbers = portion.pool.numbers
    tokens = portion.pool.tokens
    rejected: Counter[str] = Counter()
    for count in encoded.counts:
        rejected.update(count.rejected)

    distinct = portion.distinct_documents()
    return SourceCount(
        name=source.name,
        path=source.path,
        read=sum(count.read for count in encoded.counts),
        documents=distinct,
        validation=int(numbers["held_out"].sum()),
        rejected=dict(sorted(rejected.items())),
        exact_duplicates=int(numbers["exact"].sum()),
        near_duplicates=int(numbers["near"].sum()),
        unused=int(numbers["documents"].sum()) - distinct,
        passes=round(portion.tokens / tokens, 6) if tokens else 0.0,
        tokens=portion.tokens,
        text_bytes=portion.total("text_bytes"),
        normalised=sum(count.normalised for count in encoded.counts),
        faults=encoded.faults,
        unlike=int(numbers["unlike"].sum()),
    )
