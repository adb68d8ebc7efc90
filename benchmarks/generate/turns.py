"""Variants of one piece of work, timed by turns."""

import time
from collections.abc import Callable, Mapping

import torch

Timed = Callable[[], float]
"""Decodes, and returns the seconds that its tokens took."""


def clock(device: torch.device) -> float:
    """Seconds so far: of this process on a CPU, of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def in_turns(variants: Mapping[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant by round, each round in another order; one before them warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-1, rounds):
        names = list(variants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = variants[name]()
            if number >= 0:
                seconds[name].append(took)
    return seconds


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over 512 MiB reads, the best of ten."""
    numbers = torch.ones(1 << 27, device=device)
    times = []
    for _ in range(10):
        start = clock(device)
        numbers.sum()
        times.append(clock(device) - start)
    return numbers.nbytes / min(times)
