"""The most valuable numbers of one CUDA GPU in one call of nine minutes, the most
valuable first.

bash benchmarks/gpu_once.sh OUT [--rehearse] [--only PATTERN...]

Each cell is a process of its own. Cells of a phase build their models and compile
beside each other, which is most of the time; each then waits for its turn to be
measured, during which the others are paused. What is cut off by time, or fails, loses
only itself. OUT gets gpu.json, written after each cell, and log.txt.
"""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from benchmarks.gpu import correct, decoding, further, kernels, runs, step
from benchmarks.gpu.bench import MAIN, Bench, Cell, Rehearsal, Sizes
from benchmarks.results import Rows, failed
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import one_line

SAMPLE = "fit: sample"
"""The cell that prepares data."""
READERS = ("fit: fit", "correct: fit *", "same: *", "small: *", "further: *")
"""Patterns of the cells that train on that data."""
PHASES: list[tuple[float, float, dict[str, Cell]]] = [
    (
        200,
        60,
        {
            SAMPLE: step.sample,
            "ceilings: measured": step.ceilings,
            f"step: {MAIN}": partial(step.step, recipe=MAIN),
            "step: f80m_wide": partial(step.step, recipe="f80m_wide"),
            "step: f160m_a25_k4": partial(step.step, recipe="f160m_a25_k4"),
            **{
                f"correct: {kind}": partial(correct.eager, kind=kind)
                for kind in correct.KINDS
            },
            **{
                f"correct: fit {kind}": partial(runs.gradients, kind=kind)
                for kind in runs.TRAINED
            },
            f"step: Llama beside {MAIN}": partial(step.step, recipe=MAIN, llama=True),
            "step: Llama beside f80m_wide": partial(
                step.step, recipe="f80m_wide", llama=True
            ),
            f"step: {MAIN}, none": partial(
                step.step, recipe=MAIN, checkpointing="none"
            ),
            "step: f80m_loop_k4": partial(step.step, recipe="f80m_loop_k4"),
            "step: f160m_wide": partial(step.step, recipe="f160m_wide"),
            "step: f160m_a50_k4": partial(step.step, recipe="f160m_a50_k4"),
        },
    ),
    (
        390,
        60,
        {
            # Ready at once, it takes the first turn; the others begin after it.
            "fit: fit": step.fit,
            # Needs no turn: decoding compiles meanwhile.
            "same: repeats": partial(runs.repeats, kind="repeats", equal=5),
            "decode: batch 1": partial(decoding.decode, batch=1),
            "decode: batch 32": partial(decoding.decode, batch=32),
            "decode: compiled alike, batch 1": partial(
                decoding.decode, batch=1, ways=["compiled alike"]
            ),
            "small: width 256": partial(runs.small, model="width 256"),
            "small: width 256, launched": partial(
                runs.small, model="width 256", graphs=False
            ),
            "small: small_text": partial(runs.small, model="small_text"),
            "small: small_text, launched": partial(
                runs.small, model="small_text", graphs=False
            ),
        },
    ),
    (
        470,
        60,
        {
            **{
                f"same: {kind}": partial(runs.repeats, kind=kind)
                for kind in runs.SAME
                if kind != "repeats"
            },
            **{
                f"further: no room, {at}": partial(further.no_room, at=at)
                for at in further.SHARES
            },
            **{
                f"further: 16 layers, {strategy}": partial(
                    further.layers, strategy=strategy
                )
                for strategy in further.STRATEGIES
            },
            **{
                f"decode: room {positions}": partial(
                    decoding.room, batch=32, positions=positions
                )
                for positions in (64, 16)
            },
        },
    ),
    (
        540,
        60,
        {
            **{
                f"attention: {name}": partial(kernels.attention, name=name)
                for name in kernels.KERNELS
            },
            **{
                f"small: {model}, {n} at once": partial(
                    runs.small, model=model, copies=n
                )
                for n, model in (
                    (4, "small_text"),
                    (4, "width 256"),
                    (2, "small_text"),
                    (8, "small_text"),
                )
            },
        },
    ),
]
"""Of each phase the seconds since the start at which it ends, those of a turn, and its
cells by `part: name`, the most valuable first."""
SECONDS = {"fit: fit": 170}
"""Seconds of a turn where they are others: a start, compiling, and 5.8 GB to write."""
CELLS = {name: cell for *_, cells in PHASES for name, cell in cells.items()}
SERVER = get_context("forkserver")
"""Forks of one process that has imported everything, and has not touched the device."""
SERVER.set_forkserver_preload(
    ["benchmarks.gpu.further", "benchmarks.gpu.kernels", "benchmarks.gpu.decoding"]
)


