"""What standard output can take: every character, and a reader that leaves."""

import os
import sys
from typing import TextIO


def escape_unprintable() -> None:
    """Has standard output escape what its encoding lacks, as standard error does by itself.

    Where the shell has closed it, it goes nowhere.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as we live
    if sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def to_nobody(stream: TextIO) -> None:
    """Sends a stream whose reader has left nowhere, with what it still holds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
