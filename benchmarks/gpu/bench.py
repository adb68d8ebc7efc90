"""What benchmarks share: the device, sizes, the wait for a turn, and how the time is taken.

A machine's speed changes from minute to minute: a ratio of two variants is taken within a round.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from statistics import median
from typing import Any, ClassVar

import torch

from benchmarks.results import Rows
from dualpath_cli.flops.paper import configurations
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.parallel import BY_RULE

MAIN = "f80m_a50_k4"
"""The configuration that most is measured with."""


class Sizes:
    """Shapes and repetitions as meant for a GPU."""

    seq_len, micro_batch = 4096, 4
    repeats, kernel_repeats, warm_up, rounds = 10, 50, 3, 7
    matmul, copy_bytes = 8192, 2**32
    """Rows and columns of the matrices whose product is the measured peak; bytes copied."""
    check_len, check_width = 256, 256
    """Tokens and width of the models that results are compared on."""
    context, decoded = 512, 32
    compiler: ClassVar[Mapping[str, Any]] = {"options": BY_RULE}
    """Words of torch.compile."""
    run = ""
    """Words of `dualpath fit`."""

    @classmethod
    def model(cls, recipe: str) -> ModelConfig:
        """One of the paper's 26 configurations, as trained, by its recipe's name."""
        return {row.recipe: row for row in configurations()}[recipe].model_config("as_trained")


class Rehearsal(Sizes):
    """Everything once or twice, as small as it can be, for a CPU."""

    seq_len, micro_batch = 128, 2
    repeats, kernel_repeats, warm_up, rounds = 2, 2, 1, 2
    matmul, copy_bytes = 128, 2**20
    check_len, check_width = 16, 32
    context, decoded = 16, 2
    compiler: ClassVar = {"backend": "aot_eager"}
    run = """--trainer.accelerator cpu --run.compile false --model.vocab_size 2048
        --model.n_layers 2 --model.d_model 32 --model.n_heads 2 --model.n_kv_heads 2
        --model.max_seq_len 128 --model.d_ffn 24 --model.d_ffn_wide 96 --model.ffn_multiple_of 8"""

    @classmethod
    def model(cls, recipe: str) -> ModelConfig:
        """A model of a thousandth."""
        config = super().model(recipe)
        narrow = {name: 8 for name in ("d_ffn", "d_ffn_wide") if getattr(config, name)}
        return dataclasses.replace(
            config, vocab_size=128, n_layers=2, d_model=32, n_heads=2, n_kv_heads=2,
            max_seq_len=cls.seq_len, loops=min(2, config.loops), ffn_multiple_of=8, **narrow,
        )  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Where and how large everything is run."""

    device: torch.device
    sizes: type[Sizes] = Sizes
    alone: Callable[[], object] = lambda: None
    """Waits until nothing else runs on the device; before it a cell builds and compiles."""


Cell = Callable[[Bench], Rows]


# How the time is taken

Call = Callable[[], object]
Timed = Callable[[], float]
"""Does some work, and returns the seconds of the part that is measured."""

HEAD_START = 20_000_000
"""Cycles, about 10 ms, that a GPU is kept busy before kernels are timed alone: the host has queued
them by then, so that its own time to launch one is not measured."""


def clock(device: torch.device) -> float:
    """Seconds so far: of this process on a CPU, of the wall where a GPU works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def timed(call: Call) -> Timed:
    """Returns a call as work on a CPU that is measured from beginning to end."""

    def run() -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    return run


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


def ratios(dividends: Sequence[float], divisors: Sequence[float]) -> list[float]:
    """Returns the quotient of each round."""
    return [a / b for a, b in zip(dividends, divisors, strict=True)]


def seconds_of(
    call: Call, device: torch.device, repeats: int, warm_up: int = 0, *, kernels: bool = False
) -> list[float]:
    """Returns the seconds of each of `repeats` calls: by events on CUDA, where nothing waits.

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
    """Returns the median seconds of a kernel; `calls` run it on different data, by turns.

    One set of data would stay in the cache, where a training step does not find it.
    """
    turn = cycle(calls)
    times = seconds_of(lambda: next(turn)(), device, repeats, warm_up=2 * len(calls), kernels=True)
    return median(times)
