"""`dualpath tokenizer`: trains a byte-level BPE on any texts."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import check_replaceable, folder_of, write_text
from dualpath_cli.base.output import say
from dualpath_cli.base.ranges import Place, Size, check_ranges
from dualpath_cli.data.documents import (
    Source,
    parse_source,
    read_documents,
    source_files,
)
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer, train_bpe
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.report.table import Column, Table, show

# Each merge moves the rest of its word, so longer ones take very long.
LONGEST_WORD = 1000
"""Characters of a word that are trained on together."""
_MORE = f"{{{LONGEST_WORD + 1},}}"
_LONG = re.compile(rf"(?<!\w)\w{_MORE}|(?<![^\w\s])[^\w\s]{_MORE}|(?<!\s)\s{_MORE}")

BATCH = 16  # texts that are read, or encoded, at a time


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer:
    """Trains a byte-level BPE on any texts.

    `dualpath prepare --tokenizer OUT` uses it.

      dualpath tokenizer --source novels=texts/novels.jsonl.gz docs=folder/ \\
          --vocab-size 4096 --out data/bpe4096
    """

    source: tuple[Place, ...]
    """Texts to train on: NAME=PATH or PATH of files, folders and globs, as `dualpath
    prepare` reads and cleans them. A source that is named twice counts twice."""
    vocab_size: Size
    """Entries, such as 8192: the 256 bytes, end-of-text and the merges."""
    field: str = "text"
    """The field of a row that holds the text, where NAME chooses no format."""
    out: Place
    """Folder to write tokenizer.json to."""
    overwrite: bool = False
    """Replace a tokenizer that is in OUT."""

    def __post_init__(self) -> None:
        # From the 256 bytes and end-of-text on.
        check_ranges(self, {"vocab_size": (257, 1 << 20)})


def train_tokenizer(options: TrainTokenizer) -> str:
    """Trains a tokenizer, prints its bytes a token, and returns the last line."""
    sources = [
        replace(parse_source(spec), field=options.field) for spec in options.source
    ]
    size = options.vocab_size
    path = folder_of("--out", options.out) / TOKENIZER
    check_replaceable(path)  # before the training
    if path.exists() and not options.overwrite:
        raise UserError(f"'{path}' exists; give another --out or add --overwrite")

    definition = _train(sources, size)
    tokenizer = Tokenizer(json.loads(definition), str(path))
    if tokenizer.vocab_size < size:
        raise UserError(
            f"these texts give {tokenizer.vocab_size:,} entries, fewer than "
            f"--vocab-size {size:,}; lower it or give more text"
        )

    write_text(path, definition)
    _show_compression(tokenizer, sources)
    return f"{path}: {size:,} entries, fingerprint {tokenizer.fingerprint[:12]}"


def _train(sources: Sequence[Source], size: int) -> str:
    """Returns the `tokenizer.json` of a BPE trained on the sources."""
    cut: Counter[str] = Counter()
    texts = chain.from_iterable(_batches(sources, "training on"))
    parts = chain.from_iterable(_cut_long_words(text, cut) for text in texts)
    definition = train_bpe(parts, size)

    if cut:
        say(
            f"words of more than {LONGEST_WORD:,} characters: {cut['words']:,}, cut "
            f"for training into {cut['parts']:,} parts; if they are not text, clean "
            "the sources"
        )
    return definition


def _show_compression(tokenizer: Tokenizer, sources: Sequence[Source]) -> None:
    columns = [
        Column("source"),
        Column("documents", ","),
        Column("text", decimal),
        Column("bytes a token", ".2f"),
    ]
    distinct = dict.fromkeys(sources)
    rows = [_measured(source, tokenizer) for source in distinct]
    caption = "Bytes a token: of the texts trained on, end-of-text included."
    show(plain_console(), Table(columns, rows, caption=caption))


def _cut_long_words(text: str, counts: Counter[str]) -> Iterator[str]:
    """Yields a text in parts, cut within words longer than `LONGEST_WORD`.

    Adds these `words` and their `parts` to `counts`. A word is a run of letters and
    digits, of other characters, or of blanks: at least what the vocabulary takes as
    one.
    """
    start = 0
    for word in _LONG.finditer(text):
        first = word.start() + LONGEST_WORD
        places = range(first, word.end(), LONGEST_WORD)
        counts["words"] += 1
        counts["parts"] += len(places) + 1

        for place in places:
            yield text[start:place]
            start = place
    yield text[start:]


def _batches(sources: Sequence[Source], title: str) -> Iterator[list[str]]:
    """Yields the cleaned texts of the sources, some at a time, and shows progress."""
    files = [file for source in sources for file in source_files(source)]
    size = sum(file.stat().st_size for file in files)
    console = plain_console(goes_on=True, stderr=True)
    with Progress(console, title, bytes_of_bytes, size, transient=True) as progress:
        for source in sources:
            texts = read_documents(source, progress.advance)
            while batch := list(islice(texts, BATCH)):
                yield batch

        # merging takes a tenth of the time
        progress.advance(0, title=f"{title}: all is read")


def _measured(source: Source, tokenizer: Tokenizer) -> tuple[str, int, int, float]:
    """A row of the table: a source's name, documents, bytes, and bytes a token."""
    documents = 0
    size = 0
    tokens = 0
    for texts in _batches([source], f"measuring {source.name}"):
        documents += len(texts)
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            size += len(text.encode())
            tokens += len(ids) + 1  # with end-of-text

    return source.name, documents, size, size / max(tokens, 1)
