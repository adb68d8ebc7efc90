"""Tables on the screen and in a log."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

LOG_WIDTH = 160
"""Columns of a table that goes to a file."""


def print_table(console: Console, table: Table) -> None:
    """Prints a table so that no number is cut off, if need be wider than the screen.

    What is no terminal counts as 80 columns wide, but has room.
    """
    wide = console.width if console.is_terminal else max(console.width, LOG_WIDTH)
    room = Console(
        file=console.file, width=10 * LOG_WIDTH, quiet=console.quiet,
        force_terminal=console.is_terminal, color_system=console.color_system,  # type: ignore[arg-type]
    )  # fmt: skip
    for column in table.columns:
        if column.no_wrap:  # or rich would shorten it to fit
            cells = (column.header, *column.cells)
            column.min_width = max(
                Measurement.get(room, room.options, cell).maximum for cell in cells
            )
    room.width = max(wide, Measurement.get(room, room.options, table).minimum)
    room.print(table)
