"""Mix: which documents repeat an earlier one, which of the others are written, and
their order."""

import hashlib
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.pieces import Piece, Tokens
from data_prep.settings import Duplicates, Preparation
from data_prep.text import BANDS

KEPT, EXACT, NEAR = 0, 1, 2  # the values of `Verdicts.kinds`

BYTES_A_DOCUMENT = 66
"""Peak of memory, by tracemalloc on 4 million documents, for `exact` and `near`
alike."""


class Verdicts:
    """For each document of a list of pieces, whether it repeats an earlier document,
    and which.

    An exact duplicate has the text of an earlier document. A near-duplicate shares a
    band of its MinHash signature with an earlier document, kept or not. So a verdict
    depends on earlier documents alone. All keys of one kind are sorted in memory.
    """

    def __init__(self, pieces: Sequence[Piece], duplicates: Duplicates) -> None:
        self.pieces = pieces
        self.ends = np.cumsum([piece.documents for piece in pieces], dtype=np.int64)
        """Documents up to each piece's last one, (pieces,)."""
        count = sum(piece.documents for piece in pieces)
        self._kinds = np.full(count, KEPT, np.uint8)
        self._firsts = np.zeros(count, np.int64)
        if duplicates != "keep":
            self._judge(EXACT, [piece.digests() for piece in pieces])
        if duplicates == "near":
            for band in range(BANDS):
                self._judge(
                    NEAR, [piece.bands()[:, band : band + 1] for piece in pieces]
                )

        self.kinds = np.split(self._kinds, self.ends)[:-1]
        """KEPT, EXACT or NEAR for each document of each piece, (documents,)."""
        self.firsts = np.split(self._firsts, self.ends)[:-1]
        """The document that each duplicate of each piece repeats, (documents,)."""

    def any(self) -> bool:
        return bool(np.any(self._kinds != KEPT))

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.ends, document, side="right"))
        return piece, document - int(self.ends[piece]) + self.pieces[piece].documents

    def _judge(self, kind: int, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Judges by keys, (documents, words) of each piece; earlier judgements stay."""
        if not len(self._kinds):
            return
        keys = np.concatenate(parts)
        # lexsort is stable: among equal keys the documents stay in their order.
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        repeats = np.append(False, (keys[1:] == keys[:-1]).all(axis=1))
        leaders = order[
            np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))
        ]
        new = repeats & (self._kinds[order] == KEPT)
        self._kinds[order[new]] = kind
        self._firsts[order[new]] = leaders[new]


class Pool:
    """The documents of one source that may be written: no duplicates, none held out."""

    def __init__(
        self,
        name: str,
        pieces: Sequence[Piece],
        kinds: Sequence[npt.NDArray[np.uint8]],
        val_fraction: float,
    ) -> None:
        """`kinds` are KEPT, EXACT or NEAR for each document of each piece,
        (documents,)."""
        self.name = name
        self.pieces = pieces
        self.kinds = kinds
        self._val_fraction = val_fraction
        self.tokens_of = np.array(
            [self.lengths(n).sum() for n in range(len(pieces))], np.int64
        )
        """Tokens to write in each piece, (pieces,)."""
        self.tokens = int(self.tokens_of.sum())

    def to_write(self, piece: int) -> npt.NDArray[np.int64]:
        """Returns the indices of a piece's documents that may be written."""
        return np.flatnonzero((self.kinds[piece] == KEPT) & ~self._held_out(piece))

    def to_hold_out(self, piece: int) -> npt.NDArray[np.int64]:
        """Returns the indices of a piece's documents that are for validation."""
        return np.flatnonzero((self.kinds[piece] == KEPT) & self._held_out(piece))

    def lengths(self, piece: int) -> npt.NDArray[np.int64]:
        """Returns the tokens of each of a piece's documents that may be written."""
        return np.diff(self.pieces[piece].tokens()[1])[self.to_write(piece)]

    def _held_out(self, piece: int) -> npt.NDArray[np.bool_]:
        # Independent of the seed: any order holds out the same documents.
        ids = scramble(self.pieces[piece].numbers("id_hash"), "validation")
        return ids < np.uint64(int(self._val_fraction * 2**64))


@dataclass(frozen=True)
class Portion:
    """The documents of one source that are written: whole passes, then the head of one
    more."""

    pool: Pool
    whole: int  # passes over all documents
    head_pieces: int  # pieces that are whole in the last pass
    head_documents: int  # documents of the piece after them
    tokens: int  # tokens of all passes

    @property
    def all_passes(self) -> int:
        return self.whole + bool(self.head_pieces or self.head_documents)

    @property
    def documents(self) -> int:
        pieces = range(len(self.pool.pieces))
        return sum(
            len(self.taken(n, piece))
            for n in range(self.all_passes)
            for piece in pieces
        )

    def taken(self, number: int, piece: int) -> npt.NDArray[np.int64]:
        """Returns the indices of a piece's documents that pass `number` writes."""
        documents = self.pool.to_write(piece)
        if number < self.whole or piece < self.head_pieces:
            return documents
        return documents[: self.head_documents if piece == self.head_pieces else 0]

    def stream(self, seed: int, window: int) -> Iterator[tuple[float, Tokens]]:
        """Yields (when, tokens) of each document, `when` from 0 to 1, `window` pieces
        mixed."""
        done = 0
        for number in range(self.all_passes):
            salt = f"{seed}/{self.pool.name}/{number}"
            last = (
                len(self.pool.pieces) if number < self.whole else self.head_pieces + 1
            )
            pieces = np.arange(min(last, len(self.pool.pieces)))
            pieces = pieces[
                np.argsort(scramble(pieces.astype(np.uint64), salt), kind="stable")
            ]
            for start in range(0, len(pieces), window):
                for tokens in self._shuffled(
                    number, pieces[start : start + window], salt
                ):
                    yield (done + len(tokens) / 2) / self.tokens, tokens
                    done += len(tokens)

    def _shuffled(
        self, number: int, pieces: npt.NDArray[np.int64], salt: str
    ) -> Iterator[Tokens]:
        held, keys, places = [], [], []
        for position, piece in enumerate(pieces):
            taken = self.taken(number, piece)
            held.append(self.pool.pieces[piece].tokens())
            keys.append(
                scramble(self.pool.pieces[piece].numbers("id_hash")[taken], salt)
            )
            places.append(np.stack([np.full(len(taken), position), taken], axis=1))
        order = np.argsort(np.concatenate(keys), kind="stable")
        for position, document in np.concatenate(places)[order].tolist():
            tokens, starts = held[position]
            yield tokens[starts[document] : starts[document + 1]]


def wanted_tokens(settings: Preparation) -> list[int | None]:
    """Returns the tokens asked for of each source; None: all."""
    shares = settings.shares() or [1.0] * len(settings.sources)
    if settings.tokens is None:
        return [None] * len(shares)
    return [max(1, round(settings.tokens * share)) for share in shares]


def portions(settings: Preparation, pools: Sequence[Pool]) -> list[Portion]:
    """Returns the portion of each pool by the weights: the scarcest source ends the
    mix."""
    shares = settings.shares()
    if shares is None and settings.tokens is None:
        return [_portion(pool, pool.tokens) for pool in pools]
    shares = shares or [1.0]
    total = min(
        pool.tokens * source.max_epochs / share
        for pool, source, share in zip(pools, settings.sources, shares, strict=True)
    )
    if settings.tokens is not None:
        total = min(total, settings.tokens)
    return [
        # Rounded up, so that the sum is not below the whole; but no more than the pool
        # has.
        _portion(
            pool, min(math.ceil(total * share - 1e-6), pool.tokens * source.max_epochs)
        )
        for pool, source, share in zip(pools, settings.sources, shares, strict=True)
    ]


def _portion(pool: Pool, wanted: int) -> Portion:
    """Takes documents in order, in repeated passes, up to the one that reaches `wanted`
    tokens."""
    whole, rest = divmod(wanted, pool.tokens) if pool.tokens else (0, 0)
    if not rest:
        return Portion(pool, whole, 0, 0, whole * pool.tokens)
    ends = np.cumsum(pool.tokens_of)
    piece = int(np.searchsorted(ends, rest))
    before = int(ends[piece - 1]) if piece else 0
    lengths = pool.lengths(piece)
    documents = int(np.searchsorted(np.cumsum(lengths), rest - before)) + 1
    tokens = whole * pool.tokens + before + int(lengths[:documents].sum())
    return Portion(pool, whole, piece, documents, tokens)


def interleave(portions: Sequence[Portion], seed: int) -> Iterator[Tokens]:
    """Yields the tokens of every document, each source spread evenly over the
    stream."""
    # pieces shuffled together: in all some 60M tokens
    window = max(2, 32 // len(portions))
    streams = [portion.stream(seed, window) for portion in portions]
    for _, tokens in heapq.merge(*streams, key=itemgetter(0)):
        yield tokens


def scramble(values: npt.NDArray[np.uint64], salt: str) -> npt.NDArray[np.uint64]:
    """Maps numbers to evenly spread ones, (n,), differently for each salt
    (SplitMix64)."""
    start = int.from_bytes(
        hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little"
    )
    z = values * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
