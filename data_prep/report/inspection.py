"""Inspection: reads a data folder once, to verify it and to describe its content."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from dualpath_cli.errors import UserError
from dualpath_cli.output.progress import Progress, bytes_of_bytes
from dualpath_cli.text.manifest import HEADER, INDEX, MANIFEST, Manifest, StoredFile
from dualpath_cli.text.storage import sizes
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

SLICE_BYTES = 1 << 20
"""So much of a file is in memory at a time; a multiple of every token's size."""
HEAD, TAIL, CUT = 400, 150, " [...] "
"""Characters that are kept of the two ends of a long text, and the mark between them."""
_BYTES_A_CHARACTER = 4  # at most, and a token is at least one byte


class TokenStream:
    """Counts the documents of a stream of tokens that comes in slices, once, and draws samples."""

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


@dataclass(frozen=True)
class Sample:
    """A document of the stream; `number` documents and `position` tokens come before it."""

    number: int
    position: int
    length: int
    """Tokens, end-of-text included."""
    text: str
    """All of a short text, the two ends of a long one."""


@dataclass(frozen=True)
class Inspection:
    """The content of a data folder."""

    manifest: Manifest
    stream: TokenStream
    samples: list[Sample]
    """Drawn uniformly over documents; none where the tokenizer is not that of the tokens."""
    problems: list[str]
    """Contradictions to the manifest, a line each that names the file."""


def inspect(folder: Path, samples: int = 3, seed: int = 0) -> Inspection:
    """Reads every byte of a data folder on a disk, once.

    Raises UserError where the folder or its manifest is missing or cannot be read.
    """
    manifest = Manifest.read(folder)
    stream = TokenStream(manifest.eot_id, manifest.vocab_size, samples, seed)
    return _Inspector(folder, manifest, stream).inspect()


