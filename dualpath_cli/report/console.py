"""The console for all output, and the progress of long work.

Texts are shown without markup: a name such as `[red]` or `:smile:` is neither a style
nor a picture. A terminal gets escapes for control characters, which would move its
cursor or change its settings; a file gets them as they are. Progress is a bar on a
terminal, and an occasional line elsewhere.
"""

import errno
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TextIO, cast

from rich import progress as rich_progress
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from dualpath_cli.base.output import printable, send_nowhere

NARROWEST = 20
"""Least assumed columns of a terminal: rich draws nothing in one or two."""


def plain_console(*, goes_on: bool = False, **options: Any) -> Console:
    """A console without markup.

    If stdout is closed, printing raises BrokenPipeError, or OSError for a terminal;
    with `goes_on` all further output is dropped.
    """
    console = _Console(markup=False, emoji=False, highlight=False, **options)
    console.goes_on = goes_on
    return console


def print_line(console: Console, text: str) -> None:
    """Prints a text whose lines rich does not fold."""
    console.print(text, soft_wrap=True)


def print_excerpt(console: Console, text: str, indent: int) -> None:
    """Prints a text as one paragraph with its control characters escaped, 120 columns
    wide in a file."""
    paragraph = Padding(Text(printable(text, keep="")), (0, 0, 0, indent))
    console.print(paragraph, width=None if console.is_terminal else 120)


class _Console(Console):
    goes_on = False

    @property  # type: ignore[misc]  # rich's has a setter
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        # In a file or a pipe no row of a table is cut or folded, for any COLUMNS.
        width = max(width, NARROWEST) if self.is_terminal else 10_000
        return ConsoleDimensions(width, height)

    @property
    def _is_watched(self) -> bool:
        """Whether a terminal gets the output, also one that is told to be taken for a
        file."""
        return self.is_terminal or self.file.isatty()

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich does, which would drop some control characters of a string."""
        if self._is_watched:
            objects = tuple(
                printable(each) if isinstance(each, str) else each for each in objects
            )
        super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does; a text in a bar or a table passes here, too."""
        for segment in super().render(renderable, options):
            # rich's own commands are `control`
            if self._is_watched and not segment.control:
                segment = segment._replace(text=printable(segment.text))
            yield segment

    def __exit__(self, *error: Any) -> None:
        """Writes as rich does; a terminal that was closed is a reader that left."""
        try:
            super().__exit__(*error)
        except OSError as failure:
            if failure.errno != errno.EIO or not self.goes_on:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Replaces rich's method, which would call `sys.exit(1)`."""
        self.quiet = True
        if not self.goes_on:
            raise BrokenPipeError
        send_nowhere(cast(TextIO, self.file))


BAR_EVERY = 0.1  # seconds between two states of the bar
LINE_EVERY = 15.0  # seconds between two lines where no terminal shows the bar

Amounts = Callable[[int, int | None], str]
"""A text for the amount done and the total, if known."""


def counted(unit: str) -> Amounts:
    """Amounts as whole numbers: `3 of 10 batches`.

    Beyond the total: `12 batches, 10 wanted`.
    """

    def text(done: int, total: int | None) -> str:
        if total is None:
            return f"{done:,} {unit}"
        if done > total:
            return f"{done:,} {unit}, {total:,} wanted"
        return f"{done:,} of {total:,} {unit}"

    return text


def bytes_of_bytes(done: int, total: int | None) -> str:
    """Amounts in bytes: `1.2 MB of 3.4 MB`.

    Beyond a total, which was an estimate: `3.6 MB`.
    """
    if total is None or done > total:
        return decimal(done)
    return f"{decimal(done)} of {decimal(total)}"


def duration(seconds: float) -> str:
    """Seconds as minutes, hours or days: `3.5 min`, `7.2 h`, `12.4 days`."""
    minutes = seconds / 60
    hours = minutes / 60
    days = hours / 24
    if minutes < 120:
        return f"{minutes:.1f} min"
    if hours < 72:
        return f"{hours:.1f} h"
    return f"{days:.1f} days"


class Progress:
    """Shows the progress of some work; a context manager around the work."""

    def __init__(
        self,
        console: Console,
        title: str,
        amounts: Amounts,
        total: int | None = None,
        *,
        transient: bool = False,
    ) -> None:
        """`total` is the sum of all `advance`, if known, or the least that it must be.

        A `transient` bar is erased at the end.
        """
        self._console = console
        self._title = title
        self._amounts = amounts
        self._status = ""
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[state]}", markup=False),
            rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=transient,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, state="")
        self.begin(total)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        self._bar.start()

    def stop(self, last_line: bool = False) -> None:
        """Leaves the bar as it is; `last_line` prints a line if there is no
        terminal."""
        self._show(time.monotonic(), line=last_line and not self._console.is_terminal)
        self._bar.stop()

    def begin(self, total: int | None, done: int = 0) -> None:
        self._total = total
        self._done = done
        # The pace is that after the first amount, which may have taken a start-up.
        self._before = done
        self._start: float | None = None
        self._last = time.monotonic()
        self._bar.update(self._task, total=total, completed=done)

    def advance(
        self, amount: int = 1, title: str | None = None, status: str | None = None
    ) -> None:
        """Adds finished work; title and status, words beside the amounts, stay until
        changed."""
        now = time.monotonic()
        self._done += amount
        if self._start is None and amount:
            self._start = now
            self._before = self._done

        if title is not None:
            self._title = title
        if status is not None:
            self._status = status

        # Work may be counted a thousand times a second.
        in_terminal = self._console.is_terminal
        if now - self._last >= (BAR_EVERY if in_terminal else LINE_EVERY):
            self._show(now, line=not in_terminal)

    def drop(self, amount: int) -> None:
        """Takes work that will not be done off the total, which is known."""
        assert self._total is not None
        self._total -= amount
        self._bar.update(self._task, total=self._total)

    def _show(self, now: float, line: bool) -> None:
        self._last = now
        state = self._amounts(self._done, self._total)
        if self._status:
            state += f", {self._status}"
        self._bar.update(
            self._task, completed=self._done, description=self._title, state=state
        )
        if not line:
            return

        timed = self._done - self._before
        if self._total and self._start is not None and timed > 0:
            left = self._total - self._done
            # Beyond the total nobody knows how much is left.
            if left >= 0:
                pace = (now - self._start) / timed
                state += f", {duration(pace * left)} left"
        print_line(self._console, f"{self._title}: {state}")