class Worker:
    """A cell in a process of its own, in a group that is paused and ended as one."""

    def __init__(
        self, name: str, sizes: type[Sizes], log: Path, seconds: float
    ) -> None:
        """Its turn lasts at most `seconds`."""
        self.name, self.log, self.seconds = name, log, seconds
        self.ready = False
        self.rows: Rows | None = None
        self._pipe, theirs = SERVER.Pipe()
        self._process = SERVER.Process(target=work, args=(theirs, name, sizes, log))
        self._process.start()
        theirs.close()

    def look(self, seconds: float = 0) -> None:
        """Takes up what the process has said, waiting for it at most so long."""
        if self.rows is None and self._pipe.poll(seconds):
            try:
                self.rows = self._pipe.recv()
            except (EOFError, OSError):
                self.rows = {"": failed(RuntimeError("the process has ended"))}
            self.ready = self.rows is None

    def turn(self, left: float) -> None:
        """Lets it be measured, while so many seconds are left."""
        seconds = min(left, self.seconds)
        with suppress(OSError):  # it has ended
            self._pipe.send(None)
        self.look(seconds)
        if self.rows is None:
            self.rows = {
                "": failed(TimeoutError(f"not measured within {seconds:.0f} s"))
            }

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its own."""
        pid = self._process.pid or 0
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            # Just begun, it leads no group yet.
            with suppress(ProcessLookupError):
                if self._process.is_alive():
                    os.kill(pid, number)

    def end(self) -> None:
        """Ends what has not ended."""
        self.signal(signal.SIGKILL)
        self._process.kill()
        self._process.join()


def work(pipe: Connection, name: str, sizes: type[Sizes], log: Path) -> None:
    """Runs a cell: says None when it has to be alone, waits, and says its rows at the
    end."""
    os.setpgid(0, 0)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def alone() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # for the others, until this one's turn
        pipe.send(None)
        pipe.recv()

    step.compare_exactly()
    pipe.send(attempt(CELLS[name], Bench(device, sizes, alone)))


def attempt(cell: Cell, bench: Bench) -> Rows:
    """Runs a cell; one that fails gives its reason."""
    try:
        return cell(bench)
    except Exception as error:  # whatever went wrong, other cells may work
        traceback.print_exc()
        return {"": failed(error)}


def run_phase(
    workers: Sequence[Worker], end: float, done: Callable[[Worker], None]
) -> None:
    """Runs cells until `end`, by time.monotonic: measures the first in order that is
    ready."""
    waiting = list(workers)
    try:
        while waiting and (left := end - time.monotonic()) > 0:
            for worker in waiting:
                worker.look()
            if ready := next((worker for worker in waiting if worker.ready), None):
                others = [worker for worker in waiting if worker is not ready]
                for worker in others:
                    worker.signal(signal.SIGSTOP)
                ready.turn(left)
                for worker in others:
                    worker.signal(signal.SIGCONT)
            for worker in [worker for worker in waiting if worker.rows is not None]:
                waiting.remove(worker)
                worker.end()
                done(worker)
            time.sleep(0.05)
    finally:
        for worker in waiting:
            worker.end()
            worker.rows = {"": failed(TimeoutError("its phase has ended"))}
            done(worker)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_once.sh",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="Folder of the results.")
    parser.add_argument(
        "--rehearse", action="store_true", help="Tiny shapes, also on a CPU."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="\n".join(["Cells; there are", *CELLS]),
    )
    parser.add_argument(
        "--slower", type=float, default=1, help="Factor on all limits of time."
    )
    try:
        return run(parser.parse_args(arguments))
    except UserError as error:
        print(f"gpu_once.sh: error: {one_line(str(error))}", file=sys.stderr)
        return 2


def cells_like(patterns: Sequence[str]) -> list[str]:
    """Names of the cells that match a pattern, with SAMPLE if they read its data."""
    names = {
        name for name in CELLS if any(fnmatch(name, pattern) for pattern in patterns)
    }
    if any(fnmatch(name, reader) for name in names for reader in READERS):
        names.add(SAMPLE)
    return [name for name in CELLS if name in names]


def phases_of(chosen: Sequence[str]) -> list[tuple[float, float, list[str]]]:
    """The phases that have chosen cells, with these; the last one lasts to the end."""
    phases = [
        (end, turn, [name for name in cells if name in chosen])
        for end, turn, cells in PHASES
    ]
    *others, (_, turn, cells) = [phase for phase in phases if phase[-1]]
    return [*others, (PHASES[-1][0], turn, cells)]


def run(given: argparse.Namespace) -> int:
    """Runs all phases; 1 if a cell has failed or gave something wrong."""
    if not torch.cuda.is_available() and not given.rehearse:
        raise UserError(
            "torch sees no CUDA GPU; --rehearse runs everything tiny on the CPU"
        )
    chosen = cells_like(given.only)
    if not chosen:
        raise UserError(
            f"no cell is like {' or '.join(given.only)}; cells are {', '.join(CELLS)}"
        )
    began, facts = time.monotonic(), results.conditions()
    found: dict[str, Rows] = {name: {} for name in CELLS}

    def result() -> dict[str, Any]:
        measured: dict[str, Rows] = {}
        for cell, rows in found.items():
            part, _, name = cell.partition(": ")
            measured.setdefault(part, {}).update(
                {n or name: row for n, row in rows.items()}
            )
        return results.result(facts, given, measured)

    def done(worker: Worker) -> None:
        found[worker.name] = rows = worker.rows or {}
        write_text(given.out / "gpu.json", results.as_json(result()))
        with (given.out / "log.txt").open("a") as log:
            said = worker.log.read_text(errors="replace") if worker.log.exists() else ""
            log.write(f"==> {worker.name}\n{said[-100_000:]}\n")
        state = next(
            (row["failed"] for row in rows.values() if "failed" in row), "done"
        )
        print(f"[{time.monotonic() - began:4.0f} s] {worker.name}: {state}", flush=True)

    given.out.mkdir(parents=True, exist_ok=True)
    for end, turn, cells in phases_of(chosen):
        workers = [
            Worker(
                name,
                Rehearsal if given.rehearse else Sizes,
                step.work_folder() / f"{n}.log",
                SECONDS.get(name, turn) * given.slower,
            )
            for n, name in enumerate(CELLS)
            if name in cells
        ]
        run_phase(workers, began + end * given.slower, done)
    print(results.section(result()))
    rows = [row for cell in found.values() for row in cell.values()]
    return int(any("failed" in row or not row.get("right", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
