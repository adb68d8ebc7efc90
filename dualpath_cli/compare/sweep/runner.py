"""The runs of a sweep as processes, several at a time, or as tasks of a SLURM array.
Torch-free."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from dualpath_cli.base.errors import RunFailed, Stopped, UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.locks import open_without_links
from dualpath_cli.base.output import amount
from dualpath_cli.base.processes import children_end_with_us, cores, visible_gpus
from dualpath_cli.compare.sweep.runs import PlannedRun
from dualpath_cli.report.console import Progress, duration, print_line

POLL = 0.5  # seconds between two looks at the processes
# seconds between two estimates of the time left
LOOK_ON_TERMINAL = 2.0
LOOK_IN_LOG = 600.0

ONE_DEVICE: Collection[object] = ("auto", -1, 1, [0])
"""The values of trainer.devices that are one device where a run sees no other."""


@dataclass(frozen=True)
class RunAtWork:
    """A run and its process."""

    run: PlannedRun
    process: "subprocess.Popen[bytes]"
    begun: float  # when it began, by time.monotonic


def run_all(runs: Sequence[PlannedRun], jobs: int, console: Console) -> None:
    """Trains the unfinished runs in their order, with a line for each as it ends.

    A run that fails stops no other one. Raises RunFailed at the end, with the last
    words of the first run that failed; and Stopped after a signal, once the runs at
    work have stopped with a checkpoint.
    """
    waiting = [run for run in runs if not run.is_finished]
    if len(waiting) < len(runs):
        done = len(runs) - len(waiting)
        print_line(console, f"{done} of {len(runs)} are finished already")
    if waiting:
        print_line(console, f"the output of each run is in {waiting[0].log.parent}")

    progress = SweepProgress(waiting, console)
    slots: dict[int, RunAtWork] = {}
    failed: list[PlannedRun] = []
    written_by_others: set[Path] = set()
    with asked_to_stop() as signals, progress.bar:
        while waiting or slots:
            if signals:
                _stop(slots.values(), console, signals)

            # A slot is a GPU, where there are several: a free one gets the next run.
            for slot in set(range(jobs)) - set(slots):
                run = _next(waiting, console, written_by_others)
                if run is not None:
                    waiting.remove(run)
                    process = start(run, slot, jobs)
                    slots[slot] = RunAtWork(run, process, time.monotonic())

            for slot, at_work in list(slots.items()):
                if at_work.process.poll() is not None:
                    del slots[slot]
                    _end(at_work, progress, failed, console)

            progress.look(at_work.run for at_work in slots.values())
            time.sleep(POLL)

    if failed:
        first = failed[0]
        raise RunFailed(
            f"{len(failed)} of {len(runs)} runs failed, the first one "
            f"{first.name}: {last_words(first.log)} ({first.log}); the "
            "same command tries them again"
        )


def _end(
    at_work: RunAtWork,
    progress: "SweepProgress",
    failed: list[PlannedRun],
    console: Console,
) -> None:
    """Prints how a run ended; adds one that failed to `failed`."""
    run = at_work.run
    code = at_work.process.returncode
    if run.went_wrong:
        word = "went wrong"
    elif code != 0 or not run.is_finished:
        word = f"failed ({code})"
        failed.append(run)
    else:
        word = "finished"

    finished = word == "finished"
    why = "" if finished else f": {last_words(run.log)}"
    ended = progress.end(run, at_work.begun, finished)
    print_line(console, f"{word} {run.name}, {ended}{why}")


class SweepProgress:
    """The progress of a sweep in FLOPs of training, and the time left."""

    def __init__(self, runs: Sequence[PlannedRun], console: Console) -> None:
        self._runs = len(runs)
        self._every = LOOK_ON_TERMINAL if console.is_terminal else LOOK_IN_LOG
        self._looked = 0.0
        self._done = {run: int(run.flops * run.share_done) for run in runs}
        self.ended = 0

        def amounts(*_: object) -> str:
            return f"{self.ended} of {self._runs} runs"

        total = sum(int(run.flops) for run in runs)
        done = sum(self._done.values())
        self.bar = Progress(console, "sweep", amounts)
        self.bar.begin(total, done)

    def look(self, runs: Iterable[PlannedRun]) -> None:
        """Counts the steps of runs at work, now and then."""
        if time.monotonic() - self._looked >= self._every:
            self._looked = time.monotonic()
            for run in runs:
                self._count(run, run.share_done)

    def end(self, run: PlannedRun, begun: float, finished: bool) -> str:
        """Counts the run's steps; those that an unfinished run leaves are no work any
        more."""
        self.ended += 1
        share = 1.0 if finished else run.share_done
        done = max(self._done[run], int(run.flops * share))
        self.bar.drop(int(run.flops) - done)
        self._count(run, share)

        took = duration(time.monotonic() - begun)
        return f"{self.ended} of {self._runs}, after {took}"

    def _count(self, run: PlannedRun, share: float) -> None:
        more = max(0, int(run.flops * share) - self._done[run])
        self._done[run] += more
        self.bar.advance(more)


def _next(
    waiting: Sequence[PlannedRun], console: Console, written_by_others: set[Path]
) -> PlannedRun | None:
    """The next run that can start; one that another process writes is left for
    later."""
    for run in waiting:
        if not run.is_being_written:
            return run
        if run.folder not in written_by_others:
            written_by_others.add(run.folder)
            print_line(
                console,
                f"{run.name} waits: {run.folder} is being written by another process",
            )
    return None


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collects the signals that ask to stop, in place of their handlers.

    SIGUSR1 is the warning that SLURM can send before the time is up.
    """
    seen: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {
        number: signal.signal(number, take)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(
    at_work: Collection[RunAtWork], console: Console, signals: list[int]
) -> NoReturn:
    """Asks all processes to stop and waits for them; a second signal kills them."""
    print_line(
        console,
        f"stopping {amount('runs', len(at_work))} with a checkpoint; a second signal "
        "kills at once",
    )
    processes = [each.process for each in at_work]
    for process in processes:
        process.send_signal(signal.SIGTERM)

    while any(process.poll() is None for process in processes):
        if len(signals) > 1:
            for process in processes:
                process.kill()
        time.sleep(POLL)

    code = 130 if signals[0] == signal.SIGINT else 143
    raise Stopped("stopped; the same command continues", code, quiet=False)


def command_of(run: PlannedRun) -> list[str]:
    return [sys.executable, "-m", "dualpath_cli", "fit", "--config", str(run.path)]


def environment(run: PlannedRun, slot: int, jobs: int) -> Mapping[str, str]:
    """The environment of the run in one of `jobs` slots.

    Slots share the CPUs by OMP_NUM_THREADS, unless it is set. Each slot gets one of
    several GPUs; more slots than GPUs share them.
    """
    shared = dict(os.environ)
    shared.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))

    if jobs > 1 and (gpus := _gpus(run)):
        shared["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return shared


def parallel_jobs(run: PlannedRun, jobs: int) -> int:
    """The number of jobs, of `jobs`, that can run without sharing a device."""
    return min(jobs, len(_gpus(run)) or jobs)


def check_sharing(run: PlannedRun, jobs: int) -> None:
    devices = run.settings.trainer.devices
    if jobs > 1 and _gpus(run) and devices not in ONE_DEVICE:
        raise UserError(
            f"--jobs {jobs} gives each run one GPU, but trainer.devices is {devices}; "
            "take --jobs 1 or trainer.devices 1"
        )


def check_array(run: PlannedRun) -> None:
    """Refuses more than the one device that a task of an array has."""
    trainer = run.settings.trainer
    if trainer.num_nodes > 1 or trainer.devices not in ONE_DEVICE:
        raise UserError(
            f"--slurm gives each run one device, but trainer.devices={trainer.devices} "
            f"and trainer.num_nodes={trainer.num_nodes}; take trainer.devices 1 and "
            "trainer.num_nodes 1"
        )


def _gpus(run: PlannedRun) -> list[str]:
    """Names of the GPUs that this process may use; none for a run on the CPU."""
    if run.settings.trainer.accelerator == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(visible_gpus() or 0)]

    # As CUDA reads it: a word that names no GPU, such as -1, ends the list.
    gpus = []
    for word in named.split(","):
        name = word.strip()
        if not name.isdecimal() and not name.startswith(("GPU-", "MIG-")):
            break
        gpus.append(name)
    return gpus


