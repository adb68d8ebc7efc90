"""Tables on the screen and in a log."""

from rich.console import Console
from rich.table import Table

LOG_WIDTH = 160
"""Columns of a table that goes to a file."""


def print_table(console: Console, table: Table) -> None:
    """Prints a table; what is no terminal counts as 80 columns wide, and would cut numbers off."""
    if not console.is_terminal and console.width < LOG_WIDTH:
        console = Console(file=console.file, width=LOG_WIDTH, quiet=console.quiet)
    console.print(table)
