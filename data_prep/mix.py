"""Mix: the documents that are written of each source, and their order."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from data_prep.catalogue import Integers
from data_prep.duplicates import Judgement
from data_prep.pieces import Piece, TokenArray
from data_prep.scramble import scramble
from data_prep.settings import PreparationSettings

SHUFFLED_PIECES = 32  # of all sources together: in all some 60M tokens

Stream = Iterator[tuple[float, TokenArray]]
"""The place of each document in the order, from 0 to 1, and its tokens."""


_DOCUMENT = np.dtype([("key", "u8"), ("piece", "i8"), ("begin", "i8"), ("end", "i8")])
"""A document of a window: the key that orders it, which of the window's pieces has it,
and where its tokens are there."""


@dataclass(frozen=True)
class Pool:
    """The documents of one source that may be written: no duplicates, none held out."""

    name: str
    judgement: Judgement
    first: int  # the source's first piece in the catalogue
    numbers: npt.NDArray[np.void]  # `NUMBERS` of its pieces, (pieces,)

    @property
    def tokens(self) -> int:
        """Tokens that may be written."""
        return int(self.numbers["tokens"].sum())

    def piece(self, number: int) -> Piece:
        return self.judgement.catalogue.piece(self.first + number)

    def to_write(self, number: int) -> Integers:
        """Returns the indices of a piece's documents that may be written."""
        in_all = self.first + number
        kept = self.judgement.is_kept(in_all)
        return np.flatnonzero(kept & ~self.judgement.is_held_out(in_all))

    def lengths(self, number: int) -> Integers:
        """Returns the tokens of each of a piece's documents that may be written."""
        _, starts = self.piece(number).tokens()
        lengths: Integers = np.diff(starts)[self.to_write(number)]
        return lengths


@dataclass(frozen=True)
class _Window:
    """Pieces whose documents are shuffled together."""

    repeat: int  # the pass
    pieces: Integers
    begin: int  # tokens of the portion before it
    end: int


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

    def total(self, of: str) -> int:
        """The sum of one of `NUMBERS` over the documents of all passes."""
        whole = self.whole * int(self.pool.numbers[of].sum())
        return whole + int(self._in_head(of).sum())

    def distinct_documents(self) -> int:
        """Documents that are written, each counted once."""
        if self.whole:
            return int(self.pool.numbers["documents"].sum())
        return int(self._in_head("documents").sum())

    def _in_head(self, of: str) -> Integers:
        """One of `NUMBERS` over the documents that the last, partial pass writes of
        each piece, (pieces,); empty without one."""
        numbers: Integers = self.pool.numbers[of][: self.head_pieces]
        if not self.head_documents:
            return numbers

        taken = self.taken(self.whole, self.head_pieces)
        piece = self.pool.piece(self.head_pieces)
        last = {
            "documents": np.ones(len(taken)),
            "tokens": np.diff(piece.tokens()[1])[taken],
            "text_bytes": piece.numbers("text_bytes")[taken],
        }
        return np.append(numbers, int(last[of].sum()))

    def taken(self, repeat: int, number: int) -> Integers:
        """Returns the indices of a piece's documents that a pass writes."""
        documents = self.pool.to_write(number)
        if repeat < self.whole or number < self.head_pieces:
            return documents
        if number == self.head_pieces:
            return documents[: self.head_documents]
        return documents[:0]

    def stream(self, seed: int, window: int, since: float) -> tuple[int, Stream]:
        """Returns the documents that come at `since` or later, and the tokens before.

        The documents of `window` pieces at a time are mixed.
        """
        # No document of a window comes later than the window ends.
        windows = dropwhile(
            lambda each: each.end / self.tokens < since, self._windows(seed, window)
        )
        first = next(windows, None)
        if first is None:
            return self.tokens, iter(())

        before, stream = self._shuffled(seed, first, since)
        later = (self._shuffled(seed, each, since)[1] for each in windows)
        return before, chain(stream, chain.from_iterable(later))

    def _windows(self, seed: int, window: int) -> Iterator[_Window]:
        begin = 0
        for repeat in range(self.all_passes):
            tokens: Integers = self.pool.numbers["tokens"]
            if repeat == self.whole:
                tokens = self._in_head("tokens")
            pieces = np.arange(len(tokens))
            keys = scramble(pieces.astype(np.uint64), self._salt(seed, repeat))
            pieces = pieces[np.argsort(keys, kind="stable")]

            for start in range(0, len(pieces), window):
                mixed = pieces[start : start + window]
                end = begin + int(tokens[mixed].sum())
                yield _Window(repeat, mixed, begin, end)
                begin = end

    def _salt(self, seed: int, repeat: int) -> str:
        return f"{seed}/{self.pool.name}/{repeat}"

    def _documents(self, window: _Window, salt: str) -> npt.NDArray[np.void]:
        """Returns the documents of a window in their random order, `_DOCUMENT`."""
        parts = [np.zeros(0, _DOCUMENT)]
        for place, number in enumerate(window.pieces.tolist()):
            piece = self.pool.piece(number)
            taken = self.taken(window.repeat, number)
            _, starts = piece.tokens()

            own = np.zeros(len(taken), _DOCUMENT)
            own["key"] = scramble(piece.numbers("id_hash")[taken], salt)
            own["piece"] = place
            own["begin"] = starts[taken]
            own["end"] = starts[taken + 1]
            parts.append(own)

        documents = np.concatenate(parts)
        return documents[np.argsort(documents["key"], kind="stable")]

    def _shuffled(self, seed: int, window: _Window, since: float) -> tuple[int, Stream]:
        """Returns a window's documents that come at `since` or later, and the tokens
        before."""
        documents = self._documents(window, self._salt(seed, window.repeat))
        lengths = documents["end"] - documents["begin"]
        ends = window.begin + np.cumsum(lengths)
        begins = ends - lengths

        # A document's place in the order is that of its middle.
        middles = (begins + lengths / 2) / self.tokens
        first = int(np.searchsorted(middles, since))
        before = int(begins[first]) if first < len(begins) else window.end

        def stream() -> Stream:
            tokens = [self.pool.piece(n).tokens()[0] for n in window.pieces.tolist()]
            later = zip(
                middles[first:].tolist(), documents[first:].tolist(), strict=True
            )
            for middle, (_, piece, begin, end) in later:
                yield middle, tokens[piece][begin:end]

        return before, stream()


