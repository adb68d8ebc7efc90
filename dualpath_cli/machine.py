"""The cores and GPUs of this machine that a process may use. Torch-free."""

import ctypes
import os
from pathlib import Path


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
