"""Memory that a step on a CPU frees, kept for the next step.

By default glibc's malloc returns freed large tensors to the system, and each step gets
new pages: a sixth of the time of a small model (docs/fit.md#speed).
"""

import ctypes
from contextlib import suppress

OPTIONS = {
    "M_TRIM_THRESHOLD": (-1, 2**31 - 1),
    "M_TOP_PAD": (-2, 2**27),
    "M_MMAP_MAX": (-4, 0),
}
"""Parameters of mallopt(3) and their values: no memory is returned or taken by mmap,
and the heap grows by 128 MiB at a time."""


def keep_freed_memory() -> None:
    """Sets OPTIONS for this process; does nothing if the C library is not glibc."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for number, value in OPTIONS.values():
            libc.mallopt(number, value)