def wanted_tokens(settings: PreparationSettings) -> list[int | None]:
    """Returns the tokens asked for of each source; None: all."""
    shares = settings.shares() or [1.0] * len(settings.sources)
    if settings.tokens is None:
        return [None] * len(shares)

    return [max(1, _tokens_of(settings.tokens, share)) for share in shares]


def _tokens_of(total: float, share: float) -> int:
    """Rounds up, so that the sum over the sources is not below the whole."""
    return math.ceil(total * share - 1e-6)


def portions(settings: PreparationSettings, pools: Sequence[Pool]) -> list[Portion]:
    """Returns the portion of each pool."""
    wanted = tokens_to_write(settings, [pool.tokens for pool in pools])
    return [_portion(pool, tokens) for pool, tokens in zip(pools, wanted, strict=True)]


def tokens_to_write(
    settings: PreparationSettings, available: Sequence[int]
) -> list[int]:
    """Returns the tokens to write of each source by the weights.

    `available` are those of one pass. The scarcest source ends the mix.
    """
    shares = settings.shares()
    if shares is None and settings.tokens is None:
        return [*available]

    shares = shares or [1.0]
    most = [
        tokens * source.max_epochs
        for tokens, source in zip(available, settings.sources, strict=True)
    ]
    total = min(tokens / share for tokens, share in zip(most, shares, strict=True))
    if settings.tokens is not None:
        total = min(total, settings.tokens)

    return [
        min(_tokens_of(total, share), tokens)
        for share, tokens in zip(shares, most, strict=True)
    ]


def _portion(pool: Pool, wanted: int) -> Portion:
    """Takes documents in order, in repeated passes.

    The document that reaches `wanted` tokens is the last one.
    """
    whole, rest = divmod(wanted, pool.tokens) if pool.tokens else (0, 0)
    if not rest:
        return Portion(pool, whole, 0, 0, whole * pool.tokens)

    # The piece in which the rest ends, and the tokens before it.
    ends = np.cumsum(pool.numbers["tokens"])
    piece = int(np.searchsorted(ends, rest))
    before = int(ends[piece - 1]) if piece else 0

    # The document of it in which the rest ends.
    ends_in_piece = np.cumsum(pool.lengths(piece))
    last = int(np.searchsorted(ends_in_piece, rest - before))

    tokens = whole * pool.tokens
    tokens += before
    tokens += int(ends_in_piece[last])
    return Portion(pool, whole, piece, last + 1, tokens)


def interleave(
    portions: Sequence[Portion], seed: int, begin: int = 0
) -> Iterator[TokenArray]:
    """Yields the tokens of every document, each source spread evenly.

    The first `begin` tokens are left out; the rest does not depend on `begin`.
    """
    total = sum(portion.tokens for portion in portions)
    # Documents are ordered by their middles. So at any point a source is at most half
    # of its longest document ahead of its share.
    longest = sum(int(each.pool.numbers["longest"].max(initial=0)) for each in portions)
    since = (begin - longest) / max(total, 1)

    window = max(2, SHUFFLED_PIECES // len(portions))
    starts = [portion.stream(seed, window, since) for portion in portions]
    left_out = begin - sum(before for before, _ in starts)

    merged = heapq.merge(*(stream for _, stream in starts), key=itemgetter(0))
    for _, tokens in merged:
        kept = tokens[left_out:]
        left_out = max(left_out - len(tokens), 0)
        if len(kept):
            yield kept
