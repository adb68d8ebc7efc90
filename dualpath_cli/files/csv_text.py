"""CSV as this project writes and reads it: a header, newlines, nothing for None."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError
from dualpath_cli.files.text_file import read_text

WAY_OUT = "mend it, or move it away: the run continues without it"
"""The way out of a damaged table."""


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


def without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with None for what is no number: null in JSON, empty in CSV."""
    return {key: None if value != value else value for key, value in record.items()}


def has_step(path: Path, step: int) -> bool:
    """Whether a table of a run has a row of an optimizer step."""
    return any(int(row["step"]) == step for row in read_csv(path))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a file, none if it is missing.

    Half a row at the end, which a machine that died may have left, is no row: a whole one ends its
    line.

    Raises:
        UserError: for a file that is no UTF-8 text or no CSV, for a header that is cut, as no kill
            leaves it, and for a row that is not as long as the first.
    """
    if not path.exists():
        return []
    text = read_text(path, WAY_OUT)
    whole = text[: text.rfind("\n") + 1]
    if text and not whole:
        raise UserError(f"{path} has no whole line, not even a header; {WAY_OUT}")
    try:
        rows = list(csv.reader(io.StringIO(whole, newline=""), strict=True))
    except csv.Error as error:
        raise UserError(f"{path} cannot be read ({error}); {WAY_OUT}") from None
    names = rows[0] if rows else []
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise UserError(
                f"{path} row {number} has {len(row)} fields, its header {len(names)}; {WAY_OUT}"
            )
    return [dict(zip(names, row, strict=True)) for row in rows[1:]]
