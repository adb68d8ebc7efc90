"""LightningCLI on the user's own words, and a training that begins again on a full
GPU."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli import launch, lightning
from dualpath_cli.cli.arguments import read_arguments
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.main import main
from dualpath_cli.model import DualPathLM
from dualpath_cli.training import step
from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import run_on_two_ranks
from tests.cli.test_faults import nobody
from tests.training.tiny_run import back_to_step, tables, weights

WORDS = [
    [
        "--optim",
        "{lr: 3e-3}",
        "--run.name=x",
        "--data.val",
        "{}",
        "--trainer.precision",
        "bf16",
    ],
    [
        "--trainer.callbacks=[{class_path: LearningRateMonitor, "
        "init_args: {logging_interval: step}}]",
        "--seed_everything",
        "3",
        "--run.keep",
        "7",
    ],
    [
        "--trainer.logger",
        "{class_path: CSVLogger, init_args: {save_dir: logs}}",
        "--trainer.max_time",
        "{hours: 1}",
        "--model.gain_init",
        "-3",
    ],
]


@pytest.mark.parametrize("words", WORDS)
def test_lightning_reads_the_words_as_the_light_parser_has_checked_them(
    words, trained, tmp_path, monkeypatch
):
    trained()  # writes recipe and data
    built = {}
    monkeypatch.setattr(
        lightning, "build_session", lambda launch, trainer, *_: built.update(trainer)
    )
    given = ["--config", str(tmp_path / "recipe.yaml"), *words, "--run.name=new"]
    parsed: list[str] = []
    parse = ArgumentParser.parse_args

    def counted(self, words, **how):
        parsed.extend(words)
        return parse(self, words, **how)

    monkeypatch.setattr(ArgumentParser, "parse_args", counted)
    checked = launch.training(read_arguments(COMMANDS["fit"], given))
    found = lightning.DualPathCLI(COMMANDS["fit"], checked).config.trainer
    assert len(parsed) == len(set(parsed)), "each word is parsed once"
    settings, built_ones = (
        dataclasses.asdict(checked.settings.trainer),
        ("callbacks", "logger"),
    )
    assert all(found[key] == settings[key] for key in settings if key not in built_ones)
    kinds = [type(one) for one in built["callbacks"]]
    assert kinds == ([LearningRateMonitor] if "callbacks" in words[0] else [])
    kinds = [type(one) for one in built["logger"]]
    assert kinds == ([CSVLogger] if "logger" in words[0] else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--trainer.callbacks=[{class_path: Nope}]",
            "trainer.callbacks cannot be built: .*: Nope",
        ),
        (
            "--trainer.callbacks=[{class_path: StochasticWeightAveraging, "
            "init_args: {swa_lrs: 0.1}}]",
            "cannot work; use .*optim.schedule",
        ),
        (
            "--trainer.accelerator=gpu",
            "trainer: No supported gpu backend found!; change the rec",
        ),
    ],
)
def test_what_lightning_finds_is_one_short_line(words, message, trained, tmp_path):
    trained()
    given = ["--config", str(tmp_path / "recipe.yaml"), "--run.name=new", words]
    checked = launch.training(read_arguments(COMMANDS["fit"], given))
    if "gpu" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=message) as error:
        lightning.DualPathCLI(COMMANDS["fit"], checked)
    assert len(str(error.value)) < 150


# A GPU without room: half the micro-batch once, the batch and its data unchanged, or
# one line


LOSSES = step.losses_of


def room_for(sequences: int, steps: range = range(10)) -> Any:
    """Losses by a device that has room for so many sequences in these steps."""

    def fits(
        module: DualPathModule, tokens: torch.Tensor, targets: torch.Tensor
    ) -> Any:
        if len(tokens) > sequences and module.trainer.global_step in steps:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB"
            )
        return LOSSES(module, tokens, targets)

    return fits


def facts(run: Path, step: str = "") -> Any:
    return json.loads((run / f"versions{step}.json").read_text())["micro_batch"]


@pytest.mark.parametrize("made", [0, 1])
def test_a_run_that_does_not_fit_is_the_run_of_half_the_micro_batch_also_when_continued(
    made, fit, monkeypatch, capsys
):
    """Where the first step finds no room, and where the optimizer's moments leave none
    after it."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    expected = fit(run={"name": "by-hand", "micro_batch": 2})
    monkeypatch.setattr(step, "losses_of", room_for(2, range(made, 10)))
    capsys.readouterr()
    run = fit(run={"micro_batch": 4})
    said = capsys.readouterr().out
    assert (
        said.count("run.micro_batch=4 does not fit into the GPU; restarting with 2")
        == 1
    )
    assert "accumulated 1 times" in said.split("does not fit")[0]
    assert "accumulated 2 times" in said.split("does not fit")[1]
    assert tables(run) == tables(expected)
    assert facts(run) == 2
    assert yaml.safe_load((run / "recipe.yaml").read_text())["run"]["micro_batch"] == 2
    back_to_step(run, 2)
    monkeypatch.setattr(step, "losses_of", room_for(2))
    with nobody():  # whose reader has left also restarts
        fit(run={"micro_batch": 4})
    assert tables(run) == tables(expected)
    assert facts(run, "-00000002") == 2
    torch.testing.assert_close(weights(run), weights(expected), rtol=0, atol=0)
    assert handlers == [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    ]


