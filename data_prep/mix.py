"""Mix: the documents that repeat an earlier one, those written, and their order."""

import hashlib
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.pieces import Piece, TokenArray
from data_prep.settings import Duplicates, Preparation
from data_prep.text import BANDS

# The values of `Verdicts.kinds`.
KEPT = 0
EXACT = 1
NEAR = 2

BYTES_A_DOCUMENT = 66
"""Peak of memory, by tracemalloc on 4 million documents, of `exact` and `near`."""


class Verdicts:
    """Whether each document of a list of pieces repeats an earlier one, and which.

    An exact duplicate has the text of an earlier document. A near-duplicate shares a
    band of its MinHash signature with an earlier document, kept or not. So a verdict
    depends on earlier documents only.
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
                keys = [piece.bands()[:, band : band + 1] for piece in pieces]
                self._judge(NEAR, keys)

        self.kinds = np.split(self._kinds, self.ends)[:-1]
        """KEPT, EXACT or NEAR for each document of each piece, (documents,)."""
        self.firsts = np.split(self._firsts, self.ends)[:-1]
        """The document that each duplicate of each piece repeats, (documents,)."""

    def any(self) -> bool:
        """Whether any document is a duplicate."""
        return bool(np.any(self._kinds != KEPT))

    def locate(self, document: int) -> tuple[int, int]:
        """Returns the piece that a document is in, and its index there."""
        piece = int(np.searchsorted(self.ends, document, side="right"))
        return piece, document - int(self.ends[piece]) + self.pieces[piece].documents

    def _judge(self, kind: int, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Judges by keys, (documents, words) of each piece; earlier judgements stay."""
        if not len(self._kinds):
            return

        # All keys of one kind are sorted in memory.
        keys = np.concatenate(parts)
        # lexsort is stable: among equal keys the documents stay in their order.
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        repeats = np.append(False, (keys[1:] == keys[:-1]).all(axis=1))

        # The first document of each run of equal keys leads the run.
        begins = np.where(repeats, 0, np.arange(len(order)))
        leaders = order[np.maximum.accumulate(begins)]

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
        """`kinds` are those of `Verdicts`, (documents,) of each piece."""
        self.name = name
        self.pieces = pieces
        self.kinds = kinds
        self._val_fraction = val_fraction
        lengths = [self.lengths(n).sum() for n in range(len(pieces))]
        self.tokens_of = np.array(lengths, np.int64)
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
        _, starts = self.pieces[piece].tokens()
        return np.diff(starts)[self.to_write(piece)]

    def _held_out(self, piece: int) -> npt.NDArray[np.bool_]:
        # Independent of the seed: any order holds out the same documents.
        ids = scramble(self.pieces[piece].numbers("id_hash"), "validation")
        return ids < np.uint64(int(self._val_fraction * 2**64))


@dataclass(frozen=True)
class Portion:
    """The documents of one source that are written: whole passes, and a head of one."""

    pool: Pool
    whole: int  # passes over all documents
    head_pieces: int  # pieces that are whole in the last pass
    head_documents: int  # documents of the piece after them
    tokens: int  # tokens of all passes

    @property
    def all_passes(self) -> int:
        """Number of passes, with the one that is not whole."""
        return self.whole + bool(self.head_pieces or self.head_documents)

    @property
    def documents(self) -> int:
        """Number of documents of all passes."""
        count = 0
        for number in range(self.all_passes):
            for piece in range(len(self.pool.pieces)):
                count += len(self.taken(number, piece))
        return count

    def taken(self, number: int, piece: int) -> npt.NDArray[np.int64]:
        """Returns the indices of a piece's documents that pass `number` writes."""
        documents = self.pool.to_write(piece)
        if number < self.whole or piece < self.head_pieces:
            return documents
        if piece == self.head_pieces:
            return documents[: self.head_documents]
        return documents[:0]

    def stream(self, seed: int, window: int) -> Iterator[tuple[float, TokenArray]]:
        """Yields (when, tokens) of each document, `when` from 0 to 1.

        The documents of `window` pieces at a time are mixed.
        """
        count = len(self.pool.pieces)
        done = 0
        for number in range(self.all_passes):
            salt = f"{seed}/{self.pool.name}/{number}"
            last = count if number < self.whole else self.head_pieces + 1
            pieces = np.arange(min(last, count))
            keys = scramble(pieces.astype(np.uint64), salt)
            pieces = pieces[np.argsort(keys, kind="stable")]

            for start in range(0, len(pieces), window):
                mixed = pieces[start : start + window]
                for tokens in self._shuffled(number, mixed, salt):
                    yield (done + len(tokens) / 2) / self.tokens, tokens
                    done += len(tokens)

    def _shuffled(
        self, number: int, pieces: npt.NDArray[np.int64], salt: str
    ) -> Iterator[TokenArray]:
        """Yields the tokens of a pass's documents in some pieces, in random order."""
        contents = []
        keys = []
        places = []
        for position, number_of_piece in enumerate(pieces):
            piece = self.pool.pieces[number_of_piece]
            taken = self.taken(number, number_of_piece)
            contents.append(piece.tokens())
            keys.append(scramble(piece.numbers("id_hash")[taken], salt))
            places.append(np.stack([np.full(len(taken), position), taken], axis=1))

        order = np.argsort(np.concatenate(keys), kind="stable")
        for position, document in np.concatenate(places)[order].tolist():
            tokens, starts = contents[position]
            yield tokens[starts[document] : starts[document + 1]]


