"""Runs the runs of a sweep, several at a time; those that are finished are left alone."""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from dualpath_cli.errors import RunFailed, Stopped
from dualpath_cli.output.progress import LINE_EVERY, duration
from dualpath_cli.output.table import Column, Table, drawn
from dualpath_cli.sweep.runs import Run
from dualpath_cli.sweep.worker import last_words, start

POLL = 0.5
"""Seconds between two looks at the processes."""
REDRAW = 2.0
"""Seconds between two looks at the runs' tables."""

Process = subprocess.Popen[bytes]


class Board:
    """Shows which runs are at work, how far they are, and how much is left of all."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        """`total` is the number of runs, those that were finished before among them."""
        self._console, self._title, self._total = console, title, total
        # Without a thread: runs are started by fork.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()

    def __enter__(self) -> "Board":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, running: Sequence[Run], finished: int, failed: int) -> None:
        if self._console.is_terminal:
            table = self._table(running, finished, failed)
            self._live.update(drawn(table, self._console.width), refresh=True)
        elif time.monotonic() - self._shown >= LINE_EVERY:
            self._shown = time.monotonic()
            states = ", ".join(
                f"{run.name} {rows[-1]['step']} of {run.steps}"
                for run in running
                if (rows := run.metrics)
            )
            if not states and finished + failed < self._total:
                states = "starting" if running else "waiting"
            done = f"{self._title}: {finished} of {self._total} done"
            self.say(f"{done}; {states}" if states else done)

    def _table(self, running: Sequence[Run], finished: int, failed: int) -> Table:
        waiting = self._total - finished - failed - len(running)
        columns = [
            Column("run"), Column("step", ","), Column("of", ","),
            Column("loss", ".3f"), Column("bits/byte", ".3f"),
            Column("tokens/s", ",.0f"), Column("left", ""),
        ]  # fmt: skip
        rows: list[tuple[Any, ...]] = []
        for run in running:
            logged = run.metrics
            if not logged:
                rows.append((run.name, "starting", run.steps))
                continue
            state = logged[-1]
            step, speed = int(state["step"]), float(state["tokens_per_second"])
            left = (run.steps - step) * run.settings.run.batch_tokens / speed
            loss, bits = float(state["loss"]), float(state["bits_per_byte"])
            rows.append((run.name, step, run.steps, loss, bits, speed, duration(left)))
        title = f"{self._title}: {finished} of {self._total} done, {waiting} waiting"
        return Table(columns, rows, title + (f", {failed} failed" if failed else ""))


def run_all(runs: Sequence[Run], jobs: int, title: str, console: Console) -> list[Run]:
    """Trains what is not finished, in the order of `runs`; a run that fails stops no other one.

    Returns those that failed.

    Raises:
        Stopped: after a signal, once the runs at work have stopped with a checkpoint.
    """
    waiting = [run for run in runs if not run.is_finished]
    if len(waiting) < len(runs):
        done = len(runs) - len(waiting)
        console.print(f"{title}: {done} of {len(runs)} are finished already", highlight=False)
    with Board(console, title, len(runs)) as board, asked_to_stop() as signals:
        return _work(runs, waiting, jobs, board, signals)


def check_none(failed: Sequence[Run], of: int) -> None:
    """Raises RunFailed, with the last words of the first run that failed, if one did."""
    if failed:
        run = failed[0]
        raise RunFailed(
            f"{len(failed)} of {of} runs failed, the first one {run.name}: {last_words(run)} "
            f"({run.log}); the same command tries them again"
        )


def _work(
    runs: Sequence[Run], waiting: list[Run], jobs: int, board: Board, signals: list[int]
) -> list[Run]:
    slots: dict[int, tuple[Run, Process]] = {}
    failed: list[Run] = []
    held: set[Run] = set()
    drawn = 0.0
    while waiting or slots:
        if signals:
            _stop(slots, board, signals)
        for slot in set(range(jobs)) - set(slots):
            run = _next(waiting, board, held)
            if run is not None:
                waiting.remove(run)
                slots[slot] = run, start(run, slot, jobs)
        if not slots and not any(run.is_ready or run.is_being_written for run in waiting):
            # What they would branch from has failed.
            return failed + waiting
        for slot, (run, process) in list(slots.items()):
            if process.poll() is None:
                continue
            del slots[slot]
            if process.returncode == 0 and run.is_finished:
                board.say(f"finished {run.name}")
            else:
                failed.append(run)
                board.say(f"failed {run.name} ({process.returncode}): {last_words(run)}")
        if time.monotonic() - drawn >= REDRAW:
            drawn = time.monotonic()
            at_work = [run for run, _ in slots.values()]
            finished = len(runs) - len(waiting) - len(at_work) - len(failed)
            board.show(at_work, finished, len(failed))
        time.sleep(POLL)
    return failed


def _next(waiting: Sequence[Run], board: Board, held: set[Run]) -> Run | None:
    """The next run that can start.

    One that another sweep, or one that was killed, still writes is left for later, and named once.
    """
    for run in waiting:
        if not run.is_ready:
            continue
        if not run.is_being_written:
            return run
        if run not in held:
            held.add(run)
            board.say(f"{run.name} waits: {run.folder} is being written by another process")
    return None


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collects the signals that ask to stop, instead of what they would do."""
    seen: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(slots: dict[int, tuple[Run, Process]], board: Board, signals: list[int]) -> None:
    """Asks all processes to stop and waits for them; a second signal kills them."""
    board.say(f"stopping {len(slots)} runs with a checkpoint each; once more kills them")
    for _, process in slots.values():
        process.send_signal(signal.SIGTERM)
    while any(process.poll() is None for _, process in slots.values()):
        if len(signals) > 1:
            for _, process in slots.values():
                process.kill()
        time.sleep(POLL)
    code = 130 if signals[0] == signal.SIGINT else 143
    raise Stopped("stopped; the same command continues", code, quiet=False)