def start(run: PlannedRun, slot: int, jobs: int) -> "subprocess.Popen[bytes]":
    """Starts the run; its output is appended to its log.

    The run has its own session, so that Ctrl-C reaches only the sweep, which asks its
    runs to stop. If the sweep is killed, the run stops by itself, with a checkpoint.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log, "ab", opener=open_without_links) as log, children_end_with_us():
        return subprocess.Popen(
            command_of(run),
            env=environment(run, slot, jobs),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def last_words(log: Path) -> str:
    """The last line of a run's log, which says why the run ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in reversed(lines):
        if words := line.strip():
            return words
    return "no output"


def write_array(runs: Sequence[PlannedRun], jobs: int, out: Path) -> Path:
    """Writes the script for runs, `jobs` of them at a time."""
    script = out / "jobs.sbatch"
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    on_cpu = runs[0].settings.trainer.accelerator == "cpu"
    template = Path(__file__).with_name("jobs.sbatch").read_text(encoding="utf-8")
    text = template.format(
        count=len(runs),
        last=len(runs) - 1,
        jobs=jobs,
        out=out,
        script=shlex.quote(str(script)),
        name=shlex.quote(out.resolve().name or "sweep"),
        logs=logs,
        quoted_logs=shlex.quote(str(logs)),
        gpus="" if on_cpu else "#SBATCH --gpus-per-task=1\n",
        recipes="\n".join(f"    {shlex.quote(str(run.path))}" for run in runs),
    )
    write_text(script, text)
    return script
