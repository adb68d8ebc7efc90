"""Finds and checks the trained model that a command's words name. Torch-free."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import near_sibling
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.recipe.keys import OF_TEXTS
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run.checkpoint_files import manifest_of
from dualpath_cli.run.exported_folder import is_exported, read_folder
from dualpath_cli.run.run_folder import (
    CHECKPOINTS,
    RECIPE,
    STEP,
    Run,
    newest_checkpoint,
    other_model,
    read_run,
    step_of,
)
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import changed_classes, import_classes


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and the settings that it was trained with."""

    path: str  # as the user gave it
    run: Run
    settings: Settings

    def check(self, change: Intervention | None) -> None:
        """Raises UserError for an override that the model cannot have."""
        if change is None:
            return
        problem = change.problem(self.settings.model)
        if problem:
            raise UserError(f"{change.name}: {problem} ({self.path})")


def find_trained(path: str, own_classes: bool = False) -> Trained:
    """Finds the model of any RUN; `own_classes` allows importing its custom classes."""
    run = find_run(path)
    settings = settings_from(run.recipe)
    check_as_trained(run, settings.model, own_classes)
    return Trained(path, run, settings)


def check_as_trained(
    run: Run, config: ModelConfig, allowed: bool, named: Mapping[str, Any] = {}
) -> None:
    """Imports a run's classes; says which have changed since its training."""
    import_classes(config, allowed=allowed, read=[run.folder], named=named)
    for path in changed_classes(run.facts, config):
        if is_first_rank():
            say(f"{path} has changed since {run.checkpoint} was trained with it")


def find_run(path: str) -> Run:
    """Understands any RUN: a run folder, a checkpoint inside one, or an exported
    folder."""
    given = Path(path)
    if is_exported(given):
        return read_folder(given)
    if not given.exists():
        raise UserError(f"no run or checkpoint at '{path}'{_hint_at_run(given)}")

    if (given / RECIPE).is_file():
        newest = newest_checkpoint(given)
        if newest is None:
            raise UserError(
                f"run '{path}' has no complete checkpoint yet; let fit write one first"
            )
        return read_run(given, newest, step_of(newest))

    # Links are followed up to the manifest's place: `last` is a link to a checkpoint,
    # which may be one to another disk.
    while given.is_symlink() and not manifest_of(given).exists():
        given = given.parent / given.readlink()
    checkpoint = given.parent.resolve() / given.name

    folder = checkpoint.parent.parent
    if not STEP.fullmatch(checkpoint.name) or not (folder / RECIPE).is_file():
        raise UserError(
            f"'{path}' is neither a run folder (it would hold {RECIPE}), nor a "
            f"checkpoint inside one ({CHECKPOINTS}/step-...), nor a folder of "
            "dualpath export"
        )
    return read_run(folder, checkpoint, step_of(checkpoint))


def _hint_at_run(missing: Path) -> str:
    """The run that a path without a run probably means, or where runs are."""
    return near_sibling(missing) or "; runs are kept as runs/<recipe>/<name>"


def check_as_run(run: Run, model: ModelConfig) -> None:
    """Raises UserError for keys under which the run's weights would compute something
    else.

    The weights would load under any keys that give the same shapes, and the results
    would be stored under the run's name.
    """
    trained = run.recipe.get("model", {})
    different = other_model(trained, asdict(model), free=OF_TEXTS)
    if different:
        key, before, value = different
        way_out = "leave it out, or train a run with it (fit --run.name NAME)"
        if key == "model.loops" and isinstance(value, int):
            way_out = f"to force other loops: ablate --loops {value}"
        elif key == "model.core_loops":
            way_out = f"to force other repetitions: generate --intervention R={value}"
        elif key == "model.top_k":
            way_out = "to take other numbers of experts: ablate --suite experts"
        raise UserError(
            f"{key}={value}, but '{run.folder}' was trained with {before}; {way_out}"
        )

    start = model.document_start
    end_of_text = run.tokenizer.eot_id
    if start not in (trained.get("document_start"), None, end_of_text):
        raise UserError(
            f"model.document_start={start} is not the end-of-text token of "
            f"'{run.folder}', which is {end_of_text}; give {end_of_text}, or null"
        )
