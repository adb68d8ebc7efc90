"""Names of this package's operations in PyTorch."""

import torch


def unused(name: str) -> str:
    """The name of an operation, numbered where another copy of this code has it already.

    Exported folders bring copies along. Torch would drop the first operation of the same name, and
    its owner's next call would use freed memory.
    """
    free, number = name, 1
    while hasattr(torch.ops.dualpath, free):
        number += 1
        free = f"{name}_{number}"
    return f"dualpath::{free}"
