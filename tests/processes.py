"""Commands in processes of their own: one to be killed, or one for each of two ranks.

They are forks of a server that has imported torch and Lightning, which takes a Python of its own
six seconds. Each worker of the tests has one server.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from lightning.fabric.plugins.environments.lightning import find_free_network_port

from dualpath_cli.cli import main
from dualpath_cli.training.logs import curve

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["dualpath_cli.session.lightning_cli", "data_prep.prepare", "pytest"])


def _run(
    words: list[str],
    log: Path,
    environment: dict[str, str],
    prepare: Callable[[], object] | None,
) -> None:
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    curve.draw = lambda run: run / "curve.png"  # it is drawn where it is looked at
    # What the server hands down would have each rank import everything again for its loaders.
    multiprocessing.set_start_method("fork", force=True)
    if prepare is not None:
        prepare()
    sys.exit(main(words))


def start(
    words: list[str],
    log: Path,
    prepare: Callable[[], object] | None = None,
    **environment: str,
) -> BaseProcess:
    """Starts `dualpath WORDS`, which prints to the file `log`; `prepare` is called there before."""
    arguments = (words, log, {**os.environ, **environment}, prepare)
    process = SERVER.Process(target=_run, args=arguments)
    process.start()
    return process


def _call(call: Callable[[], object], log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    call()


def call_on_ranks(count: int, call: Callable[[], object], folder: Path) -> None:
    """Calls a function on so many ranks, which find each other by Lightning's environment."""
    port = str(find_free_network_port())
    logs = [folder / f"{count}-ranks-{rank}.log" for rank in range(count)]
    ranks = [
        SERVER.Process(
            target=_call, args=(call, log, {"LOCAL_RANK": str(rank), "MASTER_PORT": port})
        )
        for rank, log in enumerate(logs)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=300)
        process.kill()
    assert all(process.exitcode == 0 for process in ranks), "".join(log.read_text() for log in logs)


def run_on_ranks(
    count: int,
    words: list[str],
    folder: Path,
    prepare: Callable[[], object] | None = None,
    expected: int = 0,
) -> None:
    """Runs `dualpath WORDS --trainer.devices COUNT` as so many ranks, which log to `folder`.

    Each calls `prepare` before, and has to leave with the exit code `expected`.
    """
    port = str(find_free_network_port())
    logs = [folder / f"rank-{rank}.log" for rank in range(count)]
    ranks = [
        start(
            [*words, "--trainer.devices", str(count)],
            log,
            prepare,
            LOCAL_RANK=str(rank),
            MASTER_PORT=port,
        )
        for rank, log in enumerate(logs)
    ]
    for rank in ranks:
        rank.join(timeout=300)
        rank.kill()
    codes = [rank.exitcode for rank in ranks]
    assert codes == [expected] * count, "".join(log.read_text() for log in logs)


def run_on_two_ranks(
    words: list[str],
    folder: Path,
    prepare: Callable[[], object] | None = None,
    expected: int = 0,
) -> None:
    """The same for two of them."""
    run_on_ranks(2, words, folder, prepare, expected)
