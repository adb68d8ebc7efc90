"""Tables on the screen and in a log, and rows as files have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dualpath_cli.output.console import plain_console

LOG_WIDTH = 160
"""Columns of a table that goes to a file."""

LAST_LAYER = (
    "The final RMSNorm takes the scale out of the last layer's output: only g_d : g_w counts "
    "there, so that what depends on the size of its gates cannot be set beside other layers."
)
"""What stands under tables with the gates of the last layer."""


def table_of(
    title: str, names: str | Sequence[str], numbers: Sequence[str], caption: str | None = None
) -> Table:
    """Returns an empty table: columns of names on the left, of numbers on the right."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for column in [names] if isinstance(names, str) else names:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def interval_text(low: float, high: float, spec: str) -> str:
    """Returns both ends of an interval, each in a format such as `.3f`; nothing for nan."""
    return "" if low != low else f"{low:{spec}} to {high:{spec}}"


def without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with None for what is no number: null in JSON, empty in CSV."""
    return {key: None if value != value else value for key, value in record.items()}


def print_table(console: Console, table: Table) -> None:
    """Prints a table so that no number is cut off, if need be wider than the screen.

    What is no terminal counts as 80 columns wide, but has room.
    """
    wide = console.width if console.is_terminal else max(console.width, LOG_WIDTH)
    room = plain_console(
        file=console.file, width=10 * LOG_WIDTH, quiet=console.quiet,
        force_terminal=console.is_terminal, color_system=console.color_system,
    )  # fmt: skip
    for column in table.columns:
        if column.no_wrap:  # or rich would shorten it to fit
            cells = (column.header, *column.cells)
            column.min_width = max(
                Measurement.get(room, room.options, cell).maximum for cell in cells
            )
    room.width = max(wide, Measurement.get(room, room.options, table).minimum)
    room.print(table)
