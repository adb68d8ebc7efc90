"""The checked subject of a command: a training, or a trained run. Imports nothing slow.

A training begins anew, with another run's weights or none; continues from a checkpoint
of its own; or branches off another run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import folder_of, hash_file
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.recipe.keys import OF_TEXTS, check_effect
from dualpath_cli.recipe.schedule import stable_steps
from dualpath_cli.recipe.settings import DataSettings, Settings, settings_from
from dualpath_cli.run.checkpoint_files import fault_of, manifest_of
from dualpath_cli.run.exported_folder import LISTING
from dualpath_cli.run.run_folder import (
    CHECKPOINTS,
    LAST,
    RECIPE,
    STEP,
    TOKENIZER,
    VERSIONS,
    Run,
    branch_step,
    check_free,
    check_links,
    check_same_recipe,
    complete_checkpoints,
    newest_checkpoint,
    read_recipe,
    read_run,
    settings_of_parts,
    step_of,
)
from dualpath_cli.run.tables import (
    METRICS,
    VALIDATION,
    check_tables,
    is_validated,
    read_table,
)
from dualpath_cli.run.trained import check_as_trained, find_run
from dualpath_cli.spec.own_checks import check_as_begun, import_classes
from dualpath_cli.training.checks import (
    check_epochs,
    check_size,
    check_steps,
    check_training_data,
    check_validation_sets,
    verify_data,
)

_ANOTHER_NAME = "give this run a name (--run.name NAME)"
_NO_BRANCH = "leave run.branch_from out"
"""Ways to a new run, for one that cannot go on, and for one that cannot branch."""


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe that fits this machine, its data and its texts, with what was read."""

    settings: Settings
    folder: Path  # of the run
    manifest: Manifest  # of the training data
    tokenizer: Tokenizer
    # of the validation sets that are data folders, by path
    validation_manifests: dict[str, Manifest]


@dataclass(frozen=True)
class TrainingLaunch(CheckedRecipe):
    """A run to begin or to continue."""

    # the run and the checkpoint to continue from: its own, or of the trunk
    starts_from: Run | None = None
    weights: Path | None = None  # another run's checkpoint, for the initial weights
    # the facts of that checkpoint, also once continued
    init_facts: dict[str, Any] | None = None
    # another run's folder; a new run continues from its checkpoint
    trunk: Path | None = None
    data_since: int = 0  # the first step that trained on the run's data
    # the older step to which --ckpt-path last took the run back
    taken_back: int | None = None
    # lines on what the run's tables lack up to the checkpoint
    lost: tuple[str, ...] = ()
    dry_run: bool = False  # prints the plan, and neither trains nor writes

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint to continue from."""
        return None if self.starts_from is None else self.starts_from.checkpoint

    @property
    def step(self) -> int | None:
        """The step to continue from."""
        return None if self.starts_from is None else self.starts_from.step

    @property
    def way_to_new_run(self) -> str:
        """Part of a message: how to begin anew instead of from the checkpoint."""
        return _ANOTHER_NAME if self.trunk is None else _NO_BRANCH

    @property
    def has_all_steps(self) -> bool:
        """Whether the last step is done; a branch always has steps left."""
        return self.step is not None and self.step >= self.settings.run.steps

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, and the last one is scored on these sets."""
        own = self.starts_from
        if own is None or not self.has_all_steps:
            return False

        # Without sets there is nothing to score, and the run keeps those that it has.
        data = self.settings.data
        if not data.val:
            return True

        # `compare` takes the sets, and the texts drawn of them, from the newest part.
        first = settings_from(own.recipe)
        *_, newest = settings_of_parts(self.folder, first).values()
        scored_last = _scored(newest.data) == _scored(data)
        return scored_last and is_validated(self.folder, own.step, data.val)


def _scored(data: DataSettings) -> tuple[Any, ...]:
    """The settings that say which texts a validation scores."""
    return data.validation_sets, data.val_tokens, data.val_seed


@dataclass(frozen=True)
class RunLaunch:
    """A trained run, whose model a command reads or scores."""

    settings: Settings
    run: Run
    options: Any  # the command's own, as their `with_run` returns them

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

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
    """Checks a recipe, and finds the run to continue: the recipe's, or `start` of
    --ckpt-path.

    `new_data` continues with other data than before. Raises UserError for the first
    mistake.
    """
    checked = check_recipe(settings)
    own, taken_back = _own_run(checked, start)
    if own is not None:
        launch = continued(checked, own, taken_back, new_data)
    elif settings.run.branch_from is not None:
        launch = branched(checked, new_data)
    else:
        launch = fresh(checked)

    check_epochs(settings, checked.manifest, launch.data_since)
    training_data = {settings.data.path: checked.manifest}
    verify_data(settings, checked.validation_manifests | training_data)
    return launch


