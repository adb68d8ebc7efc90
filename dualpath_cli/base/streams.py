"""Standard output: unprintable characters, a reader that leaves, one process of many."""

import os
import sys
from typing import TextIO


def escape_unprintable() -> None:
    """Escapes characters that the output's encoding lacks; a closed output goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as we live
    if sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def is_first_rank() -> bool:
    """Whether this process is the first of all, by torchrun, SLURM or Lightning."""
    return all(os.environ.get(n, "0") == "0" for n in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))


def to_nobody(stream: TextIO) -> None:
    """Sends the rest of a stream, whose reader has left, nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