class _Inspector:
    def __init__(self, folder: Path, manifest: Manifest, stream: TokenStream) -> None:
        self._folder, self._manifest, self._stream = folder, manifest, stream
        self._dtype = np.dtype(manifest.dtype)
        self._sizes = sizes(folder) or {}
        self._begins: list[int] = []
        """The start of each chunk in the stream, in tokens."""
        self._damaged: set[str] = set()

    def inspect(self) -> Inspection:
        manifest, problems = self._manifest, list(_contradictions(self._manifest))
        tokenizer: Tokenizer | None = None
        try:
            tokenizer = self._tokenizer()
        except UserError as error:
            problems.append(str(error))
        problems += self._damages()
        problems += self._miscounts()
        places = sorted(place[1:] for place in self._stream.drawn)
        samples = [Sample(*at, self._text(tokenizer, *at[1:])) for at in places if tokenizer]
        return Inspection(manifest, self._stream, samples, problems)

    def _tokenizer(self) -> Tokenizer:
        if TOKENIZER not in self._sizes:
            raise UserError(f"{TOKENIZER}: missing")
        try:
            tokenizer = Tokenizer.load(self._folder / TOKENIZER)
        except UserError as error:
            raise UserError(f"{TOKENIZER}: {error}") from None
        expected = self._manifest.tokenizer, self._manifest.vocab_size, self._manifest.eot_id
        if (tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.eot_id) != expected:
            raise UserError(f"{TOKENIZER}: not the tokenizer of these tokens")
        return tokenizer

    def _damages(self) -> Iterator[str]:
        """Yields the faults of each file, and fills the stream."""
        manifest = self._manifest
        index = StoredFile(INDEX, self._sizes.get(INDEX, 0), manifest.index_sha256)
        files = [index, *manifest.beside, *manifest.chunks]
        size = sum(self._sizes.get(file.name, 0) for file in files)
        console = Console(stderr=True)
        with Progress(console, "verifying", bytes_of_bytes, size, transient=True) as progress:
            for number, file in enumerate(files):
                if is_chunk := number > len(manifest.beside):
                    self._begins.append(self._stream.tokens)
                strange = self._stream.strange
                if damage := self._damage(file, progress, is_chunk):
                    self._damaged.add(file.name)
                    yield f"{file.name}: {damage}"
                elif strange := self._stream.strange - strange:
                    entries = f"{manifest.vocab_size:,} entries"
                    yield f"{file.name}: {strange:,} tokens are beyond the vocabulary of {entries}"

    def _damage(self, file: StoredFile, progress: Progress, is_chunk: bool) -> str:
        if file.name not in self._sizes:
            return "missing"
        digest = hashlib.sha256()
        try:
            with open(self._folder / file.name, "rb") as content:
                header = content.read(HEADER)
                digest.update(header)
                while block := content.read(SLICE_BYTES):
                    digest.update(block)
                    if is_chunk:
                        count = len(block) // self._dtype.itemsize
                        self._stream.add(np.frombuffer(block, self._dtype, count))
                    progress.advance(len(block))
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if (size := self._sizes[file.name]) != file.bytes:
            return f"{size:,} bytes instead of {file.bytes:,}"
        if digest.hexdigest() != file.sha256:
            return "changed since it was prepared (its sha256 differs)"
        if is_chunk and header != np.array([1, HEADER, size], "<u4").tobytes():
            return "not a chunk of one bare array of tokens"
        return ""

    def _miscounts(self) -> Iterator[str]:
        """Yields where the chunks contradict the manifest, or the index the chunks."""
        manifest, stream = self._manifest, self._stream
        names = [chunk.name for chunk in manifest.chunks]
        if self._damaged.intersection(names):
            return  # what differs has a reason that is named already
        for what in ("tokens", "documents"):
            if (count := getattr(stream, what)) != (stated := getattr(manifest, what)):
                yield f"{MANIFEST}: {stated:,} {what}, but {count:,} in the chunks"
        if stream.unfinished:
            rest = f"{stream.unfinished:,} tokens"
            yield f"{names[-1]}: no end-of-text after the last {rest}"
        lengths = np.diff([*self._begins, stream.tokens]).tolist()
        if INDEX in self._damaged:
            return
        try:
            index = json.loads((self._folder / INDEX).read_text(encoding="utf-8"))
            listed = [(chunk["filename"], chunk["dim"]) for chunk in index["chunks"]]
        except (ValueError, KeyError, TypeError):
            listed = []
        if listed != list(zip(names, lengths, strict=True)):
            yield f"{INDEX}: does not list the chunks of the manifest with their tokens"

    def _text(self, tokenizer: Tokenizer, begin: int, length: int) -> str:
        """Returns a document's text, or its two ends."""
        end = begin + length - 1  # end-of-text is not shown
        head, tail = _BYTES_A_CHARACTER * HEAD, _BYTES_A_CHARACTER * TAIL
        if end - begin <= head + tail:
            text = tokenizer.decode(self._tokens(begin, end))
            return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}{CUT}{text[-TAIL:]}"
        first = tokenizer.decode(self._tokens(begin, begin + head))
        last = tokenizer.decode(self._tokens(end - tail, end))
        return f"{first[:HEAD]}{CUT}{last[-TAIL:]}"

    def _tokens(self, begin: int, end: int) -> list[int]:
        """Reads a few tokens of the stream again."""
        tokens: list[int] = []
        ends = [*self._begins[1:], self._stream.tokens]
        for chunk, low, high in zip(self._manifest.chunks, self._begins, ends, strict=True):
            if (count := min(high, end) - max(low, begin)) > 0:
                offset = HEADER + max(begin - low, 0) * self._dtype.itemsize
                path = self._folder / chunk.name
                tokens += np.fromfile(path, self._dtype, count, offset=offset).tolist()
        # Only in damaged chunks there are others.
        return [token for token in tokens if token < self._manifest.vocab_size]


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """Yields where the manifest's sums are not those of its parts."""
    for what in ("tokens", "text_bytes"):
        total = sum(getattr(source, what) for source in manifest.sources)
        if total != (stated := getattr(manifest, what)):
            yield f"{MANIFEST}: {what} is {stated:,}, but {total:,} in its sources"
    for source in manifest.sources:
        left_out = source.total_rejected + source.exact_duplicates + source.near_duplicates
        known = source.documents + source.validation + source.unused + left_out
        if source.read != known:
            yield (
                f"{MANIFEST}: {source.read:,} documents of '{source.name}' were read, "
                f"but {known:,} are accounted for"
            )
