"""Progress of a preparation: a bar on a terminal, a line now and then in a log."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 15.0


class PreparationProgress:
    """Shows bytes read of all, tokens a second and the time left, on stderr."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._read = 0
        self._tokens = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.fields[speed]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=total_bytes, speed="")

    def __enter__(self) -> "PreparationProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def source(self, name: str) -> None:
        """Names the source that is being read."""
        if self._bar:
            self._bar.update(self._task, description=name)

    def read(self, count: int) -> None:
        """Counts bytes read from the disk."""
        self._read += count
        if self._bar:
            self._bar.update(self._task, completed=self._read)

    def written(self, tokens: int) -> None:
        """Counts tokens written."""
        self._tokens += tokens
        now = time.monotonic()
        speed = f"{self._tokens / max(now - self._start, 1e-9):,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, speed=speed)
        elif now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            share = self._read / max(self._total, 1)
            print(f"{share:.0%} read, {self._tokens:,} tokens, {speed}", file=sys.stderr)