def check_recipe(settings: Settings) -> CheckedRecipe:
    """Checks a recipe against this machine, its data and its texts."""
    import_classes(settings.model, allowed=True)
    check_size(settings)
    manifest, tokenizer = check_training_data(settings)
    check_steps(settings)
    validation_manifests = check_validation_sets(settings, tokenizer)

    run = settings.run
    folder = folder_of("run.dir", Path(run.dir, run.recipe, run.name))
    check_links(folder)
    return CheckedRecipe(settings, folder, manifest, tokenizer, validation_manifests)


def _own_run(
    checked: CheckedRecipe, start: str | None
) -> tuple[Run | None, int | None]:
    """The run in the recipe's folder at the checkpoint to continue from, if there is
    one, and the step to which --ckpt-path last took it back."""
    folder = checked.folder
    own: Run | None = None
    taken_back: int | None = None
    newest = newest_checkpoint(folder)
    if newest is not None:
        own = read_run(folder, newest, step_of(newest))
        check_same_recipe(folder, own.recipe, checked.settings.as_recipe())
        taken_back = own.facts.get("taken_back")
    elif folder.exists():
        _check_not_finished(folder)
    if start is None:
        return own, taken_back

    # --ckpt-path goes back only once: the same command, repeated after an interruption,
    # continues from the newest step. By then run.keep may have dropped the checkpoint.
    given = Path(start)
    is_own = given.parent.resolve() == (folder / CHECKPOINTS).resolve()
    if is_own and STEP.fullmatch(given.name) and step_of(given) == taken_back:
        return own, taken_back

    older = find_run(start)
    if older.folder.resolve() != folder.resolve():
        raise UserError(
            f"--ckpt-path '{start}' is not a checkpoint of {folder}; to start from its "
            f"weights, give --run.init_from '{start}'"
        )
    if taken_back == older.step:
        return own, taken_back
    return older, older.step


def _check_not_finished(folder: Path) -> None:
    """Refuses to begin anew over the tables of a run whose checkpoints were removed."""
    if not all((folder / name).is_file() for name in (RECIPE, VERSIONS)):
        return  # no run has begun here

    # The recipe of this call may have another length. The last step is saved before its
    # validation.
    steps = settings_from(read_recipe(folder)).run.steps
    is_finished = any(row.step >= steps for row in read_table(folder / VALIDATION))
    # `fit` makes the folder of checkpoints before the first row; a branch has rows of
    # its trunk before.
    own_rows = [
        row for row in read_table(folder / METRICS) if row.step > branch_step(folder)
    ]
    has_begun = bool(own_rows) and not (folder / CHECKPOINTS).exists()
    # In a copy without symbolic links `last` is a folder.
    last = folder / CHECKPOINTS / LAST
    has_saved = last.is_symlink() or last.exists()

    if is_finished or has_begun or has_saved:
        raise UserError(
            f"{folder} holds the tables of a run whose checkpoints are gone; put one "
            f"back as {CHECKPOINTS}/step-N, give this run a name (--run.name NAME), or "
            "remove the folder"
        )


# Three beginnings


def fresh(checked: CheckedRecipe) -> TrainingLaunch:
    """A run that begins at step 0, with random weights or those of run.init_from."""
    # Only here: a run that began with such a value keeps it.
    check_effect(checked.settings)

    weights = init_facts = None
    if checked.settings.run.init_from is not None:
        weights, init_facts = _initial_weights(checked, checked.settings.run.init_from)
    check_free(checked.folder)
    return TrainingLaunch(**vars(checked), weights=weights, init_facts=init_facts)


def continued(
    checked: CheckedRecipe, own: Run, taken_back: int | None, new_data: bool
) -> TrainingLaunch:
    """A run that goes on from a checkpoint of its own."""
    _check_classes(checked, own, _ANOTHER_NAME)
    since = _data_since(own, checked.manifest, new_data, _ANOTHER_NAME)
    launch = TrainingLaunch(
        **vars(checked),
        starts_from=own,
        init_facts=own.facts.get("init_from"),
        data_since=since,
        taken_back=taken_back,
    )
    if launch.is_finished:
        return launch

    lost = check_tables(own.folder, settings_from(own.recipe), own.step)
    return replace(launch, lost=tuple(lost))


