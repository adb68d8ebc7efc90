"""Options of commands that build a model from a recipe: `fit`, and those that read a
run. Torch-free."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from dualpath_cli.base.files import folder_of
from dualpath_cli.base.folders import folder_inside
from dualpath_cli.base.ranges import Place
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run.run_folder import Run
from dualpath_cli.spec.own_checks import OwnClasses


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Options of a command with a recipe; each key of the recipe is an option, too."""

    config: tuple[Place, ...] = field(
        default=(), metadata={"also": ("-c",), "each": True}
    )
    """Recipe (a path or a packaged name) whose keys replace the run's, such as
    validation sets. Of several, later ones win."""
    print_config: bool = False
    """Print the resolved recipe and do nothing else."""


@dataclass(frozen=True, kw_only=True)
class Fit(RecipeOptions):
    """Trains a model from a recipe; the same command continues an interrupted run. Each
    key of a recipe is an option: --SECTION.KEY VALUE.

      dualpath fit --config quickstart
      dualpath fit --config f160m_a25_k4 --config cluster_8 --dry-run
    """

    config: tuple[Place, ...] = field(metadata={"also": ("-c",), "each": True})
    """Recipe: a path or a packaged name such as quickstart. Of several, later ones
    win."""
    ckpt_path: Place | None = None
    """An older checkpoint of this run, to go back to it."""
    new_data: bool = False
    """Continue the run on other data than before, from the beginning of the new data;
    without this option other data are refused."""
    dry_run: bool = False
    """Check recipe, data and machine, print the resolved recipe and the plan, and do
    not train."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(OwnClasses, RecipeOptions):
    """Options of a command that builds a trained model from its run's recipe."""

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder; recipe, tokenizer and
    model are read from it."""

    def with_run(self, run: Run) -> Self:
        """The options, once RUN is known."""
        return self

    def check(self, settings: Settings) -> None:
        """Checks the options that `with_run` has returned against the settings."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """Options of a command that writes its results into the run's folder."""

    out: Place | None = None
    kind: ClassVar[str]
    """Kind of the results, and name of their folder in the run folder."""

    @property
    def folder(self) -> Path:
        """The folder to write to, once `with_run` knows the run."""
        assert self.out is not None
        return Path(self.out)

    def with_run(self, run: Run) -> Self:
        """Returns the options with the folder to write to, by default
        RUN/<kind>/step-N.

        Raises UserError if a link leads out of RUN there.
        """
        out: str | Path | None = self.out
        if out is None:
            out = folder_inside(run.folder, self.kind, f"step-{run.step:08d}")
        return replace(self, out=str(folder_of("--out", out)))


@dataclass(frozen=True, kw_only=True)
class Validate(RunOptions):
    """Scores a run's model on its validation sets. --data.val.NAME PATH adds a set;
    --data.val '{NAME: PATH}' replaces all sets.

    Each window of a text starts after an end-of-text token. Windows of evaluate's
    rolling_bpb start after the preceding token; rolling_bpb is mostly lower.

      dualpath validate --ckpt-path runs/quickstart/default --data.val_tokens 3000
    """
