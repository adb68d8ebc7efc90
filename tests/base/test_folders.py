"""A folder is the one before or the one after, and what others have beside it stays."""

import contextlib
import os
from pathlib import Path

import pytest

from dualpath_cli.base import folders
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.folders import claimed_folder, replacing_folder


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
        patch.setattr(folders, "_end_replacing", lambda *_: None)  # nor does it tidy up
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


def test_a_folder_that_a_command_fills_is_refused_to_another_but_not_to_its_ranks(
    tmp_path, monkeypatch
):
    out = tmp_path / "comparison"
    with claimed_folder(out):
        said = f"'{out}' is being written by another process"
        with pytest.raises(UserError, match=said), claimed_folder(out):
            pass
        monkeypatch.setenv("RANK", "1")
        with claimed_folder(out):
            pass
        monkeypatch.delenv("RANK")
    with claimed_folder(out):
        pass


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
