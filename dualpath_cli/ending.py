"""How a command ends from outside: by SIGTERM as by Ctrl-C, and with the process that started it.

Torch-free: it holds from a command's first moment, and for those that it starts.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PARENT = "DUALPATH_PARENT"  # names to a child the process that it must not outlive
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what is done is kept, what it started ends."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raises Terminated where SIGTERM would end the process without a word."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # somebody else has a use for it
        return

    def end(number: int, frame: FrameType | None) -> None:
        # Once: a parent of several threads sends it for each of them that ends.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def of_children() -> Iterator[None]:
    """Has the commands that are started meanwhile end with this process."""
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[_PARENT]


def end_with_parent() -> None:
    """Has this process get SIGTERM once its parent has ended, if that has asked for it.

    Raises:
        Terminated: where it has ended by now.
    """
    parent = os.environ.pop(_PARENT, None)  # not for those that this process starts
    if parent is None or not parent.isdecimal() or sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    if not _lives(int(parent)):
        raise Terminated


def _lives(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has ended, too."""
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # no /proc here
        return True
    return state not in "ZX"
