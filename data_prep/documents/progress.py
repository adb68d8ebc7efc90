"""Progress of a stage: a bar on a terminal, a line now and then in a log."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0


class Stage:
    """Shows how far a stage is and the time left, on stderr.

    A context manager.
    """

    def __init__(self, title: str, total: int, unit: str = "bytes") -> None:
        """`total` is what `advance` adds up to, in `unit`; 0 where it is not known."""
        self._title = title
        self._total = total
        self._unit = unit
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total or None, state="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        """Counts what is done, in the stage's unit."""
        self._done += amount
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        # Looked at for each document: a clock is cheap, a bar is not.
        if now - self._last_line < (0.1 if self._bar else SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        state = self._state(now - self._start)
        if self._bar:
            self._bar.update(self._task, completed=self._done, state=state)
            return
        if self._total and self._done:
            left = (now - self._start) * (self._total / self._done - 1)
            state += f", {left / 60:.0f} min left"
        print(f"{self._title}: {state}", file=sys.stderr, flush=True)

    def _state(self, seconds: float) -> str:
        show = decimal if self._unit == "bytes" else "{:,}".format
        done = show(self._done)
        return f"{done} of {show(self._total)}" if self._total else done


class ReadingStage(Stage):
    """Shows how much of the corpora is read, or of the tokens wanted of them, and how fast."""

    def __init__(self, size: int, tokens: int | None) -> None:
        """`size` in bytes is what `read` adds up to; `tokens` are those asked for, None for all."""
        super().__init__("reading", *((size, "bytes") if tokens is None else (tokens, "tokens")))
        self._tokens = self._received = 0

    def read(self, size: int) -> None:
        """Counts bytes read from the disk."""
        self.advance(size if self._unit == "bytes" else 0)

    def received(self, size: int) -> None:
        """Counts bytes downloaded; called from other threads."""
        self._received += size
        self._show()

    def encoded(self, tokens: int) -> None:
        """Counts tokens made."""
        self._tokens += tokens
        self.advance(tokens if self._unit == "tokens" else 0)

    def _state(self, seconds: float) -> str:
        state = f"{super()._state(seconds)}, {self._tokens / max(seconds, 1e-9):,.0f} tokens/s"
        received = f", {decimal(self._received)} downloaded" if self._received else ""
        return state + received
