"""`dualpath prepare inspect`: verifies a data folder, and shows what it holds."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import printable
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.data.manifest import (
    AGAIN,
    HEADER,
    MANIFEST,
    Manifest,
    explaining_read_errors,
)
from dualpath_cli.data.storage import is_remote, sha256_of
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.verification import verify_chunks
from dualpath_cli.report.console import plain_console
from dualpath_cli.report.table import Column, Table, show

SHOWN = 400
"""Characters shown of a document."""
# hold as many characters: each has four bytes at most, a token one at least
_TOKENS = 4 * SHOWN


@dataclass(frozen=True)
class Inspect:
    """Reads every byte of a data folder, and ends at the first file or count that
    differs from its manifest. Then prints its sources, the lengths of its documents,
    and some of the documents.
    """

    folder: Place = field(metadata={"positional": True})
    """The data folder, on a disk."""
    samples: int = 3
    """Documents to show, drawn uniformly over documents."""
    seed: int = 0
    """Seed of the draw."""

    def __post_init__(self) -> None:
        check_ranges(self, {"samples": (0, 1 << 32), "seed": (0, 1 << 62)})


def run(options: Inspect) -> str:
    """Prints the content of a data folder; returns the last line. UserError if it is
    damaged."""
    folder = Path(options.folder)
    if is_remote(options.folder):
        raise UserError(
            f"'{options.folder}' is not on a disk; copy it to one to inspect it"
        )
    manifest = Manifest.read(folder)
    manifest.check_files(folder)
    manifest.check_tokenizer(folder)
    for file in manifest.beside:
        with explaining_read_errors(folder / file.name):
            if sha256_of(folder / file.name) != file.sha256:
                raise UserError(
                    f"{folder / file.name}: changed since it was prepared; {AGAIN}"
                )
    verify_chunks(folder, manifest, "always")
    paths = [folder / chunk.name for chunk in manifest.chunks]
    chunks = [
        np.memmap(path, np.dtype(manifest.dtype), "r", offset=HEADER) for path in paths
    ]
    starts = np.cumsum([0, *map(len, chunks[:-1])]).tolist()
    ends = [
        np.flatnonzero(c == manifest.eot_id) + s
        for c, s in zip(chunks, starts, strict=True)
    ]
    # where documents begin, and the end
    borders = np.append(0, np.concatenate(ends) + 1)
    if contradiction := contradicts(manifest, borders):
        raise UserError(f"{folder}/{MANIFEST}: {contradiction}; {AGAIN}")
    console = plain_console(highlight=False)
    report(manifest, np.diff(borders), console)
    documents = len(borders) - 1
    chosen = np.random.default_rng(options.seed).permutation(documents)[
        : options.samples
    ]
    tokenizer = Tokenizer.load(folder)
    for document in sorted(chosen.tolist()):
        begin, end = borders[document : document + 2].tolist()
        stop = min(end - 1, begin + _TOKENS)
        places = zip(chunks, starts, strict=True)
        parts = [chunk[max(begin - s, 0) : max(stop - s, 0)] for chunk, s in places]
        text = tokenizer.decode(np.concatenate(parts).tolist())
        length = f"{end - begin:,} tokens from token {begin:,} on"
        console.print(f"\ndocument {document + 1:,} of {documents:,}, {length}:")
        cut = " [...]" * (len(text) > SHOWN or stop < end - 1)
        # On one line, with control characters escaped.
        line = printable(text[:SHOWN] + cut, keep="")
        console.print(
            Padding(Text(line), (0, 0, 0, 2)),
            width=None if console.is_terminal else 120,
        )
    console.print()
    return f"{folder}: intact: every byte is as it was prepared, and the counts add up"


def contradicts(manifest: Manifest, borders: npt.NDArray[np.int64]) -> str | None:
    """Returns the first count of a manifest that does not add up or differs from the
    chunks."""
    if (found := len(borders) - 1) != manifest.documents:
        return f"{manifest.documents:,} documents, but {found:,} in the chunks"
    if rest := manifest.tokens - int(borders[-1]):
        return f"no end-of-text after the last {rest:,} tokens"
    for what in ("tokens", "text_bytes"):
        total = sum(getattr(source, what) for source in manifest.sources)
        if total != (stated := getattr(manifest, what)):
            return f"{what} is {stated:,}, but {total:,} in its sources"
    for source in manifest.sources:
        left_out = (
            source.total_rejected + source.exact_duplicates + source.near_duplicates
        )
        known = source.documents + source.validation + source.unused + left_out
        if source.read != known:
            met = f"{source.read:,} documents of '{source.name}' were read"
            return f"{met}, but {known:,} are accounted for"
    return None


def report(
    manifest: Manifest, lengths: npt.NDArray[np.int64], console: Console
) -> None:
    """Prints the counts of a data folder; `lengths`, (documents,), are tokens with
    end-of-text."""
    sources = manifest.sources
    facts = {
        "fingerprint": manifest.fingerprint,
        "tokenizer": f"{manifest.tokenizer}, {manifest.vocab_size:,} entries",
        "tokens": (
            f"{manifest.tokens:,} ({manifest.dtype}, {len(manifest.chunks):,} chunks)"
        ),
        "documents": f"{manifest.documents:,}",
        "bytes a token": f"{manifest.text_bytes / manifest.tokens:.2f}",
        "tokens each": (
            f"median {np.median(lengths):,.1f}, mean {lengths.mean():,.1f}, 90 % up to "
            f"{np.quantile(lengths, 0.9, method='lower'):,}, most {lengths.max():,}"
        ),
    }
    for name, value in facts.items():
        console.print(f"{name:<15}{value}", soft_wrap=True)
    reasons = sorted({reason for source in sources for reason in source.rejected})
    # A column for each source: there are few of them, and these are long numbers.
    columns = [Column(""), *(Column(source.name, ",") for source in sources)]
    console.print()
    show(
        console,
        Table(
            columns,
            [
                (
                    "share of tokens",
                    *(f"{s.tokens / manifest.tokens:.1%}" for s in sources),
                ),
                ("passes", *(f"{s.passes:.2f}" for s in sources)),
                ("read", *(s.read for s in sources)),
                ("written", *(s.documents for s in sources)),
                ("validation", *(s.validation for s in sources)),
                ("exact duplicates", *(s.exact_duplicates for s in sources)),
                ("near duplicates", *(s.near_duplicates for s in sources)),
                ("unused", *(s.unused for s in sources)),
                *(
                    (reason, *(s.rejected.get(reason, 0) for s in sources))
                    for reason in reasons
                ),
            ],
            "documents of each source",
        ),
        box=False,
    )
    for source in sources:
        for fault in source.faults:
            console.print(
                f"fault of {source.name}: {fault}", markup=False, soft_wrap=True
            )
