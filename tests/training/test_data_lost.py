"""Data that are lost, cut or changed while training, and loaders that are killed: nothing hangs."""

import multiprocessing
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.recipe.recipes import merge
from dualpath_cli.run.run_folder import newest_checkpoint, step_of
from dualpath_cli.training.data.data_module import loading_fault
from dualpath_cli.training.state import checkpoint
from tests.faulty_data import CHANGED, flip, one_line
from tests.tiny_run import SEQ_LEN, rows, tiny_recipe, train


def at_checkpoints(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object]) -> None:
    publish = checkpoint.publish

    def publish_then(*what: Any) -> None:
        publish(*what)
        fault()

    monkeypatch.setattr(checkpoint, "publish", publish_then)


def replace_flipped(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    flip(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


LONG = {"max_tokens": 40 * 4 * SEQ_LEN, "save_every": 2, "keep": 1, "validate_every": 0}
CHUNK = r"chunk-0-\d\.bin: "
LATER = {
    "lost": (Path.unlink, "first", CHUNK + r"cannot be read \(No such file or directory\)"),
    "cut": (lambda path: os.truncate(path, 100), "first", CHUNK + CHANGED),
    "cut, unverified": (lambda path: os.truncate(path, 100), "never", CHUNK + "was cut while it"),
    "changed in place": (flip, "first", CHUNK + CHANGED),
    "replaced": (replace_flipped, "first", CHUNK + CHANGED),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", LATER)
def test_a_chunk_that_is_lost_cut_or_changed_while_training_ends_the_run(
    fault, workers, refused, data, tmp_path, monkeypatch
):
    damage, verify, message = LATER[fault]
    chunks = sorted(data.glob("chunk-*"))
    at_checkpoints(monkeypatch, lambda: [damage(path) for path in chunks])
    settings = {"path": str(data), "workers": workers, "verify": verify, "max_epochs": None}
    one_line(refused(run=LONG, data=settings), message)
    kept = newest_checkpoint(tmp_path / "runs" / "tiny" / "default")
    assert kept is not None
    assert step_of(kept) == 2, "the fault was found at once, and the checkpoint is whole"


def test_a_touched_chunk_is_read_again_and_trained_on(fit, data, monkeypatch):
    chunks = sorted(data.glob("chunk-*"))
    at_checkpoints(monkeypatch, lambda: [os.utime(path) for path in chunks])
    run = fit(run=LONG, data={"path": str(data), "max_epochs": None})
    assert len(rows(run / "metrics.csv")) == 40


def test_a_killed_loader_ends_the_run(texts, data, tmp_path, monkeypatch, capsys):
    def kill() -> None:
        (loader,) = multiprocessing.active_children()
        loader.kill()

    at_checkpoints(monkeypatch, kill)
    settings = {"path": str(data), "workers": 1, "max_epochs": None}
    recipe = merge(tiny_recipe(texts, tmp_path / "runs"), {"run": LONG, "data": settings})
    run = train(recipe, tmp_path / "recipe.yaml", expected=1)
    message = r"failed: .*DataLoader worker .*; if memory ran out, lower data\.workers or run"
    one_line(capsys.readouterr().err, message)
    kept = newest_checkpoint(run)
    assert kept is not None
    assert step_of(kept) == 2


def test_a_loader_whose_signal_comes_late_is_named_all_the_same(monkeypatch):
    """PyTorch's handler raises wherever the process is: here, as the first error is looked at."""

    def interrupted(*_: object) -> list[str]:
        monkeypatch.undo()
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")

    monkeypatch.setattr(traceback, "format_exception", interrupted)
    fault = loading_fault(ConnectionResetError("Connection reset by peer"))
    assert str(fault).startswith("DataLoader worker (pid 1) is killed by signal: Killed; if memory")
