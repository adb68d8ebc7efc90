"""Checks of a recipe against the world: its data, its validation sets, Lightning's trainer."""

from pathlib import Path
from typing import Any

from dualpath_cli.command.arguments import Settings
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.run_folder import TOKENIZER
from dualpath_cli.settings import STRATEGIES
from dualpath_cli.text.documents import Source, source_files
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.text.storage import exists, is_remote, local_copy
from dualpath_cli.text.tokenizer import Tokenizer

DECIDED_ELSEWHERE = {
    "max_steps": "run.max_tokens",
    "max_epochs": "run.max_tokens and data.max_epochs",
    "limit_train_batches": "run.max_tokens",
    "overfit_batches": "run.max_tokens",
    "fast_dev_run": "run.max_tokens",
    "accumulate_grad_batches": "run.batch_tokens and run.micro_batch",
    "gradient_clip_val": "optim.clip",
    "val_check_interval": "run.validate_every",
    "check_val_every_n_epoch": "run.validate_every",
    "limit_val_batches": "data.val_tokens",
    "log_every_n_steps": "run.log_every",
    "logger": "run.tensorboard or run.wandb",
    "default_root_dir": "run.dir",
    "enable_checkpointing": "run.save_every",
    "num_sanity_val_steps": "run.validate_every",
    "gradient_clip_algorithm": "optim.clip",
}
"""Arguments of lightning.Trainer that a recipe's own sections decide."""


def check_training_data(settings: Settings) -> Manifest:
    """Checks that the data folder is whole, fits the model and lasts for the token budget.

    Raises:
        UserError: naming what is wrong and the way out.
    """
    folder = settings.data.path
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    if not exists(f"{folder}/{TOKENIZER}"):
        raise UserError(f"{folder}/{TOKENIZER} is missing; prepare the folder again")
    if manifest.vocab_size > settings.model.vocab_size:
        raise UserError(
            f"data.path '{folder}' uses a tokenizer of {manifest.vocab_size} entries, more than "
            f"model.vocab_size={settings.model.vocab_size}; raise it to {manifest.vocab_size}"
        )
    most = settings.data.max_epochs
    if most is not None and epochs(settings, manifest) > most:
        raise UserError(
            f"run.max_tokens={settings.run.max_tokens} is {epochs(settings, manifest):.2f} epochs "
            f"of the {manifest.tokens} tokens in '{folder}'; raise data.max_epochs to allow it"
        )
    return manifest


def check_schedule(settings: Settings) -> None:
    """Checks that the token budget is enough for a step, and for the warm-up.

    Raises:
        UserError: if it is not.
    """
    run, warmup = settings.run, settings.optim.warmup_steps
    steps = run.max_tokens // run.batch_tokens
    if steps == 0:
        raise UserError(
            f"run.max_tokens={run.max_tokens} is less than one batch of "
            f"run.batch_tokens={run.batch_tokens}; raise the one or lower the other"
        )
    if warmup >= steps:
        raise UserError(
            f"optim.warmup_steps={warmup} must be less than the run's {steps} optimizer steps "
            "(run.max_tokens / run.batch_tokens)"
        )


def check_checkpoint(checkpoint: Path, trainer: dict[str, Any]) -> None:
    """Checks that a run is continued by the kind of strategy that wrote its checkpoint.

    Raises:
        UserError: if one of the two is fsdp, whose checkpoints are folders of shards.
    """
    sharded = trainer.get("strategy", "auto") == "fsdp"
    if checkpoint.is_dir() != sharded:
        wrote = "fsdp" if checkpoint.is_dir() else "single or ddp"
        raise UserError(
            f"checkpoint '{checkpoint}' was written with trainer.strategy {wrote}; continue with "
            "that, or start a new run from its weights (--run.name NAME --ckpt_path RUN)"
        )


def check_trainer(trainer: dict[str, Any]) -> None:
    """Checks the strategy's name, and that no argument says what another section decides.

    Raises:
        UserError: for an unknown name, `single` with several devices, or an argument that is not
            Lightning's to set here.
    """
    for key in sorted(trainer.keys() & DECIDED_ELSEWHERE.keys()):
        raise UserError(f"trainer.{key} is not used; set {DECIDED_ELSEWHERE[key]} instead")
    name = trainer.get("strategy", "auto")
    if isinstance(name, str) and name not in STRATEGIES:
        hint = did_you_mean(name, STRATEGIES) or f"; choose from {', '.join(STRATEGIES)}"
        raise UserError(f"trainer.strategy '{name}' is not known{hint}")
    if str(trainer.get("precision", "")).startswith("16"):
        raise UserError(
            f"trainer.precision {trainer['precision']} would clip gradients before their scale is "
            "undone; use bf16-mixed or 32-true"
        )
    devices = trainer.get("devices", "auto")
    if name == "single" and str(devices) not in ("auto", "1", "-1"):
        raise UserError(
            f"trainer.strategy 'single' cannot use trainer.devices={devices}; choose ddp or fsdp"
        )


def epochs(settings: Settings, manifest: Manifest) -> float:
    """How often the token budget passes over the training data."""
    return settings.run.max_tokens / manifest.tokens


def check_validation_sets(settings: Settings, tokenizer: str) -> None:
    """Checks that every validation set exists, is of a known kind and has the run's tokens.

    `tokenizer` is where the run's `tokenizer.json` lies, which texts are encoded by.

    Raises:
        UserError: for the first that is not so.
    """
    for name, path in settings.data.val.items():
        if not exists(f"{path}/{MANIFEST}"):
            _check_texts(name, path)
            continue
        manifest = Manifest.read(path)
        manifest.check_sizes(path)
        if manifest.tokenizer != Tokenizer.load(local_copy(tokenizer)).fingerprint:
            raise UserError(
                f"data.val.{name}: '{path}' was prepared with another tokenizer than the run's; "
                "give its text instead, or prepare it again"
            )


def _check_texts(name: str, path: str) -> None:
    if is_remote(path) and not exists(path):
        raise UserError(
            f"data.val.{name}: '{path}' is neither a prepared data folder nor a file; give one "
            "of these, or a copy on this machine of a folder of texts"
        )
    if not is_remote(path) and not Path(path).exists():
        raise UserError(f"data.val.{name}: '{path}' does not exist")
    source_files(Source(name, Path(path)))
