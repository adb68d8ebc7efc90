"""Pairs of documents whose texts were compared, for a person to judge."""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from data_prep.records import PAIRS, rows_in
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.output import amount, printable
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.report.console import print_excerpt
from dualpath_cli.report.table import Column, Table, show

SHOWN = 300  # characters of each text
BEFORE = 60  # of them before the first difference


def check_compared(manifest: Manifest, folder: Path) -> None:
    """Raises UserError for data that were prepared without comparing texts."""
    settings = manifest.settings
    if settings.get("duplicates") != "near" or not settings.get("min_jaccard"):
        raise UserError(
            f"--duplicates: no texts were compared for '{folder}'; `prepare "
            "--duplicates near` with a --min-jaccard above 0 compares them, and keeps "
            "some of the pairs"
        )


def show_pairs(folder: Path, count: int, seed: int, console: Console) -> None:
    """Prints how alike the compared pairs are, and `count` of them."""
    path = folder / PAIRS
    # There is no file where no two documents share a band.
    pairs = list(rows_in(path)) if path.exists() else []
    console.print()
    show(console, _table(pairs), box=False)

    order = np.random.default_rng(seed).permutation(len(pairs))
    for number in sorted(order[:count].tolist()):
        _show_pair(pairs[number], console)


def _table(pairs: list[dict[str, Any]]) -> Table:
    """How many pairs of each Jaccard index were removed and kept."""
    columns = [Column("Jaccard index"), Column("removed", ","), Column("kept", ",")]
    rows = []
    for tenth in range(10):
        own = [pair for pair in pairs if min(int(pair["jaccard"] * 10), 9) == tenth]
        removed = sum(pair["kind"] == "near" for pair in own)
        if own:
            name = f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
            rows.append((name, removed, len(own) - removed))
    title = f"{amount('pairs', len(pairs))} whose texts were compared"
    return Table(columns, rows, title)


def _show_pair(pair: dict[str, Any], console: Console) -> None:
    verdict = "removed" if pair["kind"] == "near" else "kept"
    console.print(f"\n{verdict}, Jaccard index {pair['jaccard']:.2f}:")

    texts = pair["texts"]
    begin = max(_first_difference(*texts) - BEFORE, 0)
    for place, text in zip(pair["places"], texts, strict=True):
        name = f"  {place['source']}: {place['file']} row {place['row']}"
        console.print(Text(printable(name, keep="")), soft_wrap=True)

        shown = text[begin : begin + SHOWN]
        left = "[...] " if begin else ""
        right = " [...]" if len(text) > begin + SHOWN else ""
        print_excerpt(console, left + shown + right, indent=4)


def _first_difference(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((place for place, (x, y) in pairs if x != y), min(len(a), len(b)))
