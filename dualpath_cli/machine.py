"""The cores and GPUs that a process may use, and how processes end each other. Torch-free."""

import ctypes
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


def cores() -> int:
    """The cores that this process may use: under SLURM or taskset fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int | None:
    """How many GPUs CUDA's driver shows to this process; None where that cannot be told."""
    if Path("/dev/kfd").exists():  # AMD's: counted by ROCm alone
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


# Signals


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
