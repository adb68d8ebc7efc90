"""`dualpath prepare inspect`: verifies a data folder, and shows what it holds."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from data_prep.compared import check_compared, show_pairs
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import hash_file
from dualpath_cli.base.output import amount
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.data.manifest import (
    AGAIN,
    HEADER,
    MANIFEST,
    MOVE_AWAY,
    Manifest,
    explaining_read_errors,
)
from dualpath_cli.data.storage import is_remote
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.verification import Verify, verify_chunks
from dualpath_cli.report.console import plain_console, print_excerpt, print_line
from dualpath_cli.report.table import Column, Table, show

SHOWN = 400  # characters shown of a document
_TOKENS = 4 * SHOWN
"""Tokens that hold as many characters: each has four bytes at most, a token one at
least."""


@dataclass(frozen=True)
class Inspect:
    """Reads every byte of a data folder, and ends at the first file or count that
    differs from its manifest. Then prints its sources, the lengths of its documents,
    and some of the documents.

      dualpath prepare inspect data/sample
    """

    folder: Place = field(metadata={"positional": True})
    """The data folder, on a disk."""
    samples: int = 3
    """Documents to show, drawn uniformly over documents."""
    duplicates: int = 0
    """Compared pairs of near-duplicate candidates to show, with their Jaccard index."""
    seed: int = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("samples", "duplicates"), (0, 1 << 32))
        check_ranges(self, counts | {"seed": (0, 1 << 62)})


def inspect(options: Inspect) -> str:
    """Prints the content of a data folder; returns the last line.

    Raises UserError if it is damaged, and for `duplicates` of data whose texts were not
    compared.
    """
    folder = Path(options.folder)
    if is_remote(options.folder):
        raise UserError(
            f"'{options.folder}' is not on a disk; copy it to one to inspect it"
        )

    manifest = Manifest.read(folder)
    if options.duplicates:
        check_compared(manifest, folder)
    manifest.check_files(folder)
    tokenizer = check_bytes(manifest, folder, "always")

    chunks = _MappedChunks(manifest, folder)
    contradiction = contradicts(manifest, chunks.borders)
    if contradiction:
        raise UserError(f"{folder}/{MANIFEST}: {contradiction}; {MOVE_AWAY}")

    console = plain_console()
    report(manifest, np.diff(chunks.borders), console)
    _show_samples(chunks, tokenizer, options, console)
    if options.duplicates:
        show_pairs(folder, options.duplicates, options.seed, console)
    console.print()
    return f"{folder}: intact: every byte is as it was prepared, and the counts add up"


def check_bytes(manifest: Manifest, folder: Path, verify: Verify) -> Tokenizer:
    """Returns the tokenizer of a folder whose files have the bytes of its manifest.

    Raises UserError for the first file that differs.
    """
    tokenizer = manifest.check_tokenizer(folder)
    for file in manifest.beside:
        path = folder / file.name
        with explaining_read_errors(path):
            try:
                digest = hash_file(path)
            except FileNotFoundError:
                raise UserError(f"{path} is missing; {AGAIN}") from None
        if digest != file.sha256:
            raise UserError(f"{path}: changed since it was prepared; {AGAIN}")

    verify_chunks(folder, manifest, verify)
    return tokenizer


class _MappedChunks:
    """The tokens of all chunks, in their order, mapped into memory."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        token = np.dtype(manifest.dtype)
        self._chunks = [
            np.memmap(folder / chunk.name, token, "r", offset=HEADER)
            for chunk in manifest.chunks
        ]
        self._starts = np.cumsum([0, *map(len, self._chunks[:-1])]).tolist()
        """The place of each chunk's first token."""

        ends = []
        for chunk, start in zip(self._chunks, self._starts, strict=True):
            in_chunk = np.flatnonzero(chunk == manifest.eot_id)
            ends.append(in_chunk + start)
        self.borders = np.append(0, np.concatenate(ends) + 1)
        """Where documents begin, and the end of the last, (documents + 1,)."""

    def tokens(self, begin: int, stop: int) -> list[int]:
        """Returns the tokens between two places, which may lie in several chunks."""
        parts = []
        for chunk, start in zip(self._chunks, self._starts, strict=True):
            parts.append(chunk[max(begin - start, 0) : max(stop - start, 0)])
        tokens: list[int] = np.concatenate(parts).tolist()
        return tokens