def wanted_tokens(settings: Preparation) -> list[int | None]:
    """Returns the tokens asked for of each source; None: all."""
    shares = settings.shares() or [1.0] * len(settings.sources)
    if settings.tokens is None:
        return [None] * len(shares)

    return [max(1, round(settings.tokens * share)) for share in shares]


def portions(settings: Preparation, pools: Sequence[Pool]) -> list[Portion]:
    """Returns the portion of each pool by the weights.

    The scarcest source ends the mix.
    """
    shares = settings.shares()
    if shares is None and settings.tokens is None:
        return [_portion(pool, pool.tokens) for pool in pools]

    shares = shares or [1.0]
    sources = settings.sources
    most = [
        pool.tokens * source.max_epochs
        for pool, source in zip(pools, sources, strict=True)
    ]
    total = min(tokens / share for tokens, share in zip(most, shares, strict=True))
    if settings.tokens is not None:
        total = min(total, settings.tokens)

    chosen = []
    for pool, share, tokens in zip(pools, shares, most, strict=True):
        # Rounded up, so that the sum is not below the whole.
        wanted = math.ceil(total * share - 1e-6)
        chosen.append(_portion(pool, min(wanted, tokens)))
    return chosen


def _portion(pool: Pool, wanted: int) -> Portion:
    """Takes documents in order, in repeated passes.

    The one that reaches `wanted` tokens is the last.
    """
    whole, rest = divmod(wanted, pool.tokens) if pool.tokens else (0, 0)
    if not rest:
        return Portion(pool, whole, 0, 0, whole * pool.tokens)

    # The piece in which the rest ends, and the tokens before it.
    ends = np.cumsum(pool.tokens_of)
    piece = int(np.searchsorted(ends, rest))
    before = int(ends[piece - 1]) if piece else 0

    # The document of it in which the rest ends.
    ends_in_piece = np.cumsum(pool.lengths(piece))
    last = int(np.searchsorted(ends_in_piece, rest - before))

    tokens = whole * pool.tokens
    tokens += before
    tokens += int(ends_in_piece[last])
    return Portion(pool, whole, piece, last + 1, tokens)


def interleave(portions: Sequence[Portion], seed: int) -> Iterator[TokenArray]:
    """Yields the tokens of every document, each source spread evenly."""
    # pieces shuffled together: in all some 60M tokens
    window = max(2, 32 // len(portions))
    streams = [portion.stream(seed, window) for portion in portions]
    for _, tokens in heapq.merge(*streams, key=itemgetter(0)):
        yield tokens


def scramble(values: npt.NDArray[np.uint64], salt: str) -> npt.NDArray[np.uint64]:
    """Maps numbers, (n,), to evenly spread ones, by SplitMix64 from a salt."""
    digest = hashlib.blake2b(salt.encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "little")

    z = values * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
