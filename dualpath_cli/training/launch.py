"""The checked subject of a command: a training, or a trained run. Imports nothing slow.

A training begins anew, from its own newest checkpoint, from another run's weights, or as a branch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import has_step
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import fault_of, hash_file, manifest_of
from dualpath_cli.run.exported_folder import LISTING
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, VALIDATION, Run, step_of
from dualpath_cli.run.trained import find_run
from dualpath_cli.spec.own_checks import check_as_begun, check_as_trained, import_classes
from dualpath_cli.training import checks


@dataclass(frozen=True)
class TrainingLaunch:
    """A run to begin or to continue."""

    settings: Settings
    folder: Path
    manifest: Manifest  # of the training data
    checkpoint: Path | None = None  # where to continue from
    weights: Path | None = None  # another run's checkpoint, for the initial weights
    init_from: dict[str, Any] | None = None  # the facts of that checkpoint, also once continued
    trunk: Path | None = None  # another run's folder; a new run continues from its checkpoint
    data_since: int = 0  # the first step that trained on the run's data
    taken_back: int | None = None  # the older step to which --ckpt-path last took the run back
    dry_run: bool = False  # prints the plan, and neither trains nor writes

    @property
    def step(self) -> int | None:
        """The step to continue from."""
        return None if self.checkpoint is None else step_of(self.checkpoint)

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, and the last one is validated."""
        step, run = self.step, self.settings.run
        if step is None or self.trunk is not None or step < run.steps:
            return False
        return not self.settings.data.val or has_step(self.folder / VALIDATION, step)


@dataclass(frozen=True)
class StudyLaunch:
    """A trained run, whose model a command reads or scores."""

    settings: Settings
    run: Run
    options: Any  # the command's own, as their `read` returns them

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def out(self) -> Path | None:
        """The folder of the command's results, if there is one."""
        out = getattr(self.options, "out", None)
        return None if out is None else Path(out)


def to_train(
    settings: Settings, start: str | None = None, new_data: bool = False
) -> TrainingLaunch:
    """Checks a recipe, and finds the run to continue: the recipe's, or `start` of --ckpt-path.

    `new_data` continues with other data than before. Raises UserError for the first mistake.
    """
    import_classes(settings.model, allowed=True)
    checks.check_size(settings)
    manifest = checks.check_training_data(settings)
    checks.check_steps(settings)
    checks.check_validation_sets(settings, settings.data.path)
    folder = folder_of("run.dir", Path(settings.run.dir, settings.run.recipe, settings.run.name))
    recipe, checkpoint = settings.as_recipe(), run_folder.newest_checkpoint(folder)
    weights = init_from = trunk = taken_back = None
    if checkpoint is not None:
        run_folder.check_as_written(folder, checkpoint)
        run_folder.check_same_recipe(folder, recipe)
        taken_back = run_folder.facts_at(folder, checkpoint).get("taken_back")
    if start is not None:
        run = find_run(start)
        if run.folder.resolve() != folder.resolve():
            raise UserError(
                f"--ckpt-path '{start}' is no checkpoint of {folder}; to start from its weights, "
                f"give --run.init_from '{start}'"
            )
        # Once: the same words, repeated after an interruption, continue from the newest step.
        if taken_back != run.step:
            checkpoint, taken_back = run.checkpoint, run.step
    if checkpoint is None and settings.run.branch_from is not None:
        run = _find_trunk(settings)
        checkpoint, trunk = run.checkpoint, run.folder
    since = 0
    if checkpoint is None:  # a run that began with a value keeps it
        checks.check_effect(settings)
        if settings.run.init_from is not None:
            weights, init_from = _begin_with(settings, manifest)
    else:
        begun = trunk or folder
        facts = run_folder.facts_at(begun, checkpoint)
        check_as_begun(begun, facts, settings.model, "give this run a name (--run.name NAME)")
        since = _data_since(begun, checkpoint, manifest, new_data)
        init_from = facts.get("init_from")
    if checkpoint is None or trunk is not None:
        run_folder.check_free(folder)
    checks.check_epochs(settings, manifest, since)
    checks.verify_data(settings, training=True)
    return TrainingLaunch(
        settings, folder, manifest, checkpoint, weights, init_from, trunk, since, taken_back
    )


