"""A disk that is full or cannot be written while a study runs: one line, and passes are kept."""

import errno
import os
from pathlib import Path

import pytest

from dualpath_cli import files
from dualpath_cli.cli.main import main


class Disk:
    """Has room for so many more whole files."""

    def __init__(self, room: float, number: int) -> None:
        self.room, self.number = room, number

    def sync(self, path: Path) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Where a file's bytes go when it is synced, which is when a full disk says so."""
    disk = Disk(float("inf"), errno.ENOSPC)
    monkeypatch.setattr(files, "sync", disk.sync)
    return disk


PASSES = {"ablate": "scores", "routing": "passes"}
WORDS = {
    "ablate": ["--loops", "1-2"],
    "routing": ["--tagger", "none", "--no_costs", "--sequences", "1"],
}


@pytest.mark.parametrize(
    ("command", "number", "way_out"),
    [
        ("ablate", errno.ENOSPC, "free some space"),
        ("routing", errno.EROFS, "choose a folder that can be written"),
    ],
)
def test_a_study_on_a_full_disk_ends_in_one_line_and_goes_on_with_what_it_kept(
    command, number, way_out, studied, tmp_path, disk, capsys
):
    run = studied(command, *WORDS[command]).copied(tmp_path)
    words = [command, "--ckpt_path", str(run), *WORDS[command]]
    passes = list(run.glob(f"*/step-*/{PASSES[command]}/*.npz"))
    for path in passes:
        path.unlink()
    disk.room, disk.number = 2, number
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"dualpath {command}: error: '{run}")
    assert os.strerror(number) in said
    assert way_out in said
    assert said.count("\n") == 1
    assert not list(run.rglob(f"*{files.PARTIAL}"))
    kept = {path: path.stat().st_mtime_ns for path in passes if path.exists()}
    assert 0 < len(kept) < len(passes)
    disk.room = float("inf")
    assert main(words) == 0
    assert all(path.exists() for path in passes)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize("command", ["ablate", "routing"])
@pytest.mark.parametrize(
    "room", [0, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_report_that_finds_no_room_is_one_line(command, room, run, disk, capsys):
    disk.room = room
    capsys.readouterr()
    code = main([command, "--ckpt_path", str(run), *WORDS[command]])
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (1, 1)
    assert "No space left on device; free some space" in said
