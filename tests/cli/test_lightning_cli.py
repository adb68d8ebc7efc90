"""What LightningCLI itself offers: the same commands as `dualpath`, the same flops."""

import dataclasses
import inspect

import pytest
from lightning.pytorch import Trainer

from dualpath_cli.cli.commands import COMMANDS, resolve
from dualpath_cli.cli.lightning import DualPathCLI
from dualpath_cli.recipe import settings


def test_its_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        DualPathCLI(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "--budget 80M --loops 2 --block loop --format json",
        "--budget 1.28G --dim 1024 --kv-heads 4 --tokens 1e9 --gpus 8 --tflops 300",
        "--budget 160M --table --decode 8x1024@3.35TB/s",
        "--config f80m_a25_k3 --format json",
    ],
)
def test_flops_prints_the_same_through_lightning_cli(line, output_of, capsys):
    words = ["flops", *line.split()]
    quick = output_of(*words)
    DualPathCLI(words)
    assert capsys.readouterr().out == quick != ""


def test_everything_that_a_record_names_is_there():
    for command in COMMANDS.values():
        named = (command.run, command.task, command.module, command.add_arguments,
                 command.read_options, command.check, command.combine)  # fmt: skip
        assert all(callable(resolve(name)) for name in named if name is not None), command.name


def test_every_argument_of_lightnings_trainer_is_a_setting_or_decided():
    """A new one, or one that is gone, has to be looked at."""
    offered = {field.name for field in dataclasses.fields(settings.TrainerSettings)}
    theirs = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert offered <= theirs
    assert settings.DECIDED_ELSEWHERE.keys() <= theirs - offered
    never = {
        "barebones", "enable_autolog_hparams", "enable_model_summary", "enable_progress_bar",
        "inference_mode", "limit_predict_batches", "limit_test_batches", "min_epochs",
        "min_steps", "model_registry", "reload_dataloaders_every_n_epochs", "sync_batchnorm",
        "use_distributed_sampler",
    }  # fmt: skip
    assert theirs - offered - settings.DECIDED_ELSEWHERE.keys() == never