def _show_samples(
    chunks: _MappedChunks, tokenizer: Tokenizer, options: Inspect, console: Console
) -> None:
    """Prints the beginnings of some documents, drawn at random."""
    count = len(chunks.borders) - 1
    order = np.random.default_rng(options.seed).permutation(count)
    chosen = sorted(order[: options.samples].tolist())
    for document in chosen:
        begin = int(chunks.borders[document])
        end = int(chunks.borders[document + 1])
        length = end - begin
        console.print(
            f"\ndocument {document + 1:,} of {count:,}, {length:,} tokens from token "
            f"{begin:,} on:"
        )

        # The last token is end-of-text.
        stop = min(end - 1, begin + _TOKENS)
        text = tokenizer.decode(chunks.tokens(begin, stop))
        if len(text) > SHOWN or stop < end - 1:
            text = text[:SHOWN] + " [...]"
        print_excerpt(console, text, indent=2)


def contradicts(manifest: Manifest, borders: npt.NDArray[np.int64]) -> str | None:
    """Returns the first count of a manifest that does not add up; None if all do.

    `borders` are the places of documents in the chunks, (documents + 1,).
    """
    documents = len(borders) - 1
    if documents != manifest.documents:
        return f"{manifest.documents:,} documents, but {documents:,} in the chunks"

    rest = manifest.tokens - int(borders[-1])
    if rest:
        return f"no end-of-text after the last {rest:,} tokens"

    for count in ("tokens", "text_bytes"):
        stated = getattr(manifest, count)
        total = sum(getattr(source, count) for source in manifest.sources)
        if total != stated:
            return f"{count} is {stated:,}, but {total:,} in its sources"

    for source in manifest.sources:
        duplicates = source.exact_duplicates + source.near_duplicates
        left_out = source.total_rejected + duplicates + source.unused
        known = source.documents + source.validation + left_out
        if source.read != known:
            return (
                f"{source.read:,} documents of '{source.name}' were read, but "
                f"{known:,} are accounted for"
            )
    return None


def report(
    manifest: Manifest, lengths: npt.NDArray[np.int64], console: Console
) -> None:
    """Prints the counts of a data folder.

    `lengths`, (documents,), are tokens with end-of-text.
    """
    facts = {
        "fingerprint": manifest.fingerprint,
        "tokenizer": f"{manifest.tokenizer}, {manifest.vocab_size:,} entries",
        "tokens": (
            f"{manifest.tokens:,} ({manifest.dtype}, "
            f"{amount('chunks', len(manifest.chunks))})"
        ),
        "documents": f"{manifest.documents:,}",
        "bytes a token": f"{manifest.text_bytes / manifest.tokens:.2f}",
        "tokens each": (
            f"median {np.median(lengths):,.1f}, mean {lengths.mean():,.1f}, 90 % up to "
            f"{np.quantile(lengths, 0.9, method='lower'):,}, most {lengths.max():,}"
        ),
    }
    for name, value in facts.items():
        print_line(console, f"{name:<15}{value}")

    console.print()
    show(console, _table_of_sources(manifest), box=False)

    for source in manifest.sources:
        for fault in source.faults:
            print_line(console, f"fault of {source.name}: {fault}")


def _table_of_sources(manifest: Manifest) -> Table:
    # A column for each source: there are few of them, and these are long numbers.
    sources = manifest.sources
    columns = [Column(""), *(Column(source.name, ",") for source in sources)]

    reasons = sorted({reason for source in sources for reason in source.rejected})
    shares = [f"{source.tokens / manifest.tokens:.1%}" for source in sources]
    rows = [
        ("share of tokens", *shares),
        ("passes", *(f"{source.passes:.2f}" for source in sources)),
        ("read", *(source.read for source in sources)),
        ("written", *(source.documents for source in sources)),
        ("validation", *(source.validation for source in sources)),
        ("exact duplicates", *(source.exact_duplicates for source in sources)),
        ("near duplicates", *(source.near_duplicates for source in sources)),
        ("unused", *(source.unused for source in sources)),
    ]
    if any(source.unlike for source in sources):
        unlike = (source.unlike for source in sources)
        rows.append(("bands agree, texts do not", *unlike))
    for reason in reasons:
        counts = (source.rejected.get(reason, 0) for source in sources)
        rows.append((reason, *counts))
    return Table(columns, rows, "documents of each source")
