"""Commands in separate processes: one to be killed, or one for each of several ranks.

They are forks of a server that has imported torch and Lightning, which takes a new
Python six seconds or more. Each worker of the tests has one server.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from lightning.fabric.plugins.environments.lightning import find_free_network_port

from dualpath_cli.cli.main import main
from dualpath_cli.training import curve

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["datasketch", "pytest", "data_prep.prepare", "dualpath_cli.cli.lightning"]
)

Call = Callable[[], object]


def _run(call: Call, log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    call()


def _command(words: list[str], prepare: Call | None) -> None:
    curve.draw = lambda run: run / "curve.png"  # it is drawn where it is looked at
    if prepare is not None:
        prepare()
    sys.exit(main(words))


def _fork(call: Call, log: Path, **environment: str) -> BaseProcess:
    process = SERVER.Process(
        target=_run, args=(call, log, {**os.environ, **environment})
    )
    process.start()
    return process


def start(
    words: list[str], log: Path, prepare: Call | None = None, **environment: str
) -> BaseProcess:
    """Starts `dualpath WORDS`, which prints to the file `log`; `prepare` is called
    there before."""
    return _fork(partial(_command, words, prepare), log, **environment)


def exit_codes(
    processes: Sequence[BaseProcess], seconds: float = 300
) -> list[int | None]:
    """Waits for processes, and kills those that hang."""
    for process in processes:
        process.join(seconds)
        process.kill()
    return [process.exitcode for process in processes]


def call_on_ranks(
    count: int, call: Call, folder: Path, expected: Sequence[int] | None = None
) -> list[str]:
    """Calls a function on so many ranks, which find each other by Lightning's
    environment.

    They have to leave with the exit codes `expected`, 0 by default. Returns what each
    printed.
    """
    port = str(find_free_network_port())
    logs = [folder / f"rank-{rank}.log" for rank in range(count)]
    ranks = [
        _fork(call, log, LOCAL_RANK=str(rank), MASTER_PORT=port)
        for rank, log in enumerate(logs)
    ]
    codes = exit_codes(ranks)
    said = [log.read_text() for log in logs]
    assert codes == list(expected or [0] * count), "".join(said)
    return said


def run_on_ranks(
    count: int,
    words: list[str],
    folder: Path,
    prepare: Call | None = None,
    expected: Sequence[int] | None = None,
) -> list[str]:
    """Runs `dualpath WORDS --trainer.devices COUNT` as so many ranks; see
    `call_on_ranks`.

    Each calls `prepare` before.
    """
    words = [*words, "--trainer.devices", str(count)]
    return call_on_ranks(count, partial(_command, words, prepare), folder, expected)


run_on_two_ranks = partial(run_on_ranks, 2)
