"""Cores and GPUs of a process, the signals that end it, and its parent."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PARENT = "DUALPATH_PARENT"  # names the process that a child must not outlive
# Of Linux's prctl: sets and gets the signal that a parent's death sends.
_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2


def cores() -> int:
    """Number of cores that this process may use.

    SLURM and taskset give it a part of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> int | None:
    """Number of GPUs that CUDA's driver shows to this process; None if unknown."""
    if Path("/dev/kfd").exists():  # AMD's GPUs, which only ROCm counts
        return None

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0

    count = ctypes.c_int()
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def is_first_rank() -> bool:
    """Whether this process is the first of all, by torchrun, SLURM or Lightning.

    Lightning sets the rank of a node and the rank within it; torchrun and SLURM also
    set the global rank.
    """
    return _are_zero("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")


def is_first_of_node() -> bool:
    """Whether this process is the first on its machine, by any of these."""
    return _are_zero("LOCAL_RANK", "SLURM_LOCALID")


def _are_zero(*ranks: str) -> bool:
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)


STOPPING = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]
"""Signals that a training ends by at the end of a step."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does.

    Finished work is kept, and the command's processes end.
    """


@contextmanager
def ended_by_signals() -> Iterator[list[KeyboardInterrupt]]:
    """Makes SIGTERM raise Terminated inside the block.

    Yields the exceptions raised for SIGTERM and Ctrl-C: a library may turn one into
    another.
    """
    raised: list[KeyboardInterrupt] = []

    def end(number: int, frame: FrameType | None) -> None:
        is_sigterm = number == signal.SIGTERM
        raised.append(Terminated() if is_sigterm else KeyboardInterrupt())
        # Only once: a parent of several threads sends one for each.
        if is_sigterm:
            signal.signal(number, signal.SIG_IGN)
        raise raised[-1]

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}

    # Handlers that others have set stay; only the main thread may set any.
    replaced = []
    if threading.current_thread() is threading.main_thread():
        replaced = [n for n, before in usual.items() if signal.getsignal(n) is before]

    try:
        for number in replaced:
            signal.signal(number, end)
        yield raised
    finally:
        for number in replaced:
            signal.signal(number, usual[number])  # type: ignore[arg-type]


@contextmanager
def children_end_with_us() -> Iterator[None]:
    """Commands that are started inside the block end with this process."""
    os.environ[_PARENT] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[_PARENT]


def end_with_parent() -> None:
    """Sends this process SIGTERM when the parent that started it ends.

    Does nothing unless the parent started it inside `children_end_with_us`. Raises
    Terminated if the parent has already ended.
    """
    parent = os.environ.pop(_PARENT, None)  # children of this process do not inherit it
    if parent is None or sys.platform != "linux":
        return

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    # Where the parent ended before the call, another process has taken its place.
    if os.getppid() != int(parent):
        raise Terminated


def change_end_with_parent(signum: int) -> None:
    """Replaces the signal that this process gets when its parent ends, if it gets
    one."""
    if sys.platform != "linux":
        return

    prctl = ctypes.CDLL(None).prctl
    found = ctypes.c_int()
    prctl(_PR_GET_PDEATHSIG, ctypes.byref(found))
    if found.value:
        prctl(_PR_SET_PDEATHSIG, signum)
