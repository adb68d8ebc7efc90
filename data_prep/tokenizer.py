"""`dualpath tokenizer`: trains a byte-level BPE on any texts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place, Size, check_ranges
from dualpath_cli.base.system import write_text
from dualpath_cli.data.documents import Source, parse_source, read_documents, source_files
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer, train_bpe
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.report.table import Column, Table, show

BATCH = 16  # texts that are read, or encoded, at a time


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer:
    """Trains a byte-level BPE on any texts.

    `dualpath prepare --tokenizer DIR` takes it.

      dualpath tokenizer --source novels=texts/novels.jsonl.gz docs=folder/ \\
          --vocab-size 4096 --out data/bpe4096
    """

    source: tuple[Place, ...]
    """Texts to train on: NAME=PATH or PATH of files, folders and globs, as `dualpath prepare` reads
    and cleans them. A source that is given again counts again."""
    vocab_size: Size
    """Entries, such as 8192: the 256 bytes, end-of-text and the merges."""
    out: Place
    """Folder to write tokenizer.json to."""
    overwrite: bool = False
    """Replace a tokenizer that is in DIR."""

    def __post_init__(self) -> None:
        # From the 256 bytes and end-of-text on.
        check_ranges(self, {"vocab_size": (257, 1 << 20)})


def run(options: TrainTokenizer) -> str:
    """Trains a tokenizer, prints its bytes a token on each source, and returns the last line."""
    sources = list(map(parse_source, options.source))
    size, path = options.vocab_size, folder_of("--out", options.out) / TOKENIZER
    if path.exists() and not options.overwrite:
        raise UserError(f"'{path}' exists; give another --out or add --overwrite")
    text = train_bpe(chain.from_iterable(_batches(sources, "training on")), size)
    tokenizer = Tokenizer(json.loads(text), str(path))
    if tokenizer.vocab_size < size:
        raise UserError(
            f"these texts give {tokenizer.vocab_size:,} entries, fewer than --vocab-size {size:,}; "
            "lower it or give more text"
        )
    write_text(path, text)
    columns = [
        Column("source"), Column("documents", ","), Column("text", decimal),
        Column("bytes a token", ".2f"),
    ]  # fmt: skip
    rows = [_measured(source, tokenizer) for source in dict.fromkeys(sources)]
    caption = "Bytes a token: of the texts trained on, end-of-text included."
    show(plain_console(highlight=False), Table(columns, rows, caption=caption))
    return f"{path}: {size:,} entries, fingerprint {tokenizer.fingerprint[:12]}"


def _batches(sources: Sequence[Source], title: str) -> Iterator[list[str]]:
    """Yields the cleaned texts of the sources, some at a time, and shows how much is read."""
    size = sum(file.stat().st_size for source in sources for file in source_files(source))
    console = Console(stderr=True)
    with Progress(console, title, bytes_of_bytes, size, transient=True) as progress:
        for source in sources:
            texts = read_documents(source, progress.advance)
            while batch := list(islice(texts, BATCH)):
                yield batch
        progress.advance(0, title=f"{title}: all is read")  # merging takes a tenth of the time


def _measured(source: Source, tokenizer: Tokenizer) -> tuple[str, int, int, float]:
    """A row of the table: a source's name, documents, bytes, and bytes a token."""
    documents = size = tokens = 0
    for texts in _batches([source], f"measuring {source.name}"):
        documents += len(texts)
        size += sum(len(text.encode()) for text in texts)
        tokens += sum(len(ids) + 1 for ids in tokenizer.encode_batch(texts))
    return source.name, documents, size, size / max(tokens, 1)
