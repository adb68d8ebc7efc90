"""Variants of one piece of work, timed by turns in one process.

A machine's speed changes from minute to minute: a ratio of two variants is to be taken within a
round.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

Timed = Callable[[], float]
"""Does the work, and returns the seconds of that part of it that counts."""


def clock(device: torch.device) -> float:
    """Seconds so far: of this process on a CPU, of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def timed(call: Callable[[], object], device: torch.device = torch.device("cpu")) -> Timed:  # noqa: B008
    """Returns a call as work of which all counts."""
    return partial(_seconds, call, device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    start = clock(device)
    call()
    return clock(device) - start


def in_turns(
    variants: Mapping[str, Timed], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of every variant by round, each round in another order, after some that warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-warm_up, rounds):
        names = list(variants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = variants[name]()
            if number >= 0:
                seconds[name].append(took)
    return seconds


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over 512 MiB reads, the best of ten."""
    numbers = torch.ones(1 << 27, device=device)
    return numbers.nbytes / min(timed(numbers.sum, device)() for _ in range(10))
