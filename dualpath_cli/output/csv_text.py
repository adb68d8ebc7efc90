"""CSV as this project writes and reads it: a header, newlines, nothing for None."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def format_csv(
    records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, header: bool = True
) -> str:
    """Returns records as CSV text, None as nothing.

    `columns` are by default the keys of the first record; keys that are no column are left out,
    and columns that a record lacks stay empty.
    """
    text = io.StringIO()
    names = list(records[0]) if columns is None else columns
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a file, none if it is missing.

    Half a row at the end, which a machine that died may have left, is no row.
    """
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]
