"""The console that everything is printed on: texts are shown without markup.

A name such as `[red]` or `:smile:` is a name, not a style and not a picture.
"""

from typing import Any, TextIO, cast

from rich import console as rich_console

from dualpath_cli.output.streams import to_nobody


def plain_console(*, goes_on: bool = False, **options: Any) -> rich_console.Console:
    """Returns rich's console without markup, in tables and titles as well.

    Where its reader leaves, BrokenPipeError is raised, or it falls silent if the work `goes_on`.
    """
    return Console(goes_on, markup=False, emoji=False, **options)


class Console(rich_console.Console):
    """Rich's, but for what happens where its reader leaves."""

    def __init__(self, goes_on: bool, **options: Any) -> None:
        super().__init__(**options)
        self._goes_on = goes_on

    def on_broken_pipe(self) -> None:
        """Takes the place of rich's, which would leave by `sys.exit(1)`."""
        self.quiet = True
        if not self._goes_on:
            raise BrokenPipeError
        to_nobody(cast(TextIO, self.file))
