"""Duplicates, the second stage: keys are sorted, matched by range, and judged by texts.

No task sees all documents, and no memory grows with them. A group's documents are
sorted by each of their keys; each range of keys is matched over all groups; and each
group's verdicts are settled by what was matched.

An exact duplicate has the text of an earlier document. A near-duplicate shares a band
of its MinHash signature with earlier documents, kept or not, and so many runs of words
with the first of them that their Jaccard index is high enough. So a verdict depends on
earlier documents only.
"""

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.catalogue import Catalogue, Integers, PieceGroup
from data_prep.engine import Between, Engine, Task, read_shared, write_shared
from data_prep.pieces import Piece, read_sealed, write_sealed
from data_prep.scramble import scramble
from data_prep.settings import Duplicates
from data_prep.similarity import TextComparison
from data_prep.text import BANDS

Keys = npt.NDArray[np.uint64]

# What a document is.
KEPT = 0
EXACT = 1
NEAR = 2
UNLIKE = 3  # only in pairs: a band agrees, and the texts do not

PAIR = np.dtype([("document", "i8"), ("of", "i8"), ("kind", "u1"), ("jaccard", "f8")])
"""A document, an earlier one that it was compared with, and the result. `jaccard` is
nan if their texts were not compared."""

NUMBERS = np.dtype(
    [
        ("tokens", "i8"),  # of documents that may be written
        ("documents", "i8"),  # that may be written
        ("text_bytes", "i8"),  # of them
        ("longest", "i8"),  # of them, in tokens
        ("held_out", "i8"),
        ("exact", "i8"),
        ("near", "i8"),
        ("unlike", "i8"),  # kept, though a band agrees with that of an earlier document
    ]
)
"""What is known of a piece when its documents are judged."""

BYTES_A_KEY = 160
"""Peak memory per key while a range is matched; for digests, the longest keys."""


@dataclass(frozen=True)
class Judgement:
    """What the tasks of this stage share."""

    catalogue: Catalogue
    folder: Path
    duplicates: Duplicates
    min_jaccard: float
    val_fraction: float
    tokenizer: Path
    ranges: int  # into which the keys of each kind are divided

    @property
    def columns(self) -> int:
        """Kinds of keys: the text's digest, then the bands of its signature."""
        return {"keep": 0, "exact": 1, "near": 1 + BANDS}[self.duplicates]

    def keys(self, column: int, group: PieceGroup) -> Keys:
        """Returns keys of one kind of a group's documents, (documents, words)."""
        pieces = map(self.catalogue.piece, group.pieces)
        return np.concatenate([_keys_of(piece, column) for piece in pieces])

    def verdicts(self, group: PieceGroup) -> "Verdicts":
        return _read_verdicts(self.verdict_path(group))

    def is_kept(self, number: int) -> npt.NDArray[np.bool_]:
        """Whether each document of a piece is no duplicate, (documents,)."""
        group = self.catalogue.group_of(number)
        starts = self.catalogue.starts
        begin = starts[number] - starts[group.first]
        end = starts[number + 1] - starts[group.first]
        return self.verdicts(group).kinds[begin:end] == KEPT

    def is_held_out(self, number: int) -> npt.NDArray[np.bool_]:
        """Whether each document of a piece is for validation if it is kept,
        (documents,)."""
        # Independent of the seed: any order holds out the same documents.
        ids = scramble(self.catalogue.piece(number).numbers("id_hash"), "validation")
        return ids < np.uint64(int(self.val_fraction * 2**64))

    def sorted_path(self, column: int, group: PieceGroup) -> Path:
        return self.folder / "sorted" / f"{column:02d}-{group.number:05d}.npy"

    def matched_path(self, column: int, number: int) -> Path:
        """The file of a range of keys."""
        return self.folder / f"matched-{self.ranges}" / f"{column:02d}-{number:05d}.npy"

    def verdict_path(self, group: PieceGroup) -> Path:
        return self.folder / "verdicts" / f"{group.number:05d}.npz"


def _keys_of(piece: Piece, column: int) -> Keys:
    if column == 0:
        return piece.digests()
    return piece.bands()[:, column - 1 : column]


