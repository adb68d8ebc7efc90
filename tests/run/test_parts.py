"""The files that each part of a run writes: its recipe and its versions, and nobody else's."""

import os
from pathlib import Path

from dualpath_cli.run import run_folder


def test_other_files_of_a_like_name_are_no_parts_of_a_run(tmp_path: Path) -> None:
    others = [
        tmp_path / name for name in ("recipe-20260101.yaml.old", "versions-mine20260101.json")
    ]
    for path in others:
        path.write_text("{}")
    run_folder.start(tmp_path, {}, {"part": 1})
    run_folder.start(tmp_path, {}, {"part": 2}, step=20)
    os.utime(tmp_path / "versions.json", (2e9, 2e9))  # in a copy, or by a clock that went back
    assert run_folder.facts_now(tmp_path)["part"] == 2
    assert (tmp_path / "recipe-00000020.yaml").exists()
    run_folder.start(tmp_path, {}, {"part": 3}, step=10)
    assert run_folder.facts_now(tmp_path)["part"] == 3
    assert not (tmp_path / "recipe-00000020.yaml").exists(), "a run that is taken back"
    assert all(path.exists() for path in others)
