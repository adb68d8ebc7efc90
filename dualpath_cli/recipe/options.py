"""Options that commands share, and checks of values; imports nothing slow."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.folders import check_inside
from dualpath_cli.base.processes import visible_gpus
from dualpath_cli.base.ranges import Place, check_path, check_ranges
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.spec.intervention import Intervention, parse_overrides


@dataclass(frozen=True, kw_only=True)
class WithRecipe:
    """Options of a command with a recipe; each key of the recipe is an option, too."""

    config: tuple[Place, ...] = field(
        default=(), metadata={"also": ("-c",), "each": True}
    )
    """Recipe: a path, or the bare name of a packaged recipe. Of several, later ones
    win."""
    print_config: bool = False
    """Print the resolved recipe and do nothing else."""


@dataclass(frozen=True, kw_only=True)
class Fit(WithRecipe):
    """Train a model from a recipe; the same command continues an interrupted run."""

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
class OwnClasses:
    """Option of a command that reads the model's configuration from a run or folder."""

    own_classes: bool = False
    """Import the Python classes that a run or folder names as its model's gate or
    combination. This runs the code of the classes: only for runs that you trust."""


@dataclass(frozen=True, kw_only=True)
class OfRun(OwnClasses, WithRecipe):
    """Options of a command that builds a trained model from its run's recipe."""

    ckpt_path: Place
    """Run folder or checkpoint to score; recipe, tokenizer and model are read from the
    run."""

    def read(self, run: Any) -> Self:
        """The options, once RUN is known."""
        return self

    def check(self, settings: Settings) -> None:
        """Checks the options that `read` has returned against the settings."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions(OfRun):
    """Options of a command that writes its results into the run's folder."""

    out: Place | None = None
    kind: ClassVar[str]
    """Kind of the results, and name of their folder in the run folder."""

    @property
    def folder(self) -> Path:
        """The folder to write to, once `read` knows the run."""
        assert self.out is not None
        return Path(self.out)

    def read(self, run: Any) -> Self:
        """Returns the options with the folder to write to, by default
        RUN/<kind>/step-N.

        Raises UserError if a link leads out of RUN there.
        """
        out: str | Path | None = self.out
        if out is None:
            way_out = "remove the link, or give a folder by --out"
            out = check_inside(
                run.folder, run.folder / self.kind / f"step-{run.step:08d}", way_out
            )
        return replace(self, out=str(folder_of("--out", out)))


@dataclass(frozen=True, kw_only=True)
class Validate(OfRun):
    """Scores a run's model on its validation sets. --data.val.NAME PATH adds a set;
    --data.val '{NAME: PATH}' replaces all sets.

    Each window of a text starts after an end-of-text token. Windows of evaluate's
    rolling_bpb start after the preceding token; rolling_bpb is mostly lower.
    """


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Options of a command that forces a model's loops or gates: see
    `parse_overrides`."""

    loops: int | None = None
    """Forced loops of every deep path."""
    intervention: tuple[str, ...] = ()
    """Other overrides, named as in results: gates=1,0, shuffled, shuffled:7, experts=1,
    experts=random:7, halting=0.1, skip=0.1, kv_slots=1, layers=0,2; K=3 is --loops
    3."""

    def __post_init__(self) -> None:
        check_ranges(self, {"loops": (1, 1000)})


@dataclass(frozen=True)
class Sampling:
    """Changes of probabilities before an id is drawn, as in transformers; by default
    none.

    Raises:
        ValueError: for a number out of its range.
    """

    temperature: float = 1.0
    """Divide logits by this: below 1, likely tokens become likelier."""
    top_k: int | None = None
    """Draw from the K likeliest tokens, with ties at the last; 0 is off."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    greedy: bool = False
    """Always take the likeliest token."""

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise ValueError(
                "temperature must be above 0, not 0; greedy takes the likeliest"
            )
        check_ranges(
            self,
            {"temperature": (1e-6, 1e6), "top_k": (0, 1 << 24), "top_p": (1e-9, 1)},
        )


@dataclass(frozen=True, kw_only=True)
class Where:
    """Options of a command that runs a model without a Trainer."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products: float32 or bfloat16."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        name = self.device
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
            raise UserError(
                f"unknown device '{name}'; choose from auto, cpu, cuda, cuda:N"
            )
        there = visible_gpus() if name.startswith("cuda") else None
        if there is not None and int(name[5:] or 0) >= there:
            raise UserError(
                f"--device {name}: {there} such devices are here; give cpu or auto"
            )


def path_of(option: str, text: str) -> Path:
    """Returns the path of a text. Raises UserError unless the text can be a path
    here."""
    try:
        check_path(option, text)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Path(text)


def folder_of(option: str, text: str | Path) -> Path:
    """A folder that exists or can be made. Raises UserError where a file is in the
    way."""
    folder = path_of(option, str(text))
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{option} '{folder}': '{existing}' is a file; give a folder")
    return folder


def read_overrides(options: Overrides) -> Intervention | None:
    """Reads `--intervention` and `--loops`; None without an override."""
    loops = [] if options.loops is None else [f"K={options.loops}"]
    change = parse_overrides([*loops, *options.intervention])
    if change is not None and change.tokens is not None:
        raise UserError(
            f"--intervention tokens={change.tokens}: only `dualpath ablate --suite "
            "token-classes` tags classes of tokens"
        )
    return change
