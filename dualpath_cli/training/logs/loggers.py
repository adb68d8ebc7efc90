"""TensorBoard and Weights & Biases, beside the tables of a run."""

import importlib.util
import secrets
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import read_text, write_text
from dualpath_cli.recipe.settings import Settings

WANDB_ID = "wandb_id"
"""File of the run folder with the id of its W&B run, which stays if the folder is renamed."""


def loggers(settings: Settings, folder: Path, begins_at: int) -> list[Logger]:
    """TensorBoard if installed, W&B if a project is named.

    TensorBoard hides rows that an interrupted start wrote from step `begins_at` on.
    """
    run, found = settings.run, importlib.util.find_spec
    made: list[Logger] = []
    if run.tensorboard and found("tensorboard"):
        made.append(TensorBoardLogger(folder, name="", version="tensorboard", purge_step=begins_at))
    if run.wandb:
        if not found("wandb"):
            raise UserError("run.wandb needs the package wandb: pip install 'dualpath[wandb]'")
        kept = folder / WANDB_ID
        one = read_text(kept).strip() if kept.exists() else secrets.token_hex(8)
        title, recipe = f"{run.recipe}/{run.name}", settings.as_recipe()
        late = {"finish_timeout": 60.0}  # seconds to send rows at the run's end
        made.append(WandbLogger(title, folder, project=run.wandb, id=one, config=recipe,
                                settings=late))  # fmt: skip
    return made


def begin_wandb(trainer: Trainer, folder: Path) -> None:
    """On the first rank, starts or continues the W&B run; its id is kept in the run folder."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            try:
                one = logger.experiment.id
            except Exception as error:  # no network, no key, no such project
                reason = " ".join(str(error).split())[:160]
                raise UserError(
                    f"run.wandb={logger.name}: {type(error).__name__}: {reason}; with "
                    "WANDB_MODE=offline rows go to the run folder, and `wandb sync` sends them"
                ) from error
            write_text(folder / WANDB_ID, f"{one}\n")
