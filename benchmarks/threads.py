"""How fast a small model trains on a CPU: 1 and 2 threads, ways to wait, alone and beside others.

python -m benchmarks.threads
python -m benchmarks.threads --allocator /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4

Forward, backward and step of the quickstart's model on random tokens. Each setting has a process of
its own that stays for all rounds, as OpenMP reads its variables once; in a round every setting is
timed alone, then beside busy processes. All numbers are ratios to one thread alone in that round.
"""

import argparse
import contextlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.tables import median_and_rounds, show

WAITING = {
    "default": {},
    "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
}
"""How a thread waits for the others at the end of a parallel loop, as environment variables."""


def serve(threads: int) -> None:
    """Prints tokens/s for each number of seconds that a line of stdin holds."""
    import torch

    from dualpath_cli import recipes
    from dualpath_cli.config import ModelConfig
    from dualpath_cli.model import DualPathLM

    torch.set_num_threads(threads)
    recipe = recipes.load("quickstart")
    config = ModelConfig(**recipe["model"])
    model = DualPathLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens_BT = torch.randint(
        config.vocab_size, (recipe["run"]["micro_batch"], config.max_seq_len + 1)
    )

    def step() -> int:
        model(tokens_BT[:, :-1], tokens_BT[:, 1:]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return tokens_BT[:, 1:].numel()

    for _ in range(3):  # the first ones allocate
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        start, tokens = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            tokens += step()
        print(tokens / (time.perf_counter() - start), flush=True)


def start(threads: int, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a process that `serve`s and returns it once it is ready."""
    known = {name for setting in WAITING.values() for name in setting} | {"LD_PRELOAD"}
    inherited = {name: value for name, value in os.environ.items() if name not in known}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.threads", "--serve", str(threads)],
        env=inherited | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tokens_per_second(process: subprocess.Popen[str], seconds: float) -> float:
    """Lets a serving process train for so long."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(seconds, file=process.stdin, flush=True)
    return float(process.stdout.readline())


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps so many cores busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="Beside one thread.")
    parser.add_argument("--busy", type=int, default=1, help="Busy processes beside.")
    parser.add_argument("--seconds", type=float, default=5, help="Of each timing.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--allocator", type=Path, action="append", default=[],
        help="A library with a malloc of its own, preloaded beside the default; may be repeated.",
    )  # fmt: skip
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return
    settings = {("1", "default"): start(1, {})}
    for library in options.allocator:
        settings["1", library.name] = start(1, {"LD_PRELOAD": str(library)})
    for name, variables in WAITING.items():
        settings[str(options.threads), name] = start(options.threads, variables)
    speeds = defaultdict(list)
    try:
        for _ in range(options.rounds):
            for others in (0, options.busy):
                with busy(others):
                    for setting, process in settings.items():
                        speeds[setting, others].append(tokens_per_second(process, options.seconds))
    finally:
        for process in settings.values():
            process.kill()
            process.wait()
    one_thread = speeds[("1", "default"), 0]
    rows = []
    for ((threads, name), others), rounds in speeds.items():
        ratios = [speed / alone for speed, alone in zip(rounds, one_thread, strict=True)]
        cells = (f"{median(rounds):,.0f}", *median_and_rounds(ratios))
        rows.append([threads, name, str(others), *cells])
    show(["threads", "setting", "busy processes", "tokens/s", "ratio, median", "by round"], rows)
    print(f"{os.cpu_count()} cores, torch {importlib.metadata.version('torch')}")


if __name__ == "__main__":
    main()
