"""`dualpath prepare inspect`: reads a data folder once, verifies it, and shows what it holds."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.output.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.ranges import check_ranges
from dualpath_cli.text.manifest import HEADER, INDEX, MANIFEST, Manifest, StoredFile
from dualpath_cli.text.storage import is_remote, sizes
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

HEAD, TAIL, CUT = 400, 150, " [...] "
"""Characters that are kept of the two ends of a long text, and the mark between them."""
_BYTES_A_CHARACTER = 4  # at most, and a token is at least one byte


class TokenStream:
    """Counts the documents of a stream of tokens that comes in slices, once, and draws samples."""

    def __init__(self, eot_id: int, vocab_size: int, samples: int = 0, seed: int = 0) -> None:
        self.tokens = self.documents = self.strange = 0
        """Tokens, end-of-texts, and tokens beyond the vocabulary."""
        self.unfinished = 0  # tokens after the last end-of-text
        self.lengths: Counter[int] = Counter()
        """The number of documents by their tokens, end-of-text included."""
        self.drawn: list[tuple[float, int, int, int]] = []
        """A draw, how many documents and tokens come before that document, and its length."""
        self._eot_id, self._vocab_size, self._samples = eot_id, vocab_size, samples
        self._random = np.random.default_rng(seed)

    def add(self, tokens: npt.NDArray[np.integer]) -> None:
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
        """(n, documents of n to 2n - 1 tokens, their tokens) for n = 1, 2, 4, 8 ... that occur."""
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
    length: int  # tokens, end-of-text included
    text: str  # all of a short text, the two ends of a long one


@dataclass(frozen=True)
class Inspection:
    manifest: Manifest
    stream: TokenStream
    samples: list[Sample]
    """Drawn uniformly over documents; none where the tokenizer is not that of the tokens."""
    problems: list[str]  # contradictions to the manifest, a line each that names the file


def inspect(folder: Path, samples: int = 3, seed: int = 0) -> Inspection:
    """Reads every byte of a data folder on a disk, once."""
    manifest = Manifest.read(folder)
    stream = TokenStream(manifest.eot_id, manifest.vocab_size, samples, seed)
    return _Inspector(folder, manifest, stream).inspect()


class _Inspector:
    def __init__(self, folder: Path, manifest: Manifest, stream: TokenStream) -> None:
        self._folder, self._manifest, self._stream = folder, manifest, stream
        self._dtype = np.dtype(manifest.dtype)
        self._sizes = sizes(folder) or {}
        self._begins: list[int] = []  # the start of each chunk in the stream, in tokens
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
                while block := content.read(1 << 20):  # a multiple of every token's size
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
        end = begin + length - 1  # end-of-text is not shown
        head, tail = _BYTES_A_CHARACTER * HEAD, _BYTES_A_CHARACTER * TAIL
        if end - begin <= head + tail:
            text = tokenizer.decode(self._tokens(begin, end))
            return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}{CUT}{text[-TAIL:]}"
        first = tokenizer.decode(self._tokens(begin, begin + head))
        last = tokenizer.decode(self._tokens(end - tail, end))
        return f"{first[:HEAD]}{CUT}{last[-TAIL:]}"

    def _tokens(self, begin: int, end: int) -> list[int]:
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


_BAR = 15


@dataclass(frozen=True)
class Inspect:
    """Reads every byte of a data folder, reports what differs from its manifest, and prints what is
    in it: its sources, the lengths of its documents, and some of these.
    """

    folder: str | None = field(default=None, metadata={"positional": True})
    """The data folder, on a disk."""
    samples: int = 3
    """Documents to show, drawn uniformly over documents."""
    seed: int = 0
    """Seed of that choice."""

    def __post_init__(self) -> None:
        if self.folder is None:
            raise UserError("prepare inspect needs DIR: a data folder")
        check_ranges(self, {"samples": (0, 1 << 32), "seed": (0, 1 << 62)})


def run(options: Inspect) -> str:
    """Prints what is in a data folder; returns the last line. Raises RunFailed if it is damaged."""
    folder = Path(str(options.folder))
    if is_remote(str(options.folder)):
        raise UserError(f"'{options.folder}' is not on a disk; copy it to one to inspect it")
    inspection = inspect(folder, options.samples, options.seed)
    console = plain_console(highlight=False)
    report(inspection, console)
    for problem in inspection.problems:
        print(problem)
    if count := len(inspection.problems):
        raise RunFailed(
            f"{folder}: damaged: {count} problem{'s' * (count > 1)}; copy or prepare it again"
        )
    return f"{folder}: intact: every byte is as it was prepared, and the counts add up"


def report(inspection: Inspection, console: Console) -> None:
    """Prints what a data folder holds, its problems left out."""
    manifest, stream = inspection.manifest, inspection.stream
    sources = manifest.sources
    facts = {
        "fingerprint": manifest.fingerprint,
        "tokenizer": f"{manifest.tokenizer}, {manifest.vocab_size:,} entries",
        "tokens": f"{manifest.tokens:,} ({manifest.dtype}, {len(manifest.chunks):,} chunks)",
        "documents": f"{manifest.documents:,}",
        "bytes a token": f"{manifest.text_bytes / max(manifest.tokens, 1):.2f}",
    }
    for name, value in facts.items():
        console.print(f"{name:<15}{value}", soft_wrap=True)
    reasons = sorted({reason for source in sources for reason in source.rejected})
    # A column for each source: there are few of them, and these are long numbers.
    columns = [Column(""), *(Column(source.name, ",") for source in sources)]
    _show(console, Table(columns, [
        ("share of tokens", *(_percent(s.tokens, manifest.tokens) for s in sources)),
        ("passes", *(f"{s.passes:.2f}" for s in sources)),
        ("read", *(s.read for s in sources)),
        ("written", *(s.documents for s in sources)),
        ("validation", *(s.validation for s in sources)),
        ("exact duplicates", *(s.exact_duplicates for s in sources)),
        ("near duplicates", *(s.near_duplicates for s in sources)),
        ("unused", *(s.unused for s in sources)),
        ("rejected", *(s.total_rejected for s in sources)),
        *((f"  {reason}", *(s.rejected.get(reason, 0) for s in sources)) for reason in reasons),
    ], "documents of each source"))  # fmt: skip
    faults = [(s.name, fault) for s in sources for fault in s.faults]
    _show(console, Table([Column("source"), Column("file")], faults, "faults"))
    if not stream.documents:
        return
    bins, finished = stream.histogram, stream.tokens - stream.unfinished
    tops = [max(column) for column in zip(*bins, strict=True)]
    columns = [Column("tokens", ""), Column("documents", ""), Column("")]
    columns += [Column("tokens in them", ""), Column("")]
    _show(console, Table(columns, [
        (
            f"{low:,} to {2 * low - 1:,}" if low > 1 else "1",
            _percent(documents, stream.documents), "█" * round(_BAR * documents / tops[1]),
            _percent(tokens, finished), "█" * round(_BAR * tokens / tops[2]),
        )
        for low, documents, tokens in bins
    ], "lengths"))  # fmt: skip
    console.print(
        f"tokens a document, with its end-of-text: median {stream.median:,.1f}, "
        f"mean {finished / stream.documents:,.1f}, most {max(stream.lengths):,}"
    )
    for sample in inspection.samples:
        console.print(
            f"\ndocument {sample.number + 1:,} of {stream.documents:,}, "
            f"{sample.length:,} tokens from token {sample.position:,} on:"
        )
        text = Padding(Text(visible(sample.text)), (0, 0, 0, 2))
        console.print(text, width=None if console.is_terminal else 120)
    console.print()


def visible(text: str) -> str:
    """Returns a text on one line, in which what would not be seen, or would act, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _show(console: Console, table: Table) -> None:
    if table.rows:
        console.print()
        show(console, table, box=False)


def _percent(count: int, total: int) -> str:
    return f"{count / max(total, 1):.1%}"