def branched(checked: CheckedRecipe, new_data: bool) -> TrainingLaunch:
    """A new run that goes on from a checkpoint of another run, its trunk."""
    trunk = _find_trunk(checked)
    _check_classes(checked, trunk, _NO_BRANCH)
    since = _data_since(trunk, checked.manifest, new_data, _NO_BRANCH)
    lost = check_tables(trunk.folder, settings_from(trunk.recipe), trunk.step)
    check_free(checked.folder)
    return TrainingLaunch(
        **vars(checked),
        starts_from=trunk,
        init_facts=trunk.facts.get("init_from"),
        trunk=trunk.folder,
        data_since=since,
        lost=tuple(lost),
    )


def _check_classes(checked: CheckedRecipe, begun: Run, way_out: str) -> None:
    """Refuses to continue a run whose custom classes have changed."""
    check_as_begun(begun.folder, begun.facts, checked.settings.model, way_out)


def _initial_weights(
    checked: CheckedRecipe, init_from: str
) -> tuple[Path, dict[str, Any]]:
    """Returns the checkpoint of run.init_from, and its facts. Raises UserError where
    model or tokenizer are others than the RUN's.
    """
    settings = checked.settings
    run = find_run(init_from)
    way_out = (
        "to train the model of run.init_from, give a recipe with the section model "
        f"of {run.folder / RECIPE} as the last --config"
    )
    free = {"model": OF_TEXTS}
    recipe = settings.as_recipe()
    check_same_recipe(run.folder, run.recipe, recipe, ("model",), free, way_out)
    if run.facts["tokenizer"] != checked.manifest.tokenizer:
        raise UserError(
            f"run.init_from '{run.folder}' has another tokenizer than the data in "
            f"'{settings.data.path}', so ids mean other texts; prepare the data with "
            f"--tokenizer {run.folder / TOKENIZER}"
        )
    check_as_trained(run, settings.model, allowed=True)

    is_exported = run.checkpoint == run.folder
    listing = run.folder / LISTING if is_exported else manifest_of(run.checkpoint)
    facts = {
        "run": init_from,
        "id": run.facts["id"],
        "step": run.step,
        "sha256": hash_file(listing) if listing.exists() else None,
    }
    return run.checkpoint, facts


def _data_since(begun: Run, manifest: Manifest, new_data: bool, way_out: str) -> int:
    """Returns the first step that trained on the data of a run that a checkpoint
    continues.

    Raises UserError for other data without `new_data`, with `way_out` as one way, and
    for data of other tokens.
    """
    trained_on = str(begun.facts.get("data_fingerprint"))
    since = begun.facts.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since

    if not new_data:
        raise UserError(
            f"{begun.folder} was trained on data with the fingerprint "
            f"{trained_on:.12}, the new data are {manifest.summary}; restore the old "
            f"data, {way_out}, or continue on the new data from their beginning "
            "(--new-data)"
        )
    if begun.tokenizer.fingerprint != manifest.tokenizer:
        raise UserError(
            f"{begun.folder} was trained with another tokenizer, and the ids of the "
            "new data mean other texts; prepare the new data with the run's tokenizer: "
            f"--tokenizer {begun.folder / TOKENIZER}"
        )
    return begun.step


def _find_trunk(checked: CheckedRecipe) -> Run:
    """Returns the run to branch from, at its last checkpoint that a run of this length
    shares.

    Under schedule `wsd` runs of all lengths are the same up to the cool-down of the
    shortest, so that shorter runs can branch off one long run, the trunk. Raises
    UserError if there is no such checkpoint, or if the two runs would differ before it.
    """
    settings = checked.settings
    assert settings.run.branch_from is not None
    if settings.optim.schedule != "wsd" or settings.optim.decay_sum is not None:
        raise UserError(
            "run.branch_from needs optim.schedule wsd, and weight_decay instead of "
            "decay_sum: else runs of different lengths differ from the first step on"
        )

    trunk = find_run(settings.run.branch_from)
    folder = trunk.folder
    free = {"run": {"max_tokens", "recipe"}}
    way_out = f"give the trunk's value, or {_NO_BRANCH}"
    recipe = settings.as_recipe()
    check_same_recipe(folder, trunk.recipe, recipe, free=free, way_out=way_out)

    of_trunk = stable_steps(settings_from(trunk.recipe))
    # The last step is the branch's own: it writes a checkpoint, and is validated.
    shared = min(stable_steps(settings), of_trunk, settings.run.steps - 1)
    usable = [
        checkpoint
        for checkpoint in complete_checkpoints(folder)
        if step_of(checkpoint) <= shared and fault_of(checkpoint) is None
    ]
    if not usable:
        raise UserError(
            f"run.branch_from: '{folder}' has no checkpoint up to step {shared}, the "
            "last before cool-down, second phase or end; save one (run.save_every) and "
            "keep it (run.keep_every)"
        )
    return find_run(str(max(usable, key=step_of)))
