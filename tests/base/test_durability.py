"""Files and folders are on the disk before they get their names, and the names too."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.base.files import replacing
from dualpath_cli.base.folders import replacing_folder
from dualpath_cli.cli.main import main
from dualpath_cli.run.checkpoint_folder import publish
from tests.data_prep.conftest import write_jsonl

Inode = tuple[int, int]


def inode(of: os.stat_result) -> Inode:
    return of.st_dev, of.st_ino


class Disk:
    """Notes which inodes are synced, and what is still unsynced at each new name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[Inode] = []
        self.renamed: dict[str, tuple[list[str], int]] = {}
        """By name: files and folders that were not synced then, and the number of syncs
        before it."""
        for name in ("rename", "replace"):
            patch.setattr(os, name, self._noting(getattr(os, name)))
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self.synced.append(inode(os.fstat(descriptor)))

        patch.setattr(os, "fsync", fsync)

    def _noting(self, rename: Callable[..., Any]) -> Callable[..., Any]:
        def noting(old: Any, new: Any, **where: Any) -> None:
            paths = [Path(old), *Path(old).rglob("*")]
            left = [path for path in paths if not path.is_symlink()]
            unsynced = [str(p) for p in left if inode(p.stat()) not in self.synced]
            rename(old, new, **where)
            self.renamed[str(new)] = unsynced, len(self.synced)

        return noting

    def check_durable(self, path: Path) -> None:
        """All of `path` was synced before it got its name, its folder afterwards."""
        unsynced, before = self.renamed[str(path)]
        assert unsynced == []
        assert inode(path.parent.stat()) in self.synced[before:]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_checkpoint_is_on_the_disk_before_and_after_it_gets_its_name(disk, tmp_path):
    folder = tmp_path / "checkpoints"
    partial = folder / "step-00000002.partial"
    partial.mkdir(parents=True)
    (partial / "state.json").write_text("{}")

    publish(partial, folder / "step-00000002", {})

    disk.check_durable(folder / "step-00000002")


def test_a_data_folder_is_on_the_disk_before_and_after_it_gets_its_name(
    disk, small, tmp_path
):
    small.save(tmp_path / "tokenizer")
    texts = write_jsonl(tmp_path / "texts.jsonl", ["a text of some words"] * 3)
    out = tmp_path / "data"

    command = f"prepare --source texts={texts} --tokenizer {tmp_path}/tokenizer"
    assert main([*command.split(), "--workers", "1", "--out", str(out)]) == 0

    disk.check_durable(out)


def test_a_replaced_file_and_folder_are_on_the_disk_before_they_get_their_names(
    disk, tmp_path
):
    with replacing(tmp_path / "file") as partial:
        partial.write_text("new")
    with replacing_folder(tmp_path / "folder", lambda before: None) as new:
        (new / "inside").mkdir()
        (new / "inside" / "file").write_text("new")

    for name in ("file", "folder"):
        unsynced, _ = disk.renamed[str(tmp_path / name)]
        assert unsynced == []
