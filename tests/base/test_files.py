"""Whole files or none, whoever writes them, and how a disk that fails is named."""

import errno
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dualpath_cli.base import files
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import naming_disk_errors, replacing, write_text
from tests.cli.processes import SERVER


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
    with pytest.raises(AttributeError), naming_disk_errors(tmp_path / "x"):
        fail_tidily(errno.ENOTCONN)
    with pytest.raises(UserError), naming_disk_errors(tmp_path / "x"):
        refuse()


def test_torch_names_no_disk_so_that_one_without_room_is_looked_for(
    tmp_path, monkeypatch
):
    def fail(*_: object) -> None:
        raise RuntimeError(
            "[enforce fail at inline_container.cc:671] . unexpected pos 64 vs 0"
        )

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError), naming_disk_errors(tmp_path / "x"):
        torch.save({}, tmp_path / "x")
    monkeypatch.setattr(files, "FULL_BELOW_BYTES", float("inf"))
    with (
        pytest.raises(OSError, match="No space left") as caught,
        naming_disk_errors(tmp_path / "x"),
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
        "No space left on device; free some space and run the same command again"
        in error
    )


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


def test_writers_of_one_file_at_once_all_succeed(tmp_path):
    def write_often() -> None:
        for _ in range(200):
            write_text(tmp_path / "x.csv", "a")

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(write_often) for _ in range(6)]:
            done.result()
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
