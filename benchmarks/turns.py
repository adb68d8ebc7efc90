"""How benchmarks take the time: variants of one piece of work by turns, and calls on a
device.

A machine's speed changes from minute to minute: a ratio of two variants is taken within
a round.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from statistics import median

import torch

Call = Callable[[], object]
Timed = Callable[[], float]
"""Does some work, and returns the seconds of the part that is measured."""

HEAD_START = 20_000_000
"""Cycles, about 10 ms, that a GPU is kept busy before kernels are timed alone: the host
has queued them by then, so that its own time to launch one is not measured."""


def clock(device: torch.device) -> float:
    """Seconds so far: of this process on a CPU, of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def timed(call: Call, device: torch.device = torch.device("cpu")) -> Timed:  # noqa: B008
    """Returns a call as work that is measured from beginning to end."""

    def run() -> float:
        start = clock(device)
        call()
        return clock(device) - start

    return run


def in_turns(
    variants: Mapping[str, Timed], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of every variant by round, each round in another order, after some that
    warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-warm_up, rounds):
        names = list(variants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = variants[name]()
            if number >= 0:
                seconds[name].append(took)
    return seconds


def ratios(dividends: Sequence[float], divisors: Sequence[float]) -> list[float]:
    """Returns the quotient of each round."""
    return [a / b for a, b in zip(dividends, divisors, strict=True)]


def seconds_of(
    call: Call,
    device: torch.device,
    repeats: int,
    warm_up: int = 0,
    *,
    kernels: bool = False,
) -> list[float]:
    """Returns the seconds of each of `repeats` calls: by events on CUDA, where nothing
    waits.

    `kernels`: the calls are so short that the device is kept busy until all are queued.
    """
    for _ in range(warm_up):
        call()
    if device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(repeats):
            call()
            times.append(time.perf_counter())
        return [after - before for before, after in pairwise(times)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    if kernels:
        torch.cuda._sleep(HEAD_START)
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def kernel_seconds(calls: Sequence[Call], device: torch.device, repeats: int) -> float:
    """Returns the median seconds of a kernel; `calls` run it on different data, by
    turns.

    One set of data would stay in the cache, where a training step does not find it.
    """
    turn = cycle(calls)
    times = seconds_of(
        lambda: next(turn)(), device, repeats, warm_up=2 * len(calls), kernels=True
    )
    return median(times)
