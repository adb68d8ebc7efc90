"""Whole files or none, and what is said of a disk that fails."""

import errno
import os
from pathlib import Path

import pytest
import torch

from dualpath_cli.cli import main
from dualpath_cli.errors import UserError
from dualpath_cli.files import atomic
from dualpath_cli.files.atomic import naming, replacing
from tests.tiny_run import Fit


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


@pytest.mark.parametrize(
    "words",
    [
        "fit --config recipe.yaml --run.dir full/runs",
        "generate --ckpt_path RUN --prompt hello --out full/texts.jsonl",
        "export --ckpt_path RUN --format hf --out full/hf",
        "export --ckpt_path RUN --format consolidated --out full/one.safetensors",
        "sweep --config recipe.yaml --budget 10M --out full/sweep",
    ],
)
def test_a_disk_that_is_full_at_the_first_write_is_the_machines_failure(
    words: str,
    trained: Fit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, make = trained(), Path.mkdir

    def refuse_on_full_disk(path: Path, *given: object, **options: object) -> None:
        if "full" in path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        make(path, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse_on_full_disk)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(words.replace("RUN", str(run)).split()) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"dualpath {words.split()[0]}: error: '")
    assert said.endswith("No space left on device; free some space and give the same command again")
