"""The display of a running sweep: a live table on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live

from dualpath_cli.output.progress import LINE_EVERY, duration
from dualpath_cli.output.table import Column, Table, drawn
from dualpath_cli.sweep.runs import Run


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
