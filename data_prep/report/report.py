"""`dualpath prepare inspect`: what an inspection found, as tables and samples."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from data_prep.report.inspection import Inspection, inspect
from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.output.console import plain_console
from dualpath_cli.output.table import Column, Table, show
from dualpath_cli.ranges import check_ranges
from dualpath_cli.text.storage import is_remote

_TEXT_WIDTH = 120
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
    """Inspects a data folder, prints what is in it, and returns the last line.

    Raises UserError for a user's mistake, RunFailed where the folder is damaged.
    """
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
    columns = [
        *(Column("tokens", ""), Column("documents", ""), Column("")),
        *(Column("tokens in them", ""), Column("")),
    ]
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
        console.print(text, width=None if console.is_terminal else _TEXT_WIDTH)
    console.print()


def visible(text: str) -> str:
    """Returns a text on one line, in which what would not be seen, or would act, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _show(console: Console, table: Table) -> None:
    """Prints a table, unless it is empty."""
    if table.rows:
        console.print()
        show(console, table, box=False)


def _percent(count: int, total: int) -> str:
    return f"{count / max(total, 1):.1%}"
