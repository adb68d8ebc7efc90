"""Statistics of a stream of tokens that is read once: documents, lengths, a sample of them."""

from collections import Counter

import numpy as np
import numpy.typing as npt


class TokenStream:
    """Counts the documents of a stream of tokens that comes in slices, and draws samples."""

    def __init__(self, eot_id: int, vocab_size: int, samples: int = 0, seed: int = 0) -> None:
        self.tokens = self.documents = self.strange = 0
        """Tokens, end-of-texts, and tokens beyond the vocabulary."""
        self.unfinished = 0
        """Tokens after the last end-of-text."""
        self.lengths: Counter[int] = Counter()
        """The number of documents by their tokens, end-of-text included."""
        self.drawn: list[tuple[float, int, int, int]] = []
        """A draw, how many documents and tokens come before that document, and its length."""
        self._eot_id, self._vocab_size, self._samples = eot_id, vocab_size, samples
        self._random = np.random.default_rng(seed)

    def add(self, tokens: npt.NDArray[np.integer]) -> None:
        """Goes on by some tokens."""
        ends = np.flatnonzero(tokens == self._eot_id) + self.tokens + 1
        borders = np.append([self.tokens - self.unfinished], ends)
        lengths = np.diff(borders)
        self.lengths.update(lengths.tolist())
        # The documents with the smallest of equally distributed numbers are a uniform choice,
        # however many documents there turn out to be and wherever the stream is cut.
        draws = self._random.random(len(ends))
        best = np.argsort(draws)[: self._samples]
        columns = draws[best], self.documents + best, borders[best], lengths[best]
        new = zip(*(column.tolist() for column in columns), strict=True)
        self.drawn = sorted([*self.drawn, *new])[: self._samples]
        self.strange += int(np.count_nonzero(tokens >= self._vocab_size))
        self.documents += len(ends)
        self.tokens += len(tokens)
        self.unfinished = self.tokens - int(borders[-1])

    @property
    def median(self) -> float:
        """Median length of the documents, of which there is one at least."""
        lengths = np.array(sorted(self.lengths))
        up_to = np.cumsum([self.lengths[length] for length in lengths.tolist()])
        middle = [(self.documents - 1) // 2, self.documents // 2]
        return float(lengths[np.searchsorted(up_to, middle, side="right")].mean())

    @property
    def histogram(self) -> list[tuple[int, int, int]]:
        """(n, documents of n to 2n - 1 tokens, their tokens) for n = 1, 2, 4, 8 ...

        From the shortest document's n to the longest's.
        """
        documents: Counter[int] = Counter()
        tokens: Counter[int] = Counter()
        for length, count in self.lengths.items():
            documents[length.bit_length() - 1] += count
            tokens[length.bit_length() - 1] += count * length
        powers = range(min(documents, default=0), max(documents, default=-1) + 1)
        return [(1 << power, documents[power], tokens[power]) for power in powers]
