"""A GPU without room: half the micro-batch once, the batch and its data unchanged, or one line."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import run_on_two_ranks
from tests.training.tiny_run import back_to_step, tables, weights

STEP = DualPathModule.training_step


def room_for(sequences: int, steps: range = range(10)) -> Any:
    """A training step on a device that has room for so many sequences in these steps."""

    def fits(module: DualPathModule, batch: Any, batch_idx: int) -> torch.Tensor:
        if len(batch[0]) > sequences and module.trainer.global_step in steps:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return STEP(module, batch, batch_idx)

    return fits


def facts(run: Path, step: str = "") -> Any:
    return json.loads((run / f"versions{step}.json").read_text())["micro_batch"]


@pytest.mark.parametrize("made", [0, 1])
def test_a_run_that_does_not_fit_is_the_run_of_half_the_micro_batch_also_when_continued(
    made, fit, monkeypatch, capsys
):
    """Where the first step finds no room, and where the optimizer's moments leave none after it."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    expected = fit(run={"name": "by-hand", "micro_batch": 2})
    monkeypatch.setattr(DualPathModule, "training_step", room_for(2, range(made, 10)))
    capsys.readouterr()
    run = fit(run={"micro_batch": 4})
    said = capsys.readouterr().out
    assert said.count("run.micro_batch=4 does not fit into the GPU; restarting with 2") == 1
    assert "accumulated 1 times" in said.split("does not fit")[0]
    assert "accumulated 2 times" in said.split("does not fit")[1]
    assert tables(run) == tables(expected)
    assert facts(run) == 2
    assert yaml.safe_load((run / "recipe.yaml").read_text())["run"]["micro_batch"] == 2
    back_to_step(run, 2)
    monkeypatch.setattr(DualPathModule, "training_step", room_for(2))
    fit(run={"micro_batch": 4})
    assert tables(run) == tables(expected)
    assert facts(run, "-00000002") == 2
    torch.testing.assert_close(weights(run), weights(expected), rtol=0, atol=0)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(
    ("size", "room", "steps", "line"),
    [
        (4, 1, range(10), "micro_batch=2 in step 1; --run.micro_batch 1 needs less"),
        (1, 0, range(10), "micro_batch=1 in step 1; --run.activation_checkpointing full"),
        (2, 1, range(4, 10), "micro_batch=2 in step 5; --run.micro_batch 1 needs less"),
    ],
    ids=["half is not enough", "nothing is half of one", "later"],
)
def test_any_other_lack_of_room_is_one_line(
    size, room, steps, line, trained, tmp_path, monkeypatch, said
):
    trained()  # writes the recipe
    words = ["fit", "--config", tmp_path / "recipe.yaml", "--run.name", "large"]
    monkeypatch.setattr(DualPathModule, "training_step", room_for(room, steps))
    error = said(*words, "--run.micro_batch", size, code=1)
    assert error.startswith("dualpath fit: failed: the GPU has no room for run.")
    assert line in error


def too_large() -> None:
    DualPathModule.training_step = room_for(1)  # type: ignore[method-assign]


def test_several_ranks_are_told_the_number_to_give(trained, tmp_path):
    trained()
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "two"]
    words += ["--trainer.strategy", "ddp", "--run.micro_batch", "2"]
    first, second = run_on_two_ranks(words, tmp_path, partial(too_large), expected=(1, 1))
    assert "failed: the GPU has no room for run.micro_batch=2 in step 1; --run.mic" in first
    assert "Traceback" not in first + second