def judge(
    engine: Engine,
    judgement: Judgement,
    on_task: Callable[[int], None],
) -> npt.NDArray[np.void]:
    """Judges all documents; returns `NUMBERS` of each piece, (pieces,).

    `on_task` is called with 1 for each of the tasks, of which there are
    `count_tasks`.
    """
    # Those of fewer pieces stay: a preparation that continues begins with them.
    judgement.folder.mkdir(parents=True, exist_ok=True)
    common = write_shared(judgement.folder, "judgement", judgement)

    numbers = np.zeros(len(judgement.catalogue), NUMBERS)
    for stage in _stages(common, judgement):
        for task, result in engine.run(stage):
            on_task(1)
            if isinstance(task, Settle):
                numbers[task.group.first : task.group.stop] = result
    return numbers


def count_tasks(judgement: Judgement) -> int:
    return sum(map(len, _stages(judgement.folder, judgement)))


def ranges_for(documents: int, task_bytes: int) -> int:
    """Returns the number of key ranges with which a task needs at most `task_bytes`."""
    return max(1, math.ceil(documents * BYTES_A_KEY / task_bytes))


def _stages(common: Path, judgement: Judgement) -> Iterator[list[Task]]:
    groups = judgement.catalogue.groups
    if not groups:
        return

    if judgement.columns:
        yield [Sort(common, group) for group in groups]
    yield [
        Match(common, column, number)
        for column in range(judgement.columns)
        for number in range(judgement.ranges)
    ]
    yield [Settle(common, group) for group in groups]


@dataclass(frozen=True)
class Sort:
    """A task: the distinct keys of a group in order, each with its first document."""

    judgement: Path
    group: PieceGroup

    def run(self, between: Between) -> None:
        judgement: Judgement = read_shared(self.judgement)
        start = judgement.catalogue.starts[self.group.first]

        for column in range(judgement.columns):
            path = judgement.sorted_path(column, self.group)
            if read_sealed(path):
                continue

            keys = judgement.keys(column, self.group)
            firsts = np.flatnonzero(_firsts(keys) == np.arange(len(keys)))
            firsts = firsts[np.argsort(keys[firsts, 0], kind="stable")]
            documents = (start + firsts).astype(np.uint64)
            _write(path, np.vstack([keys[firsts].T, documents]))


@dataclass(frozen=True)
class Match:
    """A task: documents with a key in one range that an earlier group has as well."""

    judgement: Path
    column: int
    number: int  # of the range

    def run(self, between: Between) -> None:
        judgement: Judgement = read_shared(self.judgement)
        path = judgement.matched_path(self.column, self.number)
        if read_sealed(path):
            return

        parts = [self._part(judgement, group) for group in judgement.catalogue.groups]
        *words, documents = np.concatenate(parts, axis=1)
        # Groups are in their order, so the first of equal keys is the earliest.
        firsts = _firsts(np.stack(words, axis=1))
        repeated = np.flatnonzero(firsts != np.arange(len(firsts)))

        pairs = np.stack([documents[repeated], documents[firsts[repeated]]])
        _write(path, pairs[:, np.argsort(pairs[0], kind="stable")])

    def _part(self, judgement: Judgement, group: PieceGroup) -> Keys:
        """This range of a group's keys: their words, then the documents."""
        keys: Keys = np.load(judgement.sorted_path(self.column, group), mmap_mode="r")

        def begin_of(number: int) -> int:
            if number == judgement.ranges:  # behind all
                return keys.shape[1]
            least = (number << 64) // judgement.ranges
            return int(np.searchsorted(keys[0], np.uint64(least)))

        return keys[:, begin_of(self.number) : begin_of(self.number + 1)]


@dataclass(frozen=True)
class Settle:
    """A task: the verdicts on a group's documents."""

    judgement: Path
    group: PieceGroup

    def run(self, between: Between) -> npt.NDArray[np.void]:
        """Returns `NUMBERS` of each piece."""
        judgement: Judgement = read_shared(self.judgement)
        path = judgement.verdict_path(self.group)
        if not read_sealed(path):
            verdicts = _settle(judgement, self.group, between)
            content = io.BytesIO()
            np.savez(
                content,
                kinds=verdicts.kinds,
                pairs=verdicts.pairs,
                numbers=verdicts.numbers,
            )
            write_sealed(path, content.getvalue())
        numbers: npt.NDArray[np.void] = judgement.verdicts(self.group).numbers
        return numbers


@dataclass(frozen=True)
class Verdicts:
    """What the documents of a group are."""

    kinds: npt.NDArray[np.uint8]  # KEPT, EXACT or NEAR, (documents,)
    pairs: npt.NDArray[np.void]  # `PAIR`, in the order of the documents
    numbers: npt.NDArray[np.void]  # `NUMBERS`, (pieces,)


