"""Whole files or none, what is said of a disk that fails, and one writer at a time."""

import contextlib
import errno
import fcntl
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dualpath_cli.base import files
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import (
    claimed,
    naming,
    replacing,
    replacing_folder,
    write_text,
)
from dualpath_cli.base.locks import FIT, alone, is_held, keep_in_use, remove_unused
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import command as command_of_sweep
from tests.cli.processes import SERVER, start
from tests.compare.sweep.conftest import no_data, write_recipe
from tests.data_prep.conftest import write_jsonl
from tests.training.tiny_run import SEQ_LEN, rows


def fail_half_way(path: Path, number: int) -> None:
    with replacing(path) as partial:
        partial.write_text("half")
        fail_tidily(number)


def refuse() -> None:
    try:
        raise OSError(errno.ENOSPC, "full")
    except OSError:
        raise UserError("said already") from None


def fail_tidily(number: int) -> None:
    """As matplotlib: the disk fails, and then what tidies up does."""
    try:
        raise OSError(number, os.strerror(number))
    finally:
        raise AttributeError("no attribute 'pos'")


def test_a_failure_of_the_disk_names_the_file_and_leaves_the_one_before(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("before")
    for number in (errno.ENOSPC, errno.EIO):
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            fail_half_way(path, number)
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
    with pytest.raises(OSError, match="full") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.filename == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    assert path.read_text() == "before"


def test_what_is_no_failure_of_the_disk_stays_what_it_is(tmp_path):
    with pytest.raises(AttributeError), naming(tmp_path / "x"):
        fail_tidily(errno.ENOTCONN)
    with pytest.raises(UserError), naming(tmp_path / "x"):
        refuse()


def test_torch_names_no_disk_so_that_one_without_room_is_looked_for(
    tmp_path, monkeypatch
):
    def fail(*_: object) -> None:
        raise RuntimeError(
            "[enforce fail at inline_container.cc:671] . unexpected pos 64 vs 0"
        )

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError), naming(tmp_path / "x"):
        torch.save({}, tmp_path / "x")
    monkeypatch.setattr(files, "NO_ROOM", float("inf"))
    with (
        pytest.raises(OSError, match="No space left") as caught,
        naming(tmp_path / "x"),
    ):
        torch.save({}, tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")


@pytest.mark.parametrize(
    "words",
    [
        "fit --config recipe.yaml --run.dir full/runs",
        "generate --ckpt_path RUN --prompt hello --out full/texts.jsonl",
        "export --ckpt_path RUN --out full/hf",
        "sweep --config recipe.yaml --budget 10M --out full/sweep",
    ],
)
def test_a_disk_that_is_full_at_the_first_write_is_the_machines_failure(
    words, trained, tmp_path, said, monkeypatch
):
    run, make = trained(), Path.mkdir

    def refuse_on_full_disk(path: Path, *given: object, **options: object) -> None:
        if "full" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse_on_full_disk)
    monkeypatch.chdir(tmp_path)
    error = said(*words.replace("RUN", str(run)).split(), code=1)
    assert ": error: '" in error
    assert (
        "No space left on device; free some space and give the same command again"
        in error
    )


def killed(folder: Path, moment: str) -> None:
    """A folder that is replaced, in a process that ends at the first or the second
    rename."""
    rename = Path.rename
    with pytest.MonkeyPatch.context() as patch:

        def dying(path: Path, target: Path) -> Path:
            if moment == path.name:
                raise KeyboardInterrupt
            return rename(path, target)

        patch.setattr(Path, "rename", dying)
        patch.setattr(files, "_end_replacing", lambda *_: None)  # nor does it tidy up
        with (
            pytest.raises(KeyboardInterrupt),
            replacing_folder(folder, lambda before: None) as new,
        ):
            (new / "text").write_text("after")


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["x.partial", "x.replaced.partial", "x.lock"])
def test_what_others_have_beside_a_file_or_folder_is_neither_opened_nor_deleted(
    name, kind, tmp_path
):
    precious, strange = tmp_path / "precious", tmp_path / name
    precious.write_text("years of work")
    if kind == "link":
        strange.symlink_to(precious)
    elif kind == "hard link":
        strange.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(strange)
    else:
        strange.mkdir()
        (strange / "thesis.tex").write_text("mine")
    before = _place_of(strange)
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    (tmp_path / "x").unlink()
    for _ in range(2):
        with replacing_folder(tmp_path / "x", lambda before: None) as new:
            (new / "text").write_text("new")
    assert precious.read_text() == "years of work"
    assert _place_of(strange) == before
    assert {path.name for path in tmp_path.iterdir()} == {"x", name, "precious"}


def _place_of(path: Path) -> tuple[int, ...]:
    """Of a file or link itself, without the time at which it was read."""
    found = path.lstat()
    return found.st_ino, found.st_nlink, found.st_size, found.st_mtime_ns


def die_half_way(path: Path) -> None:
    with replacing(path) as partial:
        partial.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_unfinished_file_of_a_killed_writer_is_removed_and_of_a_living_one_stays(
    tmp_path,
):
    path = tmp_path / "table.csv"
    process = SERVER.Process(target=die_half_way, args=(path,))
    process.start()
    process.join()
    (left,) = tmp_path.iterdir()
    with replacing(path) as partial:
        assert not left.exists()
        partial.write_text("the last to finish")
        write_text(path, "the first")
        assert path.read_text() == "the first"
    assert path.read_text() == "the last to finish"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_a_command_fills_is_refused_to_another_but_not_to_its_ranks(
    tmp_path, monkeypatch
):
    out = tmp_path / "comparison"
    with claimed(out):
        said = f"'{out}' is being written by another process"
        with pytest.raises(UserError, match=said), claimed(out):
            pass
        monkeypatch.setenv("RANK", "1")
        with claimed(out):
            pass
        monkeypatch.delenv("RANK")
    with claimed(out):
        pass


