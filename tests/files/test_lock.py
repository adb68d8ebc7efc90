"""The lock on a run folder: one `fit` at a time, and none after a kill."""

import contextlib
import fcntl
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.files.atomic import write_text
from dualpath_cli.files.lock import FIT, alone_in
from tests.processes import SERVER, start
from tests.tiny_run import SEQ_LEN, Fit, Refused, rows

NAMES = (FIT, "wait for its end")


def hold(folder: Path) -> None:
    """Takes the lock, and gives a child the time to outlive this process."""
    with alone_in(folder, print, *NAMES):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        write_text(folder / "child", str(child))
        time.sleep(60)


def take(folder: Path) -> None:
    """Takes the lock within some seconds. Joining a process would wait for its children too."""
    for _ in range(300):
        with contextlib.suppress(UserError), alone_in(folder, print, *NAMES):
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} is still locked")


def test_a_second_holder_is_told_of_the_first_and_the_first_leaves_no_trace(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "new"
    with alone_in(folder, print, *NAMES):
        refusal = pytest.raises(UserError, match="is being written by process")
        with refusal as refused, alone_in(folder, print, *NAMES):
            pass
        assert f"process {os.getpid()} on {socket.gethostname()};" in str(refused.value)
        assert NAMES[1] in str(refused.value)
    assert not (folder / FIT).exists()
    with alone_in(folder, print, *NAMES):
        pass


def test_a_killed_process_holds_nothing_even_if_its_child_lives_on(tmp_path: Path) -> None:
    process = SERVER.Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "child").exists():
        assert process.is_alive()
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    with (
        pytest.raises(UserError, match=f"process {process.pid} on"),
        alone_in(tmp_path, print, *NAMES),
    ):
        pass
    process.kill()
    take(tmp_path)
    os.kill(child, signal.SIGKILL)  # which fails if it is gone


def test_a_second_fit_in_the_same_folder_ends_with_one_line(
    trained: Fit, refused: Refused, tmp_path: Path
) -> None:
    trained()  # writes the recipe
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "one"]
    more = ["--run.max_tokens", str(5000 * 4 * SEQ_LEN), "--data.max_epochs", "9999"]
    process = start([*words, *more], tmp_path / "log")
    run = tmp_path / "runs" / "tiny" / "one"
    while not (run / "checkpoints" / "last").exists():
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    changes = {"max_tokens": 5000 * 4 * SEQ_LEN, "name": "one"}
    said = refused(run=changes, data={"max_epochs": 9999})
    assert said.startswith(f"dualpath fit: error: '{run}' is being written by process")
    assert f"process {process.pid} on {socket.gethostname()};" in said
    assert said.count("\n") == 1
    assert process.is_alive(), "the first one goes on"
    os.kill(process.pid, signal.SIGKILL)
    take(run)
    steps = [int(row["step"]) for row in rows(run / "metrics.csv")]
    assert steps == list(range(1, len(steps) + 1))


def test_a_file_system_without_locks_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    said: list[str] = []
    with alone_in(tmp_path, said.append, *NAMES):
        assert said == [f"{tmp_path} is on a file system without locks: let nothing else write "
                        "there"]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="cannot be written"),
        alone_in(tmp_path / "file", print, *NAMES),
    ):
        pass
