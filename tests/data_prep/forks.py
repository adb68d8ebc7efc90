"""Preparations in processes of their own, which die where a test says."""

import os
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.processes import SERVER


def start(
    words: list[str], piece_bytes: int, kill: int = 0, changes: Path | None = None
) -> BaseProcess:
    """Starts a preparation with small pieces; it dies before change number `kill` of the disk.

    If it does not, the number of changes is written to a file.
    """
    process = SERVER.Process(target=_run, args=(words, piece_bytes, kill, changes))
    process.start()
    return process


def _run(words: list[str], piece_bytes: int, kill: int, changes: Path | None) -> None:
    from data_prep.__main__ import main
    from data_prep.documents import encoding

    encoding.PIECE_BYTES = piece_bytes
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
    count = 0

    def before(event: str, args: tuple) -> None:
        nonlocal count
        written = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if written or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
            count += 1
            if count == kill:
                os.kill(os.getpid(), signal.SIGKILL)

    if changes:
        sys.addaudithook(before)
    code = main(words)
    if changes:
        changes.write_text(str(count))
    sys.exit(code)


def end(process: BaseProcess) -> int | None:
    """Waits for the exit code of such a preparation, which is below 0 where it was killed."""
    process.join()
    return process.exitcode
