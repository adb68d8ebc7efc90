"""The checked subject of a command: a training, or a trained run. Imports nothing slow.

A training begins anew, from its own newest checkpoint, from another run's weights, or
as a branch.
"""

import os
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.processes import cores
from dualpath_cli.data.documents import FORMATS, Source, found, read_documents
from dualpath_cli.data.manifest import Manifest, is_data_folder, readable
from dualpath_cli.data.rows import is_known
from dualpath_cli.data.storage import exists, is_remote, local_copy
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.verification import verify_chunks
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.keys import OF_TEXTS, check_effect
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.recipe.schedule import check_loops, micro_batches, stable_steps
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import fault_of, hash_file, manifest_of
from dualpath_cli.run.exported_folder import LISTING
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, Run, step_of
from dualpath_cli.run.tables import check_tables, is_validated
from dualpath_cli.run.trained import find_run
from dualpath_cli.spec.own_checks import (
    check_as_begun,
    check_as_trained,
    import_classes,
)


@dataclass(frozen=True)
class TrainingLaunch:
    """A run to begin or to continue."""

    settings: Settings
    folder: Path
    manifest: Manifest  # of the training data
    checkpoint: Path | None = None  # where to continue from
    weights: Path | None = None  # another run's checkpoint, for the initial weights
    # the facts of that checkpoint, also once continued
    init_from: dict[str, Any] | None = None
    # another run's folder; a new run continues from its checkpoint
    trunk: Path | None = None
    data_since: int = 0  # the first step that trained on the run's data
    # the older step to which --ckpt-path last took the run back
    taken_back: int | None = None
    # lines on what the run's tables lack up to the checkpoint
    lost: tuple[str, ...] = ()
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
        return is_validated(self.folder, step, self.settings.data.val)


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
    """Checks a recipe, and finds the run to continue: the recipe's, or `start` of
    --ckpt-path.

    `new_data` continues with other data than before. Raises UserError for the first
    mistake.
    """
    import_classes(settings.model, allowed=True)
    check_size(settings)
    manifest = check_training_data(settings)
    check_steps(settings)
    check_validation_sets(settings, settings.data.path)
    folder = folder_of(
        "run.dir", Path(settings.run.dir, settings.run.recipe, settings.run.name)
    )
    run_folder.check_links(folder)
    recipe, checkpoint = settings.as_recipe(), run_folder.newest_checkpoint(folder)
    weights = init_from = trunk = taken_back = None
    lost: list[str] = []
    if checkpoint is not None:
        run_folder.check_as_written(folder, checkpoint)
        run_folder.check_same_recipe(folder, recipe)
        taken_back = run_folder.facts_at(folder, checkpoint).get("taken_back")
    if start is not None:
        run = find_run(start)
        if run.folder.resolve() != folder.resolve():
            raise UserError(
                f"--ckpt-path '{start}' is no checkpoint of {folder}; to start from "
                f"its weights, give --run.init_from '{start}'"
            )
        # Once: the same words, repeated after an interruption, continue from the newest
        # step.
        if taken_back != run.step:
            checkpoint, taken_back = run.checkpoint, run.step
    if checkpoint is None and settings.run.branch_from is not None:
        run = _find_trunk(settings)
        checkpoint, trunk = run.checkpoint, run.folder
    since = 0
    if checkpoint is None:  # a run that began with a value keeps it
        check_effect(settings)
        if settings.run.init_from is not None:
            weights, init_from = _begin_with(settings, manifest)
    else:
        begun = trunk or folder
        facts = run_folder.facts_at(begun, checkpoint)
        check_as_begun(
            begun, facts, settings.model, "give this run a name (--run.name NAME)"
        )
        since = _data_since(begun, checkpoint, manifest, new_data)
        init_from = facts.get("init_from")
        if trunk is not None or step_of(checkpoint) < settings.run.steps:
            first = settings_from(run_folder.read_recipe(begun))
            lost = check_tables(begun, first, step_of(checkpoint))
    if checkpoint is None or trunk is not None:
        run_folder.check_free(folder)
    check_epochs(settings, manifest, since)
    verify_data(settings, training=True)
    return TrainingLaunch(
        settings,
        folder,
        manifest,
        checkpoint,
        weights,
        init_from,
        trunk,
        since,
        taken_back,
        tuple(lost),
    )


def _begin_with(settings: Settings, manifest: Manifest) -> tuple[Path, dict[str, Any]]:
    """Returns the checkpoint of run.init_from, and its facts. Raises UserError where
    model or tokenizer are others than the RUN's.
    """
    assert settings.run.init_from is not None
    run = find_run(settings.run.init_from)
    free, recipe = {"model": OF_TEXTS}, settings.as_recipe()
    way_out = (
        f"a recipe with the section model of {run.folder / RECIPE}, as the last "
        "--config, gives the model of run.init_from"
    )
    run_folder.check_same_recipe(run.folder, recipe, ("model",), free, way_out)
    if run.facts["tokenizer"] != manifest.tokenizer:
        raise UserError(
            f"run.init_from '{run.folder}' has another tokenizer than the data in "
            f"'{settings.data.path}', so ids mean other texts; prepare the data with "
            f"--tokenizer {run.folder / TOKENIZER}"
        )
    check_as_trained(run, settings.model, allowed=True)
    listing = (
        run.folder / LISTING
        if run.checkpoint == run.folder
        else manifest_of(run.checkpoint)
    )
    sha256 = hash_file(listing) if listing.exists() else None
    facts = {"id": run.facts["id"], "step": run.step, "sha256": sha256}
    return run.checkpoint, {"run": settings.run.init_from, **facts}


