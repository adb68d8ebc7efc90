"""What a sweep shows while it runs: a live table on a terminal, lines elsewhere."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dualpath_cli.errors import UserError
from dualpath_cli.output.csv_text import read_csv
from dualpath_cli.output.progress import LINE_EVERY, duration
from dualpath_cli.study.tables import table_of
from dualpath_cli.sweep.runs import Run


class Board:
    """Shows which runs are at work, how far they are, and how much is left of all."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        """`total` is the number of runs, those that were finished before among them."""
        self._console, self._title, self._total = console, title, total
        # Without a thread of its own: runs are started by fork.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()

    def __enter__(self) -> "Board":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, running: Sequence[Run], finished: int, failed: int) -> None:
        """Shows how far the runs at work are."""
        if self._console.is_terminal:
            self._live.update(self._table(running, finished, failed), refresh=True)
        elif time.monotonic() - self._shown >= LINE_EVERY:
            self._shown = time.monotonic()
            states = ", ".join(
                f"{run.name} {state['step']} of {run.steps}"
                for run in running
                if (state := progress_of(run))
            )
            if not states and finished + failed < self._total:
                states = "starting" if running else "waiting"
            done = f"{self._title}: {finished} of {self._total} done"
            self.say(f"{done}; {states}" if states else done)

    def _table(self, running: Sequence[Run], finished: int, failed: int) -> Table:
        waiting = self._total - finished - failed - len(running)
        table = table_of(
            f"{self._title}: {finished} of {self._total} done, {waiting} waiting"
            + (f", {failed} failed" if failed else ""),
            ["run"], ["step", "of", "loss", "bits/byte", "tokens/s", "left"],
        )  # fmt: skip
        for run in running:
            state = progress_of(run)
            if not state:
                table.add_row(run.name, "starting", f"{run.steps:,}")
                continue
            step, speed = int(state["step"]), float(state["tokens_per_second"])
            left = (run.steps - step) * run.settings.run.batch_tokens / speed
            table.add_row(
                run.name, f"{step:,}", f"{run.steps:,}", f"{float(state['loss']):.3f}",
                f"{float(state['bits_per_byte']):.3f}", f"{speed:,.0f}", duration(left),
            )  # fmt: skip
        return table


def progress_of(run: Run) -> Mapping[str, str]:
    """The last row that a run has logged; nothing before the first one."""
    try:
        rows = read_csv(run.folder / "metrics.csv")
    except UserError:  # half written at this moment
        return {}
    return rows[-1] if rows else {}
