"""Runs a case in this process and judges how it ended."""

import contextlib
import io
import os
import random
import shutil
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

from dualpath_cli.cli import parser
from dualpath_cli.cli.commands import resolve
from dualpath_cli.cli.launch import Launch
from dualpath_cli.cli.main import main
from dualpath_cli.compare import command as compare
from dualpath_cli.compare.differences import differences_of
from dualpath_cli.compare.tables import group_tables, latex, tables_of_tests
from dualpath_cli.errors import LONGEST, UserError
from dualpath_cli.files import write_text
from dualpath_cli.output.table import markdown
from dualpath_cli.run import run_folder
from dualpath_cli.sweep import command as sweep
from dualpath_cli.sweep import request
from dualpath_cli.text.storage import local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.logs.tables import CsvTable
from tests.fuzz.cases import KINDS

SECONDS = 10
"""Of the processor's time that a case may take: a recipe of 50,000 characters takes two to read."""


class TooLong(BaseException):
    """Raised where a case takes too long; no `except Exception` may stop it."""


@dataclass(frozen=True)
class Ending:
    """How a case ended."""

    number: int
    kind: str
    words: list[str]
    code: Any
    """The exit code, or None where there is none."""
    message: str
    """The text on stderr, and a traceback."""
    problem: str
    """The fault of this ending; empty if there is none."""


def run_case(seed: int, number: int, home: Path, box: Path) -> Ending:
    """Runs the case of a number in a copy of the home folder, in an empty `box`."""
    draw = random.Random(f"{seed}-{number}")
    kind = draw.choice(list(KINDS))
    case = box / "a" / "b" / "case"
    shutil.copytree(home, case, symlinks=True)
    with contextlib.chdir(case):
        words = KINDS[kind](draw)
        code, message, problem = _run(words)
    outside = [path for path in box.rglob("*") if not path.is_relative_to(case)]
    if len(outside) > 2:
        problem = problem or f"wrote outside of its folder: {outside}"
    shutil.rmtree(box)
    return Ending(number, kind, words, code, message, problem)


def _run(words: list[str]) -> tuple[Any, str, str]:
    """Returns the exit code, the text on stderr, and the fault of both."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
        mock.patch.object(cli, "resolve", _resolve),
        mock.patch.object(parser, "resolve", _resolve),
    ):
        try:
            with _time_limit():
                code = main(words)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            trace = "".join(traceback.format_exception(error, limit=-4))
            return None, err.getvalue() + trace, f"raises {type(error).__name__}"
    return code, err.getvalue(), problem_of(code, err.getvalue())


def problem_of(code: Any, message: str) -> str:
    """Returns the fault of an exit code and the text on stderr; empty if there is none."""
    notes = ("dualpath flops: note: ", "passed over ")
    lines = [line for line in message.splitlines() if not line.startswith(notes)]
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if len(lines) != (code != 0):
        return f"{len(lines)} lines on stderr with exit code {code}"
    if lines and (not lines[0].startswith("dualpath") or ": error: " not in lines[0]):
        return "no line of an error"
    if lines and (len(lines[0]) > LONGEST + 100 or not lines[0].isprintable()):
        return "a line that is too long, or not printable"
    return "out of memory" if "out of memory" in message else ""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _resolve(name: str) -> Any:
    """The function of a record; one that would build a model only writes its first files."""
    if name.endswith((":combine", "lightning_cli:run", "terminal:run")):
        return lambda *given: _write(given[0]) if isinstance(given[0], Launch) else []
    if name.endswith("compare.command:run"):
        return _compare
    return _plan if name.endswith("sweep.command:run") else resolve(name)


def _compare(options: Any) -> str:
    """Compares runs; draws and writes nothing."""

    def answer(groups: Any, left_out: Any, out: Path, aggregate_only: bool) -> list[Path]:
        rows = differences_of(groups, aggregate_only=aggregate_only)
        tables = [*chain(*map(group_tables, groups)), *tables_of_tests(rows, len(rows))]
        assert all(latex(table) and markdown(table) for table in tables)
        return [out]

    with mock.patch.object(compare, "answer", answer):
        return compare.run(options)


def _plan(options: Any) -> str:
    """Plans a sweep in the case's own folder; trains nothing."""

    def train(*given: Any) -> None:
        raise UserError("nothing is trained here")

    if not _is_here(request.read(options).out):
        return ""
    with mock.patch.object(sweep, "run_all", train):
        return sweep.run(options)


def _is_here(path: Path | str) -> bool:
    """Whether a path leads into the case's own folder."""
    return Path(os.path.abspath(path)).is_relative_to(Path.cwd())


def _write(launch: Launch) -> int:
    """Reads the tokenizer and writes what a run begins with, in the case's own folder."""
    fitting, folder, settings = launch.command.needs == "recipe", launch.run_folder, launch.settings
    source = settings.data.path if fitting else folder
    Tokenizer.load(local_copy(f"{source}/{run_folder.TOKENIZER}"))
    if not fitting:
        if launch.options is not None and _is_here(launch.options.out):
            write_text(launch.options.out / "report.json", "{}")
        return 0
    above = Path(os.path.normpath(folder)).parent.parent
    assert above == Path(os.path.normpath(settings.run.dir)), folder
    if _is_here(folder):
        step = None if launch.checkpoint is None else run_folder.step_of(launch.checkpoint)
        run_folder.start(folder, settings.as_recipe(), {}, step)
        CsvTable(folder / "metrics.csv", ["step", "tokens", "seconds"]).open(step or 0)
        os.remove(folder / "metrics.csv")
    return 0
