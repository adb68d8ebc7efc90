"""Weights & Biases as a Lightning logger: one W&B run for each run, also when it is continued.

Its id is drawn with the first row and kept in the run folder: the folder may be renamed, and runs
of one name in two checkouts are two. Rows are logged at their optimizer step: W&B ignores those
that a continued run repeats. Only the first rank logs. A failure ends no training: rows go to a
folder on the disk, or to metrics.csv alone, and a line says which.
"""

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from dualpath_cli.files import read_text, write_text
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.training.stopping import StopTraining

ID = "wandb_id"
"""File of the run folder that holds the id of the W&B run."""
FINISH = 60.0
"""Seconds that the end of a run waits for rows that are still to be sent."""


class WandbLog(Logger):
    """Sends each row to one W&B run."""

    def __init__(
        self, run_folder: Path, project: str, title: str, recipe: Recipe, say: Callable[[str], None]
    ) -> None:
        """`title` is the name shown; `say` prints what goes wrong."""
        super().__init__()
        self._folder, self._project, self._title = run_folder, project, title
        self._recipe, self._say = recipe, say
        self._run: Any = None
        self._off = False

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str:
        """The id of the W&B run, once it has begun on the first rank."""
        return "" if self._run is None else str(self._run.id)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the recipe is sent as the run begins."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Sends a row of optimizer step `step`."""
        if self._off:
            return
        try:
            if self._run is None:
                self._run = self._begin()
            self._run.log(dict(metrics), step=step)
        except Exception as error:  # of a service beside the training
            self._off = True
            self._say(f"W&B: {_line(error)}; from step {step} on, rows are in metrics.csv alone")

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Ends this part of the run, and waits a minute for rows still to be sent."""
        if self._run is None:
            return
        try:
            # For Lightning a run that was asked to stop has "failed", too.
            fine = status == "success" or isinstance(sys.exception(), StopTraining)
            self._run.finish(exit_code=0 if fine else 1)
        except Exception as error:
            self._say(f"W&B: {_line(error)}; its last rows may be missing there")
        self._run = None

    def _begin(self) -> Any:
        """Starts or continues the W&B run; offline if it cannot be reached."""
        settings = wandb.Settings(finish_timeout=FINISH)
        run: dict[str, Any] = {
            "project": self._project,
            "name": self._title,
            "id": _id_in(self._folder),
            "dir": str(self._folder),
            "config": self._recipe,
            "settings": settings,
        }
        try:
            return wandb.init(**run, resume="allow")
        except Exception as error:  # no network, no key, no such project
            place = self._folder / "wandb"
            self._say(f"W&B: {_line(error)}; rows go to {place}, `wandb sync` sends them later")
        wandb.teardown()  # its service takes the id for one in use
        return wandb.init(**run, mode="offline")


def _id_in(run_folder: Path) -> str:
    """The id of a run folder's W&B run, drawn where there is none."""
    path = run_folder / ID
    if not path.exists():
        write_text(path, secrets.token_hex(8) + "\n")
    return read_text(path).strip()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