def _begin_with(settings: Settings, manifest: Manifest) -> tuple[Path, dict[str, Any]]:
    """Returns the checkpoint of run.init_from, and its facts. Raises UserError where model or
    tokenizer are others than the RUN's.
    """
    assert settings.run.init_from is not None
    run = find_run(settings.run.init_from)
    free, recipe = {"model": {"max_seq_len", "document_start"}}, settings.as_recipe()
    way_out = f"--config {run.folder / RECIPE} before the other gives the model of run.init_from"
    run_folder.check_same_recipe(run.folder, recipe, ("model",), free, way_out)
    if run.facts["tokenizer"] != manifest.tokenizer:
        raise UserError(
            f"run.init_from '{run.folder}' has another tokenizer than the data in "
            f"'{settings.data.path}', so ids mean other texts; prepare the data with --tokenizer "
            f"{run.folder / TOKENIZER}"
        )
    check_as_trained(run, settings.model, allowed=True)
    listing = run.folder / LISTING if run.checkpoint == run.folder else manifest_of(run.checkpoint)
    sha256 = hash_file(listing) if listing.exists() else None
    facts = {"id": run.facts["id"], "step": run.step, "sha256": sha256}
    return run.checkpoint, {"run": settings.run.init_from, **facts}


def _data_since(folder: Path, checkpoint: Path, manifest: Manifest, new_data: bool) -> int:
    """Returns the first step that trained on the data of a run that a checkpoint continues.

    Raises UserError for other data without `new_data`, and for data of other tokens.
    """
    before = run_folder.facts_at(folder, checkpoint)
    trained_on, since = str(before.get("data_fingerprint")), before.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since
    if not new_data:
        raise UserError(
            f"{folder} was trained on data with the fingerprint {trained_on:.12}, the new data are "
            f"{manifest.summary}; restore the old data, give this run a name (--run.name NAME), or "
            "continue on the new data from their beginning (--new-data)"
        )
    if Tokenizer.load(folder / TOKENIZER).fingerprint != manifest.tokenizer:
        raise UserError(
            f"{folder} was trained with another tokenizer, and the ids of the new data mean other "
            "texts; prepare the new data with the run's tokenizer: --tokenizer "
            f"{folder / TOKENIZER}"
        )
    return step_of(checkpoint)


def _find_trunk(settings: Settings) -> Run:
    """Returns the run to branch from, and its last checkpoint that a run of this length shares.

    Under schedule `wsd` runs of all lengths are the same up to the cool-down of the shortest, so
    that shorter runs can branch off one long run, the trunk. Raises UserError if there is no such
    checkpoint, or if the two runs would differ before it.
    """
    assert settings.run.branch_from is not None
    if settings.optim.schedule != "wsd" or settings.optim.decay_sum is not None:
        raise UserError(
            "run.branch_from needs optim.schedule wsd, and weight_decay instead of decay_sum: else "
            "runs of different lengths differ from the first step on"
        )
    folder = find_run(settings.run.branch_from).folder
    free = {"run": {"max_tokens", "recipe"}}
    run_folder.check_same_recipe(folder, settings.as_recipe(), free=free)
    trunk = settings_from(run_folder.read_recipe(folder))
    shared = min(stable_steps(settings), stable_steps(trunk))
    steps = {step_of(path): path for path in run_folder.complete_checkpoints(folder)}
    usable = [step for step, path in steps.items() if step <= shared and fault_of(path) is None]
    if not usable:
        raise UserError(
            f"run.branch_from: '{folder}' has no checkpoint up to step {shared}, where cool-down "
            "or second phase begins; save one (run.save_every) and keep it (run.keep_every)"
        )
    return find_run(str(steps[max(usable)]))
