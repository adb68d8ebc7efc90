"""The options that `ablate` and `routing` share; imports nothing slow."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place, Size
from dualpath_cli.data.documents import parse_source, split_name
from dualpath_cli.data.manifest import is_data_folder
from dualpath_cli.data.storage import is_remote
from dualpath_cli.recipe.options import OfRun, folder_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.run_folder import Run


@dataclass(frozen=True, kw_only=True)
class Texts(OfRun):
    """Options of a command that reads texts with a trained model."""

    sources: tuple[Place, ...] = ()
    """NAME=PATH: texts, .txt, .jsonl or .parquet, or prepared data folders; else the run's
    validation sets."""
    max_tokens: Size | None = None
    """At most so many tokens of each source, such as 20K, drawn at random from all of its documents
    with the seed data.val_seed; else data.val_tokens."""
    out: Place | None = None
    kind: ClassVar[str]
    """Of the results: names their folder in that of the run."""

    @property
    def folder(self) -> Path:
        """The folder to write to, once `read` knows the run."""
        assert self.out is not None
        return Path(self.out)

    def read(self, recipe: Recipe, run: Run) -> Self:
        """Puts texts given as NAME=PATH in the place of the run's validation sets.

        Returns the options with the folder to write to, by default RUN/<kind>/step-N.
        """
        texts = [_name_and_location(source) for source in self.sources]
        names = [name for name, _ in texts]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--sources has two texts named '{name}'; give NAME=PATH")
        if texts:
            recipe["data"]["val"] = dict(texts)
        if not recipe["data"]["val"]:
            raise UserError("the run names no validation set; give a text: --sources NAME=PATH")
        if self.max_tokens is not None:
            recipe["data"]["val_tokens"] = self.max_tokens
        out = run.folder / self.kind / f"step-{run.step:08d}" if self.out is None else self.out
        return replace(self, out=str(folder_of("--out", out)))


def _name_and_location(spec: str) -> tuple[str, str]:
    """Reads one of `--sources`; what lies on S3 is checked with the other validation sets."""
    if is_remote(spec):
        raise UserError(f"--sources '{spec}' has no name; give NAME={spec}")
    name, _, location = spec.partition("=")
    if is_remote(location):
        return name, location
    given, path = split_name(spec)
    if is_data_folder(path):
        return given or Path(path).resolve().name, path
    source = parse_source(spec)
    return source.name, str(source.path)
