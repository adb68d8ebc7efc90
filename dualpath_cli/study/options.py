"""The option that `ablate` and `routing` share; imports nothing slow."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place
from dualpath_cli.recipe.options import OfRun, folder_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.run_folder import Run


@dataclass(frozen=True, kw_only=True)
class StudyOptions(OfRun):
    """Options of a command that reads the validation sets with a trained model."""

    out: Place | None = None
    kind: ClassVar[str]
    """Kind of the results, and name of their folder in the run folder."""

    @property
    def folder(self) -> Path:
        """The folder to write to, once `read` knows the run."""
        assert self.out is not None
        return Path(self.out)

    def read(self, recipe: Recipe, run: Run) -> Self:
        """Returns the options with the folder to write to, by default RUN/<kind>/step-N."""
        if not recipe["data"]["val"]:
            raise UserError(
                "the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER"
            )
        out = run.folder / self.kind / f"step-{run.step:08d}" if self.out is None else self.out
        return replace(self, out=str(folder_of("--out", out)))
