"""Ranks that come together: what is said, and who is left, where one does not come.

Lightning's own affairs are touched by one file alone; tests of what that gains see them move.
"""

import ast
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.pytorch.strategies.launchers import subprocess_script

import dualpath_cli
from dualpath_cli.training import internals, ranks
from tests.cli.processes import exit_codes, start
from tests.data_prep.web import wait_for
from tests.training.tiny_run import Fit

rare = pytest.mark.slow


@pytest.fixture
def words(trained: Fit, tmp_path: Path) -> list[str]:
    """The command that trains the tiny recipe on two ranks."""
    trained()  # writes the recipe
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "two"]
    return [*words, "--trainer.strategy", "ddp", "--trainer.devices", "2", "--run.micro_batch", "1"]


IN_SHORT = [
    sys.executable,
    "-c",
    """
import sys, time
from dualpath_cli.base.system import Terminated, end_with_parent
try:
    end_with_parent()
except Terminated:
    sys.exit(143)
time.sleep(999)
""",
]


def by_command(command: list[str]) -> None:
    """Has the first rank, a fork, start the second one by a command."""
    subprocess_script._basic_subprocess_cmd = lambda: command
    ranks.SILENCE = float("inf")  # on a busy machine the second one takes its time


def rank_1_of(first: int) -> int:
    """The process of the second rank, as soon as it is there."""

    def found() -> int | None:
        with suppress(OSError):  # another child, which is gone by now
            for child in Path(f"/proc/{first}/task/{first}/children").read_text().split():
                if b"LOCAL_RANK=1" in Path(f"/proc/{child}/environ").read_bytes():
                    return int(child)
        return None

    return wait_for(found)


@pytest.mark.parametrize(
    ("whose", "signum", "code", "said"),
    [
        (0, signal.SIGTERM, 143, "stopped by SIGTERM"),
        pytest.param(0, signal.SIGKILL, -signal.SIGKILL, None, marks=rare),
        (1, signal.SIGKILL, 1, "failed: rank 1 ended by signal SIGKILL (out of memory?)"),
    ],
)
@pytest.mark.parametrize("delay", [0.0, pytest.param(1.0, marks=rare)])
def test_a_signal_while_the_second_rank_starts_leaves_none_and_says_one_line(
    delay, whose, signum, code, said, words, tmp_path
):
    log = tmp_path / "log"
    # At first the second rank is its beginning and its end alone: the rest takes seconds.
    command = [sys.executable, "-m", "dualpath_cli", *words] if delay else IN_SHORT
    first = start(words, log, partial(by_command, command))
    assert first.pid is not None
    second = rank_1_of(first.pid)
    time.sleep(delay)
    os.kill((first.pid, second)[whose], signum)
    ended = exit_codes([first], 200)
    wait_for(lambda: not Path(f"/proc/{second}").exists())
    assert ended == [code], log.read_text()
    _, _, after = log.read_text().partition(f"folder  {tmp_path}/runs/tiny/two\n")
    line = f"dualpath fit: {said}; the same command continues from the start\n"
    assert after == ("" if said is None else line)


def test_a_process_ends_where_its_parent_has_ended_before_and_nobody_has_waited_for_it():
    parent = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    environment = os.environ | {"DUALPATH_PARENT": str(parent.pid)}
    assert subprocess.run(IN_SHORT, env=environment, check=False).returncode == 143
    parent.wait()


def in_a_hurry() -> None:
    ranks.SILENCE = 0.0


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=rare)])
def test_a_rank_that_does_not_come_is_named_while_it_is_waited_for_and_after_the_timeout(
    rank, words, tmp_path
):
    port = str(find_free_network_port())
    # As the first of its node, each of them speaks.
    words += ["--trainer.devices", "1", "--trainer.num_nodes", "2", "--run.rank_timeout", "0.1"]
    log = tmp_path / "log"
    process = start(
        words, log, in_a_hurry, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NODE_RANK=str(rank),
        LOCAL_RANK="0",
    )  # fmt: skip
    codes, said, place = exit_codes([process]), log.read_text(), f"127.0.0.1:{port}"
    assert codes == [1], said
    assert said.splitlines()[-2:] == [
        f"dualpath fit: waiting at {place} for rank {1 - rank} of 2",
        f"dualpath fit: failed: rank {1 - rank} of 2 did not join at {place} within 0.1 minutes "
        "(run.rank_timeout); the same command continues from the start",
    ]
    assert "frame #" not in said


def test_several_nodes_that_nothing_tells_of_each_other_are_refused(refused, monkeypatch):
    for name in ranks.NAMED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    said = refused(trainer={"num_nodes": 2, "strategy": "ddp"})
    assert "trainer.num_nodes=2, but this node has no address of the others" in said
    assert "(MASTER_ADDR, NODE_RANK lacking here)" in said


def test_processes_share_the_cores(monkeypatch):
    threads: list[int] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    internals.share_cores(10**6)
    assert (threads, os.environ["OMP_NUM_THREADS"]) == ([1], "1")


PUBLIC_DESPITE_THEIR_NAMES = {
    "_exit",  # of `os`
    # Of torch, which documents them.
    "_record_memory_history", "_dump_snapshot", "_get_layout", "_foreach_zero_",
}  # fmt: skip


def test_no_other_file_of_training_touches_what_is_not_its_own():
    package = Path(dualpath_cli.__file__).parent
    files = (package / "training").rglob("*.py")
    for path in files:
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("li"):
                names = [alias.name for alias in node.names]  # of lightning or litdata
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [node.attr]
            private = {name for name in names if name.startswith("_") and name[1] != "_"}
            assert private <= PUBLIC_DESPITE_THEIR_NAMES, (path, private)
