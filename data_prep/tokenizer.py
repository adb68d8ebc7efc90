"""`dualpath tokenizer`: trains a byte-level BPE on any texts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place, Size, check_ranges
from dualpath_cli.base.system import read_text, write_text
from dualpath_cli.data.documents import Source, parse_source, read_documents, source_files
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer, train_bpe
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.report.table import Column, Table, show

MEASURED_BYTES = 4_000_000
"""Text of each source that is kept while it is read, to be encoded afterwards."""


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer:
    """Trains a byte-level BPE on any texts, for `dualpath prepare --tokenizer DIR`.

      dualpath tokenizer --source novels=texts/novels.jsonl.gz docs=folder/ \\
          --vocab-size 8192 --out data/bpe8192
    """

    source: tuple[Place, ...]
    """Texts to train on: NAME=PATH or PATH of files, folders and globs, as `dualpath prepare` reads
    and cleans them. A source that is given again counts again."""
    vocab_size: Size
    """Entries, such as 8192: the 256 bytes, end-of-text and the merges."""
    out: Place
    """Folder to write tokenizer.json to."""
    overwrite: bool = False
    """Replace another tokenizer that is in DIR."""

    def __post_init__(self) -> None:
        # From the 256 bytes and end-of-text on.
        check_ranges(self, {"vocab_size": (257, 1 << 20)})


def run(options: TrainTokenizer) -> str:
    """Trains a tokenizer, prints what it was trained on, and returns the last line."""
    sources = list(map(parse_source, options.source))
    size, path = options.vocab_size, folder_of("--out", options.out) / TOKENIZER
    other = UserError(f"'{path}' is another tokenizer; give another --out or add --overwrite")
    protected = path.exists() and not options.overwrite
    if protected and _size(path) != size:
        raise other
    kept = {source: _Kept() for source in sources}
    text = train_bpe(_texts(sources, kept), size)
    tokenizer = Tokenizer(json.loads(text), str(path))
    if tokenizer.vocab_size < size:
        raise UserError(
            f"these texts give {tokenizer.vocab_size:,} entries, fewer than --vocab-size {size:,}; "
            "lower it or give more text"
        )
    same = path.exists() and read_text(path) == text
    if protected and not same:
        raise other
    if not same:
        write_text(path, text)
    show(plain_console(highlight=False), _table(kept, tokenizer))
    done = "holds this already" if same else f"{size:,} entries"
    return f"{path}: {done}, fingerprint {tokenizer.fingerprint[:12]}"


def _size(path: Path) -> int | None:
    """Entries of a tokenizer, as far as it is one that can be read."""
    try:
        return Tokenizer.load(path).vocab_size
    except UserError:
        return None


class _Kept:
    """Some texts of a source, at equal distances from its first to its last."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.every = 1
        self.documents = self.bytes = self._bytes_kept = 0

    def add(self, text: str) -> None:
        size = len(text.encode())
        if self.documents % self.every == 0:
            self.texts.append(text)
            self._bytes_kept += size
        self.documents += 1
        self.bytes += size
        while self._bytes_kept > MEASURED_BYTES and len(self.texts) > 1:
            self.every *= 2
            self.texts = self.texts[::2]
            self._bytes_kept = sum(len(text.encode()) for text in self.texts)


def _texts(sources: Sequence[Source], kept: dict[Source, _Kept]) -> Iterator[str]:
    """Yields the texts of the sources, cleaned, and shows how much is read."""
    files: list[Path] = [file for source in sources for file in source_files(source)]
    size = sum(file.stat().st_size for file in files)
    console = Console(stderr=True)
    with Progress(console, "reading", bytes_of_bytes, size, transient=True) as progress:
        for source in sources:
            for text in read_documents(source, progress.advance):
                kept[source].add(text)
                yield text
        progress.advance(0, title="read; merging")  # about a tenth of the time


def _table(kept: dict[Source, _Kept], tokenizer: Tokenizer) -> Table:
    """What was read of each source, and how long tokens are on the texts that were kept of it."""
    rows = []
    for source, part in kept.items():
        tokens = sum(len(ids) + 1 for ids in tokenizer.encode_batch(part.texts))
        size = sum(len(text.encode()) for text in part.texts)
        rows.append((source.name, part.documents, part.bytes, size / max(tokens, 1), part.every))
    columns = [
        Column("source"), Column("documents", ","), Column("text", decimal),
        Column("bytes a token", ".2f"), Column("measured on", lambda every: f"1 of {every:,}"),
    ]  # fmt: skip
    return Table(columns, rows, caption="Bytes a token, end-of-text included, are of documents "
                 "that the tokenizer was trained on.")  # fmt: skip
