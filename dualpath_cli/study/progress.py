"""How far a study is: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 15.0
"""Seconds between two lines where no terminal shows the bar."""


class StudyProgress:
    """Counts batches; a context manager around what is counted."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = self._total = 0
        self._what = ""
        self._start = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, total: int) -> None:
        """Says how many batches there are."""
        self._total = total
        self._start = self._last_line = time.monotonic()
        self._bar.update(self._task, total=total)

    def advance(self, what: str) -> None:
        """Counts a batch of `what`."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, description=what)
        now = time.monotonic()
        if self._console.is_terminal or now - self._last_line < LINE_EVERY:
            return
        self._last_line = now
        left = (now - self._start) * (self._total / self._done - 1)
        self._console.print(
            f"{what}: {self._done:,} of {self._total:,} batches, {left / 60:.1f} min left",
            highlight=False,
            soft_wrap=True,
        )