@lru_cache(maxsize=64)
def _read_verdicts(path: Path) -> Verdicts:
    with np.load(path) as content:
        return Verdicts(content["kinds"], content["pairs"], content["numbers"])


def _settle(judgement: Judgement, group: PieceGroup, between: Between) -> Verdicts:
    """Judges a group's documents by one kind of key after the other."""
    catalogue = judgement.catalogue
    start = int(catalogue.starts[group.first])
    count = int(catalogue.starts[group.stop]) - start
    kinds = np.full(count, KEPT, np.uint8)
    unlike = np.zeros(count, np.bool_)
    compared: list[npt.NDArray[np.void]] = []
    comparison = TextComparison(catalogue, judgement.tokenizer)

    for column in range(judgement.columns):
        leaders = _leaders(judgement, column, group)
        repeats = leaders != np.arange(start, start + count)
        new = np.flatnonzero(repeats & (kinds == KEPT))
        pairs = np.zeros(len(new), PAIR)
        pairs["document"] = start + new
        pairs["of"] = leaders[new]
        pairs["jaccard"] = np.nan
        pairs["kind"] = NEAR if column else EXACT

        if column and judgement.min_jaccard:
            pairs = comparison.of_new(pairs)
            differ = pairs["jaccard"] < judgement.min_jaccard
            pairs["kind"][differ] = UNLIKE
            unlike[pairs["document"][differ] - start] = True

        same = pairs[pairs["kind"] != UNLIKE]
        kinds[same["document"] - start] = same["kind"]
        compared.append(pairs)
        between()

    pairs = np.concatenate([np.zeros(0, PAIR), *compared])
    pairs = pairs[np.argsort(pairs["document"], kind="stable")]
    numbers = _numbers(judgement, group, kinds, unlike)
    return Verdicts(kinds, pairs, numbers)


def _leaders(judgement: Judgement, column: int, group: PieceGroup) -> Integers:
    """Returns the first document with each document's key, (documents,)."""
    firsts = _firsts(judgement.keys(column, group))
    start = judgement.catalogue.starts[group.first]
    leaders: Integers = np.arange(start, start + len(firsts))

    for number in range(judgement.ranges):
        path = judgement.matched_path(column, number)
        documents, earlier = np.load(path, mmap_mode="r")
        bounds = np.array([start, start + len(firsts)], np.uint64)
        begin, end = np.searchsorted(documents, bounds)
        own = documents[begin:end].astype(np.int64) - start
        leaders[own] = earlier[begin:end]
    return leaders[firsts]


def _firsts(keys: Keys) -> Integers:
    """Returns the first place with each place's key, (documents,)."""
    # Equal keys side by side; lexsort is stable, so each run begins with its earliest.
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    begins_run = np.ones(len(keys), np.bool_)
    begins_run[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)

    leaders = order[begins_run]  # of each run
    run = np.cumsum(begins_run) - 1  # of each place in the order
    firsts = np.empty(len(keys), np.int64)
    firsts[order] = leaders[run]
    return firsts


def _numbers(
    judgement: Judgement,
    group: PieceGroup,
    kinds: npt.NDArray[np.uint8],
    unlike: npt.NDArray[np.bool_],
) -> npt.NDArray[np.void]:
    numbers = np.zeros(len(group.pieces), NUMBERS)
    start = 0
    for row, number in zip(numbers, group.pieces, strict=True):
        piece = judgement.catalogue.piece(number)
        held_out = judgement.is_held_out(number)
        stop = start + len(held_out)
        own = kinds[start:stop]
        own_unlike = unlike[start:stop]
        start = stop

        to_write = (own == KEPT) & ~held_out
        _, begins = piece.tokens()
        lengths = np.diff(begins)[to_write]
        row["tokens"] = lengths.sum()
        row["documents"] = to_write.sum()
        row["text_bytes"] = piece.numbers("text_bytes")[to_write].sum()
        row["longest"] = lengths.max(initial=0)
        row["held_out"] = ((own == KEPT) & held_out).sum()
        row["exact"] = (own == EXACT).sum()
        row["near"] = (own == NEAR).sum()
        row["unlike"] = ((own == KEPT) & own_unlike).sum()
    return numbers


def _write(path: Path, array: npt.NDArray[Any]) -> None:
    content = io.BytesIO()
    np.save(content, array)
    write_sealed(path, content.getvalue())
