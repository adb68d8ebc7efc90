"""Names of this package's operations in PyTorch."""

import torch


def unused(name: str) -> str:
    """The name of an operation, numbered if another copy of this code has it.

    Exported folders contain copies. For two operations of one name torch would drop the
    first, and the next call of the first would use freed memory.
    """
    free = name
    number = 1
    while hasattr(torch.ops.dualpath, free):
        number += 1
        free = f"{name}_{number}"
    return f"dualpath::{free}"
