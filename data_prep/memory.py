"""Memory: how much this machine has, and how much of it one task may take."""

import os
from pathlib import Path

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError

IDLE_BYTES = 250 * 10**6
"""Memory of a process before it has work: its imports, and a tokenizer."""
LEAST_BYTES = 600 * 10**6
"""Memory of a process that cleans and tokenises."""

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def divide_memory(workers: int, memory: int | None) -> tuple[int, int]:
    """Returns how many workers fit into the memory, and the bytes for each task.

    `memory` are the bytes for all processes together; None: half of the machine's.
    Raises UserError if `memory` is too small for one process.
    """
    total = memory or machine_memory() // 2
    if memory and memory < LEAST_BYTES:
        raise UserError(
            f"--memory {memory:,} is not enough for a process that tokenises; give at "
            f"least {decimal(LEAST_BYTES)}"
        )

    workers = max(min(workers, total // LEAST_BYTES), 1)
    return workers, max(total // workers - IDLE_BYTES, LEAST_BYTES - IDLE_BYTES)


def machine_memory() -> int:
    """Bytes of memory that this process and others of its job may use together.

    A container or SLURM may give it a part of the machine.
    """
    pages = os.sysconf("SC_PHYS_PAGES")
    bytes_of_machine = pages * os.sysconf("SC_PAGE_SIZE")
    return min([bytes_of_machine, *_limits_of_groups()])


def _limits_of_groups() -> list[int]:
    """The limits of the control groups that this process is in, of either version."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []

    limits: list[int] = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            limits += _limits_above(GROUPS, name, "memory.max")
        elif "memory" in controllers.split(","):  # version 1
            limits += _limits_above(GROUPS / "memory", name, "memory.limit_in_bytes")
    return limits


def _limits_above(root: Path, name: str, limit: str) -> list[int]:
    """The limits of a group and of those above it, up to the root."""
    limits = []
    group = root / name.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        file = folder / limit
        text = file.read_text().strip() if file.is_file() else "max"
        if text != "max":  # without a limit version 1 has a number above any memory
            limits.append(int(text))
    return limits