@pytest.mark.parametrize("command", ["prepare", "sweep"])
def test_children_look_for_no_modules_in_the_working_directory(
    command, small, tmp_path, monkeypatch, capsys
):
    """Those of a pool, which multiprocessing starts, and those that are commands
    themselves."""
    received = tmp_path / "received"
    received.mkdir()
    for name in ("jsonargparse", "socket"):
        (received / f"{name}.py").write_text(
            "open(__file__ + '.ran', 'w'); raise ImportError"
        )
    monkeypatch.chdir(received)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if command == "prepare":
        source = write_jsonl(tmp_path / "a.jsonl", ["hello"])
        small.save(tmp_path)
        words = f"--source {source} --tokenizer {tmp_path} --workers 2 --val-fraction 0"
    else:
        monkeypatch.setattr(command_of_sweep, "to_train", no_data)
        words = (
            f"--config {write_recipe(tmp_path)} --yes --budget 100K --alphas 50 "
            "--loops 2"
        )
        words += " --controls none --seeds 1 --tflops 0.01"
    code = main([command, *words.split(), "--out", str(tmp_path / "out")])
    assert not list(received.glob("*.ran"))
    said = capsys.readouterr().err
    assert code == (0 if command == "prepare" else 1), said
    assert command == "prepare" or "dualpath fit: error: data folder" in said, (
        "the only run begins"
    )


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_that_a_library_makes_another_exception_of_is_still_the_end(
    sent, code, monkeypatch, capsys
):
    def draw(options: object) -> None:  # as matplotlib, whose transforms are in C++
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), sent)
            time.sleep(10)
        raise TypeError("affine_transform(): incompatible function arguments")

    monkeypatch.setattr("dualpath_cli.flops.command.describe", draw)
    assert main(["flops", "--budget", "80M"]) == code
    how = "interrupted" if sent == signal.SIGINT else "stopped by SIGTERM"
    assert capsys.readouterr().out == f"dualpath flops: {how}\n"


@pytest.mark.parametrize("moment", ["folder", "new"])
def test_a_folder_is_the_one_before_or_the_one_after_whenever_its_writer_is_killed(
    moment, tmp_path
):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "text").write_text("before")
    killed(folder, moment)
    with (
        contextlib.suppress(RuntimeError),
        replacing_folder(folder, lambda before: None) as partial,
    ):
        assert list(partial.iterdir()) == []
        raise RuntimeError
    assert (folder / "text").read_text() == "before"
    with replacing_folder(folder, lambda before: None) as partial:
        (partial / "text").write_text("after")
    assert (folder / "text").read_text() == "after"
    assert list(tmp_path.iterdir()) == [folder]


def hold(folder: Path) -> None:
    """Takes the lock, and gives a child the time to outlive this process."""
    with alone(folder / FIT, folder):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        write_text(folder / "child", str(child))
        time.sleep(60)


def take(folder: Path) -> None:
    """Takes the lock within some seconds. Joining a process would wait for its children
    too."""
    for _ in range(300):
        with contextlib.suppress(UserError), alone(folder / FIT, folder):
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} is still locked")


def test_a_second_holder_is_refused_and_the_first_leaves_no_trace(tmp_path):
    folder = tmp_path / "runs" / "new"
    with alone(folder / FIT, folder):
        said = f"'{folder}' is being written by another process; come back"
        with (
            pytest.raises(UserError, match=said),
            alone(folder / FIT, folder, "come back"),
        ):
            pass
        assert is_held(folder / FIT)
    assert not (folder / FIT).exists()
    assert not is_held(folder / FIT)
    with alone(folder / FIT, folder):
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
        alone(tmp_path / FIT, tmp_path),
    ):
        pass
    process.kill()
    take(tmp_path)
    os.kill(child, signal.SIGKILL)  # which fails if it is gone


def use(folder: Path) -> None:
    keep_in_use(folder)
    write_text(folder / "used", "")
    time.sleep(60)


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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_told_of(number, tmp_path, monkeypatch, capsys):
    def unknown(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with alone(tmp_path / FIT, tmp_path):
        assert capsys.readouterr().err == (
            f"'{tmp_path}' is on a file system without locks: let nothing else write "
            "there\n"
        )
    assert not is_held(tmp_path / FIT)


def test_writers_of_one_file_at_once_all_succeed(tmp_path):
    def write_often() -> None:
        for _ in range(200):
            write_text(tmp_path / "x.csv", "a")

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(write_often) for _ in range(6)]:
            done.result()
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_link_in_the_place_of_unfinished_work_leads_nowhere(tmp_path):
    victim = tmp_path / "victim"
    (victim / "before").mkdir(parents=True)
    (victim / ".dualpath").touch()
    (victim / "before" / "precious").write_text("kept")
    (tmp_path / f"out.{'0' * 16}.partial").symlink_to(victim)
    with replacing_folder(tmp_path / "out", lambda _: None) as new:
        (new / "a").write_text("a")
    assert (victim / "before" / "precious").read_text() == "kept"
    assert (tmp_path / "out" / "a").exists()
