"""What is printed: names are shown as they are, on the screen, in tables and beside progress."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from dualpath_cli.report.console import Progress, counted, plain_console
from dualpath_cli.report.table import Column, Table, show
from dualpath_cli.training.session import Session

NAMES = ["[red]", "[/x]", "[bold]a[/bold]", ":smile:", "[link=x]"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name):
    screen = io.StringIO()
    console = plain_console(file=screen, width=100, force_terminal=True, color_system=None)
    result = {name: {"loss": 1.0, "bits_per_byte": 1.0}}
    module: Any = SimpleNamespace(val_results=result)
    nothing: Any = None
    session = Session(nothing, nothing, module, nothing, console)
    session.say(f"said {name}")
    session.show_validation()
    columns = [Column(name), Column(f"number {name}", "d")]
    show(console, Table(columns, [(f"cell {name}", 1)], f"title {name}", f"caption {name}"))
    with Progress(console, f"bar {name}", counted("steps"), 1) as progress:
        progress.advance(1, status=f"status {name}")
    shown = screen.getvalue()
    for place in ("said", "title", "number", "caption", "cell", "bar", "status"):
        assert f"{place} {name}" in shown
    assert f"│ {name}" in shown


def test_the_time_left_leaves_out_the_first_part_and_names_are_shown_as_they_are(monkeypatch):
    clock = iter([0, 600, 660])  # begun; compiled with the first step; a minute for the second
    monkeypatch.setattr("dualpath_cli.report.console.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    progress = Progress(plain_console(file=screen), "[/x] [red]", counted("steps"), 10)
    progress.advance()
    progress.advance()
    assert screen.getvalue().splitlines() == [
        "[/x] [red]: 1 of 10 steps", "[/x] [red]: 2 of 10 steps, 8.0 min left"
    ]  # fmt: skip