def _data_since(
    folder: Path, checkpoint: Path, manifest: Manifest, new_data: bool
) -> int:
    """Returns the first step that trained on the data of a run that a checkpoint
    continues.

    Raises UserError for other data without `new_data`, and for data of other tokens.
    """
    before = run_folder.facts_at(folder, checkpoint)
    trained_on, since = str(before.get("data_fingerprint")), before.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since
    if not new_data:
        raise UserError(
            f"{folder} was trained on data with the fingerprint {trained_on:.12}, the "
            f"new data are {manifest.summary}; restore the old data, give this run a "
            "name (--run.name NAME), or continue on the new data from their beginning "
            "(--new-data)"
        )
    if Tokenizer.load(folder / TOKENIZER).fingerprint != manifest.tokenizer:
        raise UserError(
            f"{folder} was trained with another tokenizer, and the ids of the new data "
            "mean other texts; prepare the new data with the run's tokenizer: "
            f"--tokenizer {folder / TOKENIZER}"
        )
    return step_of(checkpoint)


def _find_trunk(settings: Settings) -> Run:
    """Returns the run to branch from, and its last checkpoint that a run of this length
    shares.

    Under schedule `wsd` runs of all lengths are the same up to the cool-down of the
    shortest, so that shorter runs can branch off one long run, the trunk. Raises
    UserError if there is no such checkpoint, or if the two runs would differ before it.
    """
    assert settings.run.branch_from is not None
    if settings.optim.schedule != "wsd" or settings.optim.decay_sum is not None:
        raise UserError(
            "run.branch_from needs optim.schedule wsd, and weight_decay instead of "
            "decay_sum: else runs of different lengths differ from the first step on"
        )
    folder = find_run(settings.run.branch_from).folder
    free = {"run": {"max_tokens", "recipe"}}
    run_folder.check_same_recipe(folder, settings.as_recipe(), free=free)
    trunk = settings_from(run_folder.read_recipe(folder))
    shared = min(stable_steps(settings), stable_steps(trunk))
    steps = {step_of(path): path for path in run_folder.complete_checkpoints(folder)}
    usable = [
        step
        for step, path in steps.items()
        if step <= shared and fault_of(path) is None
    ]
    if not usable:
        raise UserError(
            f"run.branch_from: '{folder}' has no checkpoint up to step {shared}, where "
            "cool-down or second phase begins; save one (run.save_every) and keep it "
            "(run.keep_every)"
        )
    return find_run(str(steps[max(usable)]))


# Checks of a recipe against this machine, its data and its texts


def check_size(settings: Settings) -> None:
    """Raises UserError unless the float32 weights fit into the machines that share
    them."""
    memory, shared = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        ("fsdp", "hsdp"),
    )
    size, trainer = 4 * parameters(settings.model), settings.trainer
    if size > memory * (trainer.num_nodes if trainer.strategy in shared else 1):
        raise UserError(
            f"the model's weights are {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory; lower model.n_layers, d_model or the "
            "FFN widths"
        )


def check_training_data(settings: Settings) -> Manifest:
    """Raises UserError unless the data folder is whole and fits the model; returns its
    manifest."""
    folder = settings.data.path
    manifest = _whole(folder, settings, f"data.path '{folder}'")
    manifest.check_tokenizer(folder)
    if manifest.vocab_size > settings.model.vocab_size:
        raise UserError(
            f"data.path '{folder}' uses a tokenizer of {manifest.vocab_size} entries, "
            f"more than model.vocab_size={settings.model.vocab_size}; raise it to "
            f"{manifest.vocab_size}"
        )
    start = settings.model.document_start
    if start is not None and start != manifest.eot_id:
        raise UserError(
            f"model.document_start={start} does not begin documents in data.path "
            f"'{folder}'; its end-of-text token is {manifest.eot_id}"
        )
    return manifest


def unused_rows(settings: Settings, manifest: Manifest) -> str:
    """A line if the embedding has many rows that no token uses; else empty."""
    rows, entries = settings.model.vocab_size, manifest.vocab_size
    if rows <= 1.1 * entries:
        return ""
    return (
        f"model.vocab_size={rows:,} has rows for no token: the tokenizer has "
        f"{entries:,} entries"
    )


