"""Memory that a step on a CPU frees, kept for the next step.

By default glibc's malloc gives large tensors back to the system as they are freed, so that each
step takes their pages anew: a sixth of the time of a small model (docs/fit.md#speed).
"""

import ctypes
from contextlib import suppress

OPTIONS = {"M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 2**27), "M_MMAP_MAX": (-4, 0)}
"""Numbers of mallopt(3) and their values: nothing is given back or taken by mmap, and the heap
grows by 128 MiB at a time."""


def keep_freed_memory() -> None:
    """Sets it for this process; does nothing where the C library is not glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for number, value in OPTIONS.values():
            libc.mallopt(number, value)
