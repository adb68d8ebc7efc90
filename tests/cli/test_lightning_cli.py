"""LightningCLI on the user's own words: what it reads is what was checked before, and Trainer's."""

import dataclasses
import inspect
from pkgutil import resolve_name

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli import launch, lightning
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.cli.words import read
from dualpath_cli.recipe.settings import TrainerSettings

WORDS = [
    ["--optim", "{lr: 3e-3}", "--run.name=x", "--data.val", "{}", "--trainer.precision", "bf16"],
    ["--trainer.callbacks=[{class_path: LearningRateMonitor, "
     "init_args: {logging_interval: step}}]", "--seed_everything", "3", "--run.keep_every", "7"],
    ["--trainer.logger", "{class_path: CSVLogger, init_args: {save_dir: logs}}",
     "--trainer.max_time", "{hours: 1}", "--model.gain_init", "-3"],
]  # fmt: skip


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
    counted = lambda self, words, **how: parsed.extend(words) or parse(self, words, **how)  # noqa: E731
    monkeypatch.setattr(ArgumentParser, "parse_args", counted)
    checked = launch.training(read(COMMANDS["fit"], given))
    monkeypatch.setattr(lightning, "resolve_name", lambda name: lambda session: None)
    found = lightning.DualPathCLI(COMMANDS["fit"], checked).config.trainer
    assert len(parsed) == len(set(parsed)), "each word is parsed once"
    settings, built_ones = dataclasses.asdict(checked.settings.trainer), ("callbacks", "logger")
    assert all(found[key] == settings[key] for key in settings if key not in built_ones)
    kinds = [type(one) for one in built["callbacks"] or []]
    assert kinds == ([LearningRateMonitor] if "callbacks" in words[0] else [])
    assert isinstance(built["logger"], CSVLogger) is ("logger" in words[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trainer.callbacks=[{class_path: Nope}]", "trainer.callbacks cannot be built: .*: Nope"),
        (
            "--trainer.callbacks=[{class_path: StochasticWeightAveraging, "
            "init_args: {swa_lrs: 0.1}}]",
            "cannot work; use .* --average N",
        ),
        ("--trainer.accelerator=gpu", "trainer: No supported gpu backend found!; change the rec"),
    ],
)
def test_what_lightning_finds_is_one_short_line(words, message, trained, tmp_path):
    trained()
    given = ["--config", str(tmp_path / "recipe.yaml"), "--run.name=new", words]
    checked = launch.training(read(COMMANDS["fit"], given))
    if "gpu" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=message) as error:
        lightning.DualPathCLI(COMMANDS["fit"], checked)
    assert len(str(error.value)) < 150


def test_everything_that_a_record_names_is_there():
    for command in COMMANDS.values():
        assert dataclasses.is_dataclass(resolve_name(command.options)), command.name
        named = (command.launch, command.run, command.task, command.module)
        assert all(callable(resolve_name(name)) for name in named if name is not None), command.name


def test_every_argument_of_lightnings_trainer_is_a_setting_or_decided():
    """A new one, or one that is gone, has to be looked at."""
    offered = {field.name for field in dataclasses.fields(TrainerSettings)}
    theirs = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert offered <= theirs
    decided = {
        "accumulate_grad_batches", "barebones", "check_val_every_n_epoch", "default_root_dir",
        "enable_autolog_hparams", "enable_checkpointing", "enable_model_summary",
        "enable_progress_bar", "fast_dev_run", "gradient_clip_algorithm", "gradient_clip_val",
        "inference_mode", "limit_predict_batches", "limit_test_batches", "limit_train_batches",
        "limit_val_batches", "log_every_n_steps", "max_epochs", "max_steps", "min_epochs",
        "min_steps", "model_registry", "num_sanity_val_steps", "overfit_batches",
        "reload_dataloaders_every_n_epochs", "sync_batchnorm", "use_distributed_sampler",
        "val_check_interval",
    }  # fmt: skip
    assert theirs - offered == decided
