"""The console that everything is printed on: texts are shown without markup.

A name such as `[red]` or `:smile:` is a name, not a style and not a picture.
"""

from typing import Any, TextIO, cast

from rich import console as rich_console

from dualpath_cli.output.streams import to_nobody

NARROWEST = 20
"""Columns that a terminal is taken to have at least: rich draws nothing in one or two."""
UNFOLDED = 10_000
"""Columns of a file or a pipe, whatever COLUMNS says: no row of a table is cut or folded."""


def plain_console(*, goes_on: bool = False, **options: Any) -> rich_console.Console:
    """Returns rich's console without markup, in tables and titles as well.

    Where its reader leaves, BrokenPipeError is raised, or it falls silent if the work `goes_on`.
    """
    return Console(goes_on, markup=False, emoji=False, **options)


class Console(rich_console.Console):
    """Rich's, but for its width, and for what happens where its reader leaves."""

    def __init__(self, goes_on: bool, **options: Any) -> None:
        super().__init__(**options)
        self._goes_on = goes_on

    @property  # type: ignore[misc]  # rich's can be set
    def size(self) -> rich_console.ConsoleDimensions:
        width, height = super().size
        width = max(width, NARROWEST) if self.is_terminal else UNFOLDED
        return rich_console.ConsoleDimensions(width, height)

    def on_broken_pipe(self) -> None:
        """Takes the place of rich's, which would leave by `sys.exit(1)`."""
        self.quiet = True
        if not self._goes_on:
            raise BrokenPipeError
        to_nobody(cast(TextIO, self.file))