def test_a_run_taken_back_restarts_up_to_the_step_that_may_record_a_graph(
    trained, tmp_path, monkeypatch, capsys
):
    run = trained()
    expected = tables(run)
    monkeypatch.setattr(step, "losses_of", room_for(2, range(5, 10)))
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.micro_batch=4"]
    words += ["--run.save_every=6", "--ckpt-path", f"{run}/checkpoints/step-00000002"]
    assert main(words) == 0
    assert "does not fit into the GPU; restarting with 2" in capsys.readouterr().out
    assert tables(run) == expected


@pytest.mark.parametrize(
    ("size", "room", "steps", "line"),
    [
        ("4", 1, range(10), "micro_batch=2 in step 1; --run.micro_batch 1 needs less"),
        (
            "1",
            0,
            range(10),
            "micro_batch=1 in step 1; --run.activation_checkpointing full",
        ),
        (
            "1 --run.activation_checkpointing full",
            0,
            range(10),
            "micro_batch=1 in step 1; --trainer.strategy fsdp over more GPUs",
        ),
        (
            "2",
            1,
            range(4, 10),
            "micro_batch=2 in step 5; --run.micro_batch 1 needs less",
        ),
    ],
    ids=["half is not enough", "nothing is half of one", "nor is all kept", "later"],
)
def test_any_other_lack_of_room_is_one_line(
    size, room, steps, line, trained, tmp_path, monkeypatch, said
):
    trained()  # writes the recipe
    words = ["fit", "--config", tmp_path / "recipe.yaml", "--run.name", "large"]
    monkeypatch.setattr(step, "losses_of", room_for(room, steps))
    error = said(*words, "--run.micro_batch", *size.split(), code=1)
    assert error.startswith("dualpath fit: failed: the GPU has no room for run.")
    assert line in error


def without_room(*ignored: Any, **named: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def without_room_for_a_record(*ignored: Any, **named: Any) -> None:
    """The end of a CUDA graph's record fails, too, by another error."""
    try:
        without_room()
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error")


def test_a_lack_of_room_within_the_record_of_a_graph_is_known(
    trained, tmp_path, monkeypatch, said
):
    trained()  # writes the recipe
    monkeypatch.setattr(step, "losses_of", without_room_for_a_record)
    words = ["fit", "--config", tmp_path / "recipe.yaml", "--run.name", "large"]
    error = said(*words, "--run.micro_batch", 1, code=1)
    assert "the GPU has no room for run.micro_batch=1 in step 1" in error


@pytest.mark.parametrize(
    ("size", "advice"),
    [
        (2, "--run.micro_batch 1 needs less"),
        (1, "--data.val '{}' trains on without validation"),
    ],
)
def test_a_lack_of_room_in_a_validation_names_it_and_a_way_on(
    size, advice, trained, tmp_path, monkeypatch, said
):
    trained()  # writes the recipe
    words = ["fit", "--config", tmp_path / "recipe.yaml", "--run.name", "large"]
    words += ["--run.micro_batch", size]
    forward = DualPathModule.forward

    def without_room(module: DualPathModule, *batch: torch.Tensor) -> torch.Tensor:
        if module.trainer.global_step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(module, *batch)

    monkeypatch.setattr(DualPathModule, "forward", without_room)
    error = said(*words, code=1)
    assert f"micro_batch={size} in the validation of step 3; {advice}" in error
    if size == 1:
        assert main([*map(str, words), "--data.val", "{}"]) == 0


@pytest.mark.parametrize("forward", [without_room, without_room_for_a_record])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("validate", "--run.micro_batch"),
        ("generate", "--batch-size, --precision bfloat16 or --device cpu"),
    ],
)
def test_another_command_without_room_names_options_that_need_less(
    command, options, forward, trained, monkeypatch, said
):
    run = trained()
    monkeypatch.setattr(DualPathLM, "forward", forward)
    error = said(command, "--ckpt-path", run, code=1)
    line = f"failed: the GPU is out of memory; give a smaller {options}\n"
    assert error == f"dualpath {command}: {line}"


def too_large() -> None:
    step.losses_of = room_for(1)


def test_several_ranks_are_told_the_number_to_give(trained, tmp_path):
    trained()
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "two"]
    words += ["--trainer.strategy", "ddp", "--run.micro_batch", "2"]
    first, second = run_on_two_ranks(words, tmp_path, too_large, expected=(1, 1))
    assert (
        "failed: the GPU has no room for run.micro_batch=2 in step 1; --run.mic"
        in first
    )
    assert "Traceback" not in first + second
