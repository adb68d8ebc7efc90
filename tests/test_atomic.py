"""Whole files or none, and what is said of a disk that fails."""

import errno
import os
from pathlib import Path

import pytest
import torch

from dualpath_cli.errors import UserError
from dualpath_cli.output import atomic
from dualpath_cli.output.atomic import naming, replacing


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


def test_a_failure_of_the_disk_names_the_file_and_leaves_the_one_before(tmp_path: Path) -> None:
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


def test_what_is_no_failure_of_the_disk_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(AttributeError), naming(tmp_path / "x"):
        fail_tidily(errno.ENOTCONN)
    with pytest.raises(UserError), naming(tmp_path / "x"):
        refuse()


def test_torch_names_no_disk_so_that_one_without_room_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError), naming(tmp_path / "x"):
        torch.save({}, tmp_path / "x")
    monkeypatch.setattr(atomic, "NO_ROOM", float("inf"))
    with pytest.raises(OSError, match="No space left") as caught, naming(tmp_path / "x"):
        torch.save({}, tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")
