"""Progress in reading corpora, and the speed at which documents become tokens."""

import time

from rich.console import Console
from rich.filesize import decimal

from dualpath_cli.output.progress import Progress, bytes_of_bytes, counted


class ReadingProgress(Progress):
    """Shows how much of the corpora is read, or of the tokens wanted of them, on stderr."""

    def __init__(self, size: int, tokens: int | None) -> None:
        """`size` in bytes is what `read` adds up to; `tokens` are those asked for, None for all."""
        self._by_bytes = tokens is None
        self._tokens = self._received = 0
        self._begun = time.monotonic()
        amounts = bytes_of_bytes if self._by_bytes else counted("tokens")
        total = (size if tokens is None else tokens) or None
        super().__init__(Console(stderr=True), "reading", amounts, total, transient=True)

    def read(self, size: int) -> None:
        """Counts bytes read from the disk."""
        self._count(size if self._by_bytes else 0)

    def received(self, size: int) -> None:
        """Counts bytes downloaded; called from other threads."""
        self._received += size
        self._count(0)

    def encoded(self, tokens: int) -> None:
        """Counts tokens made."""
        self._tokens += tokens
        self._count(0 if self._by_bytes else tokens)

    def _count(self, amount: int) -> None:
        speed = self._tokens / max(time.monotonic() - self._begun, 1e-9)
        downloaded = f", {decimal(self._received)} downloaded" if self._received else ""
        self.advance(amount, status=f"{speed:,.0f} tokens/s{downloaded}")
