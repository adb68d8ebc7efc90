"""Seconds of calls: by events on CUDA, where nothing waits for the device, else by a host clock."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from statistics import median

import torch

Call = Callable[[], object]

HEAD_START = 20_000_000
"""Cycles, about 10 ms, that a GPU is kept busy before kernels are timed alone: the host has queued
them by then, so that its own time to launch one is not measured."""


def seconds_of(
    call: Call, device: torch.device, repeats: int, warm_up: int = 0, *, kernels: bool = False
) -> list[float]:
    """Returns the seconds of each of `repeats` calls, after `warm_up` ones that do not count.

    `kernels`: the calls are so short that the device has to be kept busy until all are queued.
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
    """Returns the median seconds of a kernel; `calls` run it on different data, by turns.

    One set of data would stay in the cache, where a training step does not find it.
    """
    turn = cycle(calls)
    times = seconds_of(lambda: next(turn)(), device, repeats, warm_up=2 * len(calls), kernels=True)
    return median(times)
