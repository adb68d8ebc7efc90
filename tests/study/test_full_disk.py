"""A disk that is full or cannot be written while a study runs: one line, and passes are kept."""

import errno
import os
from pathlib import Path

import pytest

from dualpath_cli.cli import main
from dualpath_cli.output import atomic
from tests.study.conftest import Forwards

STUDIES = [
    ("ablate", "ablations/step-00000006/scores"),
    ("routing", "routing/step-00000006/passes"),
]


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
    monkeypatch.setattr(atomic, "sync", disk.sync)
    return disk


def words(command: str, run: Path) -> list[str]:
    more = ["--loops", "1-2"] if command == "ablate" else ["--tagger", "none"]
    return [command, "--ckpt_path", str(run), *more]


@pytest.mark.parametrize(("command", "kept"), STUDIES)
@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose a folder that can be written")],
)
def test_a_study_on_a_full_disk_ends_in_one_line_and_goes_on_with_what_it_kept(
    command: str,
    kept: str,
    number: int,
    way_out: str,
    run: Path,
    disk: Disk,
    forwards: Forwards,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(command, run)) == 0
    finished = len(forwards.names)
    for path in sorted(run.glob(f"{kept}/**/*.npz"))[1:]:
        path.unlink()
    disk.room, disk.number = 1, number
    capsys.readouterr()
    forwards.names.clear()
    assert main(words(command, run)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"dualpath {command}: error: '{run}")
    assert os.strerror(number) in said
    assert way_out in said
    assert said.count("\n") == 1
    assert not list(run.rglob(f"*{atomic.PARTIAL}"))
    before = len(forwards.names)
    disk.room = float("inf")
    forwards.names.clear()
    assert main(words(command, run)) == 0
    assert 0 < before < finished
    assert len(forwards.names) < finished


@pytest.mark.parametrize(("command", "kept"), STUDIES)
@pytest.mark.parametrize("room", [0, 3, 5])
def test_a_report_that_finds_no_room_is_one_line(
    command: str, kept: str, room: int, run: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.room = room
    capsys.readouterr()
    code = main(words(command, run))
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (1, 1)
    assert "No space left on device; free some space" in said