def epochs(settings: Settings, manifest: Manifest, since: int = 0) -> float:
    """Passes over the blocks of the training data in the run's steps from step `since`
    on.

    A block has one token more than it trains; tokens left over at the end of a chunk
    are not used.
    """
    run, length = settings.run, settings.model.max_seq_len
    trained = (run.steps - since) * run.batch_tokens
    return trained / (length * sum(manifest.chunk_blocks(length + 1)))


def check_epochs(settings: Settings, manifest: Manifest, since: int) -> None:
    """Raises UserError if the budget from step `since` on takes more than
    `data.max_epochs`."""
    wanted, most = epochs(settings, manifest, since), settings.data.max_epochs
    if most is not None and wanted > most:
        rest, length = (
            f" from step {since} on" if since else "",
            settings.model.max_seq_len,
        )
        raise UserError(
            f"run.max_tokens={settings.run.max_tokens} is{rest} {wanted:.2f} epochs of "
            f"the {sum(manifest.chunk_blocks(length + 1))} sequences of {length} "
            f"tokens in '{settings.data.path}'; raise data.max_epochs={most:g} to "
            f"{ceil(100 * wanted) / 100}"
        )


def check_steps(settings: Settings) -> None:
    """Raises UserError unless the budget is enough for a step and the warm-up, a step
    is whole micro-batches on its devices, and the model can have each step's loops.

    If the number of devices is not known yet, one is assumed, and `fit` checks again
    with all.
    """
    run, warmup = settings.run, settings.optim.warmup_steps
    if warmup >= run.steps:
        raise UserError(
            f"optim.warmup_steps={warmup} must be less than the run's {run.steps} "
            f"optimizer steps (run.max_tokens={run.max_tokens} / "
            f"run.batch_tokens={run.batch_tokens})"
        )
    near, most = settings.trainer.devices_of_a_node or 1, 8 * cores()
    if settings.trainer.accelerator == "cpu" and near > most:
        raise UserError(
            f"trainer.devices={near} is too many for {cores()} cores; use {most}"
        )
    ranks = near * settings.trainer.num_nodes
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1 and ranks == 1 and settings.trainer.devices_of_a_node is not None:
        raise UserError(
            f"srun has started {tasks} tasks (SLURM_STEP_NUM_TASKS), but "
            "trainer.devices=1 needs one task; give srun --ntasks=1, or set devices to "
            "the number of tasks on a node"
        )
    micro_batches(run.batch_tokens, settings.model.max_seq_len, ranks, run.micro_batch)
    check_loops(run, settings.model)


def check_validation_sets(settings: Settings, folder: str | Path) -> None:
    """Raises UserError unless every validation set exists, is readable and has the
    run's tokens.

    The first document of a text on this disk is read, to find an empty or binary file
    at once. `folder` holds the run's `tokenizer.json`.
    """
    for name, of_set in settings.data.validation_sets.items():
        path = of_set.path
        place = f"data.val.{name}: '{path}'"
        with readable(place):
            if is_data_folder(path):
                if of_set.field != "text":
                    raise UserError(
                        f"{place} is a prepared data folder, whose tokens have no "
                        f"field '{of_set.field}'; leave `field` out"
                    )
                manifest = _whole(path, settings, place)
                tokenizer = Tokenizer.load(local_copy(f"{folder}/{TOKENIZER}"))
                if manifest.tokenizer != tokenizer.fingerprint:
                    raise UserError(
                        f"{place} was prepared with another tokenizer than the run's; "
                        "give the text instead, or prepare the folder again"
                    )
            elif not exists(path) and (is_remote(path) or not any(found(path))):
                raise UserError(
                    f"{place}: no such file or prepared data folder; --data.val "
                    "'{NAME: PATH}' replaces all sets, '{}' means none"
                )
            elif is_remote(path):
                if not is_known(Path(path)):
                    raise UserError(
                        f"{place}: its format is not known by its name; give {FORMATS}"
                    )
            elif not any(read_documents(Source(name, Path(path), of_set.field))):
                raise UserError(f"{place} holds no text to validate on")


def _whole(folder: str, settings: Settings, place: str) -> Manifest:
    """The manifest of a data folder; UserError unless a chunk is as long as one
    block."""
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    manifest.check_index(folder)
    block, longest = settings.model.max_seq_len + 1, max(manifest.chunk_tokens)
    if longest < block:
        raise UserError(
            f"{place} has no {block} tokens in a chunk (the longest has {longest}), "
            f"which model.max_seq_len={settings.model.max_seq_len} needs; lower it or "
            "prepare more data"
        )
    return manifest


def verify_data(settings: Settings, *, training: bool) -> None:
    """Raises UserError for a changed chunk on this disk, of training data only if
    `training`.

    Chunks from S3 are verified when fetched. The last check, as it may take minutes.
    """
    paths = [of_set.path for of_set in settings.data.validation_sets.values()]
    folders = [path for path in paths if is_data_folder(path)]
    folders += [settings.data.path] if training else []
    for folder in dict.fromkeys(folders):
        if not is_remote(folder):
            verify_chunks(Path(folder), Manifest.read(folder), settings.data.verify)
