"""One writer at a time, until its process ends."""

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.locks import (
    FIT,
    exclusive,
    is_locked,
    keep_in_use,
    remove_unused,
)
from dualpath_cli.training import launch
from tests.cli.processes import SERVER, start
from tests.data_prep.web import wait_for
from tests.training.tiny_run import SEQ_LEN, rows


def hold(folder: Path) -> None:
    """Takes the lock, and gives a child the time to outlive this process."""
    with exclusive(folder / FIT, folder):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        write_text(folder / "child", str(child))
        time.sleep(600)


def take(folder: Path) -> None:
    """Takes the lock, once its holder has ended. Joining a process would wait for its
    children too."""

    def taken() -> bool:
        with contextlib.suppress(UserError), exclusive(folder / FIT, folder):
            return True
        return False

    wait_for(taken)


def test_a_second_holder_is_refused_and_the_first_leaves_no_trace(tmp_path):
    folder = tmp_path / "runs" / "new"
    with exclusive(folder / FIT, folder):
        said = f"'{folder}' is being written by another process; come back"
        with (
            pytest.raises(UserError, match=said),
            exclusive(folder / FIT, folder, "come back"),
        ):
            pass
        assert is_locked(folder / FIT)
    assert not (folder / FIT).exists()
    assert not is_locked(folder / FIT)
    with exclusive(folder / FIT, folder):
        pass


def test_a_killed_process_holds_nothing_even_if_its_child_lives_on(tmp_path):
    process = SERVER.Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "child").exists():
        assert process.is_alive()
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    with (
        pytest.raises(UserError, match="another process"),
        exclusive(tmp_path / FIT, tmp_path),
    ):
        pass
    process.kill()
    take(tmp_path)
    os.kill(child, signal.SIGKILL)  # which fails if it is gone


def use(folder: Path) -> None:
    keep_in_use(folder)
    write_text(folder / "used", "")
    time.sleep(600)


def test_a_folder_in_use_is_removed_once_its_last_process_has_ended(tmp_path):
    folder = tmp_path / "folder"
    users = [SERVER.Process(target=use, args=(folder,)) for _ in range(2)]
    for user in users:
        (folder / "used").unlink(missing_ok=True)
        user.start()
        while not (folder / "used").exists():
            assert user.is_alive()
            time.sleep(0.01)

    for user in users:
        remove_unused(folder)
        assert folder.exists()
        user.kill()
        user.join()

    remove_unused(folder)
    assert not any(tmp_path.iterdir()), "neither the folder nor its lock"


def test_a_second_fit_in_the_same_folder_ends_with_one_line(trained, refused, tmp_path):
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
    assert said.startswith(
        f"dualpath fit: error: '{run}' is being written by another process; "
    )
    assert said.count("\n") == 1
    assert process.is_alive(), "the first one goes on"
    os.kill(process.pid, signal.SIGKILL)
    take(run)
    steps = [int(row["step"]) for row in rows(run / "metrics.csv")]
    assert steps == list(range(1, len(steps) + 1))


def test_a_fit_that_read_the_folder_before_another_ended_repeats_none_of_its_steps(
    trained, refused, monkeypatch
):
    run = trained()
    before = sorted(run.glob("checkpoints/*"))
    read = run / "checkpoints" / "step-00000004"
    monkeypatch.setattr(launch, "newest_checkpoint", lambda folder: read)
    said = refused()
    assert f"{run} was just written by another fit; run the command again" in said
    assert sorted(run.glob("checkpoints/*")) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_told_of(number, tmp_path, monkeypatch, capsys):
    def unknown(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with exclusive(tmp_path / FIT, tmp_path):
        assert capsys.readouterr().err == (
            f"'{tmp_path}' is on a file system without locks: let nothing else write "
            "there\n"
        )
    assert not is_locked(tmp_path / FIT)
