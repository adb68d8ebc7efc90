"""A trained model that a command's words name: found and checked without importing torch."""

from dataclasses import dataclass

from dualpath_cli.errors import UserError
from dualpath_cli.intervention import Intervention
from dualpath_cli.own_classes.checks import check_as_trained
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.run.average import averaged
from dualpath_cli.run.run_folder import TOKENIZER, Run
from dualpath_cli.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and the settings that it was trained with."""

    path: str
    """As the user gave it."""
    run: Run
    settings: Settings

    def check(self, change: Intervention | None) -> None:
        """Raises UserError for an override that makes no sense for the model."""
        if change is not None and (problem := change.problem(self.settings.model)):
            raise UserError(f"{change.name}: {problem} ({self.path})")

    def tokenizer(self) -> Tokenizer:
        """The training data's tokenizer. Raises UserError if it has more ids than the model."""
        tokenizer = Tokenizer.load(self.run.folder / TOKENIZER)
        ids, rows = tokenizer.vocab_size, self.settings.model.vocab_size
        if ids > rows:
            raise UserError(
                f"'{self.run.folder}': the tokenizer has {ids:,} ids, the model {rows:,}"
            )
        return tokenizer


def find(path: str, average: int = 1) -> Trained:
    """Finds the model of a run folder, a checkpoint inside one, or an exported file.

    `average`: so many checkpoints, up to that one.
    """
    run = averaged(run_file.find(path), average)
    settings = settings_from(run_folder.read_recipe(run.folder))
    check_as_trained(run, settings.model)
    return Trained(path, run, settings)
