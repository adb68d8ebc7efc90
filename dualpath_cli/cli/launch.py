"""From a command's words to a checked launch: recipes are merged, the RUN's own before the given
ones, then keys and types are checked (`settings`), then data, validation sets, an earlier run.
Imports nothing slow.
"""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Any

from dualpath_cli.cli.commands import Command
from dualpath_cli.cli.words import Line
from dualpath_cli.errors import UserError
from dualpath_cli.flops.count import parameters
from dualpath_cli.output import is_first_rank
from dualpath_cli.own_classes.checks import check_as_begun, check_as_trained, import_classes
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.options import folder_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.schedule import check_loops, epochs, micro_batches, stable_steps
from dualpath_cli.recipe.settings import SECTIONS, Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import fault_of
from dualpath_cli.run.run_folder import TOKENIZER, Run, step_of
from dualpath_cli.run.trained import averaged, find_run
from dualpath_cli.system import cores, has_step
from dualpath_cli.text.documents import FORMATS, Source, read_documents
from dualpath_cli.text.manifest import Manifest, is_data_folder, readable
from dualpath_cli.text.rows import is_known
from dualpath_cli.text.storage import exists, is_remote, local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.text.verification import verify_chunks

CLASSES = ("callbacks", "plugins", "profiler", "logger")
"""The keys of a trainer's section that name classes, whose code would run."""

_ELSEWHERE = {"trainer": {"accelerator": "auto", "devices": 1, "num_nodes": 1, "strategy": "auto",
                          **dict.fromkeys(CLASSES)}}  # fmt: skip
"""In place of what a run's recipe says that was true only where it was trained."""


@dataclass(frozen=True)
class Launch:
    """The checked arguments of a command."""

    command: Command
    settings: Settings
    run_folder: Path
    checkpoint: Path | None  # where to continue from (fit), or what to score or read (all others)
    options: Any = None  # the command's own options, as their `read` returns them
    manifest: Manifest | None = None  # of the training data; None but for fit
    weights: Path | None = None  # another run's checkpoint, whose weights fit starts from at step 0
    step: int | None = None  # of the checkpoint that is scored or read; None for fit
    averaged: Run | None = None  # the RUN, where the mean of several checkpoints is scored instead
    data_since: int = 0  # the step at which the run that fit continues began to train on its data
    trunk: Path | None = None  # another run's folder, whose checkpoint a new run continues from
    taken_back: int | None = None  # the older step that --ckpt-path has last taken this run back to
    line: Line | None = None  # the words, which LightningCLI parses once more upon `base`
    base: Recipe = field(default_factory=dict)  # the recipe before the words changed it


def prepare(line: Line) -> Launch:
    """Checks the words of a command with one RUN at most; the first mistake is a UserError.

    Raises SystemExit after --print-config, and where `fit` has nothing to do.
    """
    command, options = line.command, line.options
    if len(options.ckpt_path) > 1:
        raise UserError(f"{command.name} takes one RUN; give the command for each of them")
    given, run = recipes.load_recipes(options.config), None
    if command.needs == "run":
        run = averaged(find_run(options.ckpt_path[0]), getattr(options, "average", 1))
        words = line.changed(given)
        named = words.get("model", {})
        trained = run_folder.read_recipe(run.folder)
        base = reduce(recipes.merge, [{"data": {"val": {}}}, trained, _ELSEWHERE, given])
    else:
        named = {"run": {"recipe": Path(options.config[0]).stem}} if options.config else {}
        base = recipes.merge(named, given)
    recipe = line.changed(base)
    if run is not None:
        sets = recipe["data"]["val"]
        options = options.read(recipe, run)
        if recipe["data"]["val"] is sets:  # else they were given
            _check_followed(sets, words.get("data", {}).get("val", {}), run.folder)
    settings = settings_from(recipe)
    if options.print_config:
        print(recipes.dump(settings.as_recipe()), end="")
        raise SystemExit(0)
    if run is None:
        launch = to_train(command, settings, options.ckpt_path, options.new_data)
        if launch.checkpoint is not None and launch.trunk is None:
            step, table = step_of(launch.checkpoint), launch.run_folder / run_folder.VALIDATION
            if step >= settings.run.steps and (not settings.data.val or has_step(table, step)):
                if is_first_rank():
                    print(f"{launch.run_folder} is finished: nothing to do")
                raise SystemExit(0)
        return replace(launch, line=line, base=base)
    check_as_trained(run, settings.model, options.own_classes, named)
    options.check(settings)
    check_validation_sets(settings, run.folder)
    verify_data(settings, training=False)
    return Launch(command, settings, run.folder, run.checkpoint, options, step=run.step,
                  averaged=run if run.average else None, line=line, base=base)  # fmt: skip


def _check_followed(sets: Recipe, given: Recipe, folder: Path) -> None:
    """Refuses validation sets that a run's recipe alone names, and that are no file or data folder.

    Whoever wrote a recipe that was received does not choose where its reader looks.
    """
    for name, path in sets.items():
        many = (glob.has_magic(path) and not exists(path)) or Path(path).is_dir()
        if path != given.get(name) and (is_remote(path) or (many and not is_data_folder(path))):
            raise UserError(
                f"data.val.{name}: '{path}' of {folder / run_folder.RECIPE} is a glob, a folder of "
                f"texts or s3://, which are not followed unless given: --data.val.{name} '{path}'"
            )


def prepare_several(line: Line) -> tuple[list[Launch], Path]:
    """Checks a command with several RUNs: a launch each, and the folder that holds theirs.

    Raises UserError for the first mistake, and for several devices or no `--out`.
    """
    if line.options.out is None:
        raise UserError("several RUNs need --out DIR: a folder for the files of all of them")
    out = Path(line.options.out)
    launches: dict[Path, Launch] = {}
    for given in line.options.ckpt_path:
        run = find_run(given)
        folder = out / f"{run.folder.parent.name}-{run.folder.name}-step-{run.step:08d}"
        if folder in launches:
            raise UserError(f"--ckpt-path names two runs whose files would go to '{folder}'")
        options = replace(line.options, out=str(folder), ckpt_path=(given,))
        launches[folder] = prepare(replace(line, options=options))
    if any(launch.settings.trainer.devices != 1 for launch in launches.values()):
        raise UserError("several RUNs go on one device; give them one at a time for more")
    return list(launches.values()), out


def to_train(
    command: Command, settings: Settings, runs: Sequence[str] = (), new_data: bool = False
) -> Launch:
    """Checks data and schedule, and finds what to continue: this run, or another one's weights.

    Raises UserError for the first mistake.
    """
    import_classes(settings.model, allowed=True)
    check_size(settings)
    manifest = check_training_data(settings)
    check_steps(settings)
    check_validation_sets(settings, settings.data.path)
    folder = folder_of("run.dir", Path(settings.run.dir, settings.run.recipe, settings.run.name))
    recipe = settings.as_recipe()
    checkpoint, weights = run_folder.newest_checkpoint(folder), None
    taken_back = trunk = None
    if checkpoint is not None:
        run_folder.check_as_written(folder, checkpoint)
        run_folder.check_same_recipe(folder, recipe)
        run_folder.check_tables(folder, checkpoint=checkpoint)
        taken_back = run_folder.facts_at(folder, checkpoint).get("taken_back")
    for given in runs:
        start = find_run(given)
        way_out = "put the model of the weights back, or leave --ckpt-path out"
        run_folder.check_same_recipe(start.folder, recipe, ("model",), way_out=way_out)
        if start.folder.resolve() == folder.resolve():
            # Once: the same words, given again after an interruption, go on from there.
            if taken_back != start.step:
                checkpoint, taken_back = start.checkpoint, start.step
        elif checkpoint is None:  # else it began there, and goes on from its own checkpoint
            weights = start.checkpoint
            check_as_trained(start, settings.model, allowed=True)
    if checkpoint is None and weights is None and settings.run.branch_from is not None:
        run = _find_trunk(settings)
        checkpoint, trunk = run.checkpoint, run.folder
    since = 0
    if checkpoint is None:  # a run that was begun with it keeps it
        check_effect(settings)
    else:
        begun = trunk or folder
        facts = run_folder.facts_at(begun, checkpoint)
        check_as_begun(begun, facts, settings.model, "give this run a name (--run.name NAME)")
        since = _data_since(begun, checkpoint, manifest, new_data)
    if checkpoint is None or trunk is not None:
        run_folder.check_free(folder)
    check_epochs(settings, manifest, since)
    verify_data(settings, training=True)
    return Launch(
        command, settings, folder, checkpoint, None, manifest, weights,
        data_since=since, taken_back=taken_back, trunk=trunk,
    )  # fmt: skip


def _data_since(folder: Path, checkpoint: Path, manifest: Manifest, new_data: bool) -> int:
    """Returns the step at which a run, continued from a checkpoint, began to train on its data.

    Raises UserError for other data without `new_data`, and for data of other tokens.
    """
    before = run_folder.facts_at(folder, checkpoint)
    trained_on, since = str(before.get("data_fingerprint")), before.get("data_since", 0)
    if trained_on == manifest.fingerprint and isinstance(since, int):
        return since
    if not new_data:
        raise UserError(
            f"{folder} was trained on data of the fingerprint {trained_on:.12}, these are "
            f"{manifest.summary}; go back to those, give this run a name (--run.name NAME), or go "
            "on with these from their beginning (--new-data)"
        )
    if Tokenizer.load(folder / TOKENIZER).fingerprint != manifest.tokenizer:
        raise UserError(
            f"{folder} was trained with another tokenizer than that of the new data, whose ids "
            "mean other texts; prepare them with the run's: --tokenizer "
            f"{folder / TOKENIZER}"
        )
    return step_of(checkpoint)


def _find_trunk(settings: Settings) -> Run:
    """Returns the run to branch from, and its last checkpoint that a run of this length shares.

    Under schedule `wsd` runs of all lengths are alike up to the cool-down of the shortest, so one
    long run, the trunk, gives the stable part of shorter ones. Raises UserError where there is
    none, or the two would not have been alike up to there.
    """
    assert settings.run.branch_from is not None
    if settings.optim.schedule != "wsd" or settings.optim.decay_sum is not None:
        raise UserError(
            "run.branch_from needs optim.schedule wsd and weight_decay instead of decay_sum: else "
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
            "or second phase begins; it must save one (run.save_every) and keep it (run.keep_every)"
        )
    checkpoint = steps[max(usable)]
    run_folder.check_tables(folder, checkpoint=checkpoint)
    return find_run(str(checkpoint))


def check_size(settings: Settings) -> None:
    """Raises UserError unless the weights, in float32, fit into the machines that share them."""
    memory, shared = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), ("fsdp", "hsdp")
    size, trainer = 4 * parameters(settings.model), settings.trainer
    if size > memory * (trainer.num_nodes if trainer.strategy in shared else 1):
        raise UserError(
            f"the model's weights are {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory; lower model.n_layers, d_model or the FFN widths"
        )


def check_training_data(settings: Settings) -> Manifest:
    """Raises UserError unless the data folder is whole and fits the model; returns its manifest."""
    folder = settings.data.path
    manifest = _whole(folder, settings, f"data.path '{folder}'")
    manifest.check_tokenizer(folder)
    if manifest.vocab_size > settings.model.vocab_size:
        raise UserError(
            f"data.path '{folder}' uses a tokenizer of {manifest.vocab_size} entries, more than "
            f"model.vocab_size={settings.model.vocab_size}; raise it to {manifest.vocab_size}"
        )
    start = settings.model.document_start
    if start is not None and start != manifest.eot_id:
        raise UserError(
            f"model.document_start={start} does not begin documents in data.path '{folder}'; "
            f"its end-of-text token is {manifest.eot_id}"
        )
    return manifest


def check_epochs(settings: Settings, manifest: Manifest, since: int) -> None:
    """Raises UserError where the budget from step `since` on takes more than `data.max_epochs`."""
    wanted, most = epochs(settings, manifest, since), settings.data.max_epochs
    if most is not None and wanted > most:
        rest, length = f" from step {since} on" if since else "", settings.model.max_seq_len
        raise UserError(
            f"run.max_tokens={settings.run.max_tokens} is{rest} {wanted:.2f} epochs of the "
            f"{sum(manifest.chunk_blocks(length + 1))} sequences of {length} tokens in "
            f"'{settings.data.path}'; raise data.max_epochs={most:g} to {ceil(100 * wanted) / 100}"
        )


def check_steps(settings: Settings) -> None:
    """Raises UserError unless the budget is enough for a step and the warm-up, a step is whole
    micro-batches on its devices, and the model can have each step's loops.

    Where the number of devices is not known yet, one is taken, and `fit` finds out about all.
    """
    run, warmup = settings.run, settings.optim.warmup_steps
    if warmup >= run.steps:
        raise UserError(
            f"optim.warmup_steps={warmup} must be less than the run's {run.steps} optimizer steps "
            f"(run.max_tokens={run.max_tokens} / run.batch_tokens={run.batch_tokens})"
        )
    near, most = settings.trainer.devices_of_a_node or 1, 8 * cores()
    if settings.trainer.accelerator == "cpu" and near > most:
        raise UserError(f"trainer.devices={near} is too many for {cores()} cores; use {most}")
    ranks = near * settings.trainer.num_nodes
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1 and ranks == 1 and settings.trainer.devices_of_a_node is not None:
        raise UserError(
            f"srun has started {tasks} tasks (SLURM_STEP_NUM_TASKS), but trainer.devices=1 is one "
            "for one task; give srun --ntasks=1, or set devices to the tasks of a node"
        )
    micro_batches(run.batch_tokens, settings.model.max_seq_len, ranks, run.micro_batch)
    check_loops(run, settings.model)


def check_effect(settings: Settings) -> None:
    """Raises UserError for a setting that was given and has no effect."""
    for key, other, heeding in (
        *((f"optim.muon_{own}", "optim.name", "muon") for own in ("lr", "momentum", "adjust")),
        ("optim.cooldown", "optim.schedule", "wsd"),
        ("run.shard_size", "trainer.strategy", "hsdp"),
    ):
        (section, name), (value, found) = key.split("."), attrgetter(key, other)(settings)
        if value != getattr(SECTIONS[section], name) and found != heeding:
            way_out = f"leave it out, or choose {other}={heeding}"
            raise UserError(f"{key}={value} has no effect under {other}={found}; {way_out}")


def check_validation_sets(settings: Settings, folder: str | Path) -> None:
    """Raises UserError unless every validation set exists, is readable and has the run's tokens.

    The first document of a text on this disk is read: an empty or binary file shows at once.
    `folder` holds the run's `tokenizer.json`.
    """
    for name, path in settings.data.val.items():
        place = f"data.val.{name}: '{path}'"
        with readable(place):
            if is_data_folder(path):
                manifest = _whole(path, settings, place)
                tokenizer = Tokenizer.load(local_copy(f"{folder}/{TOKENIZER}"))
                if manifest.tokenizer != tokenizer.fingerprint:
                    raise UserError(
                        f"{place} was prepared with another tokenizer than the run's; give its "
                        "text instead, or prepare it again"
                    )
            elif not exists(path) and (is_remote(path) or not glob.glob(path, recursive=True)):
                raise UserError(
                    f"{place}: no such file or prepared data folder; --data.val '{{NAME: PATH}}' "
                    "takes the place of all sets, '{}' leaves them out"
                )
            elif is_remote(path):
                if not is_known(Path(path)):
                    raise UserError(f"{place}: its format is not known by its name; give {FORMATS}")
            elif not any(read_documents(Source(name, Path(path)))):
                raise UserError(f"{place} holds no text to validate on")


def _whole(folder: str, settings: Settings, place: str) -> Manifest:
    """The manifest of a data folder; UserError unless a chunk has the tokens of one block."""
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    manifest.check_index(folder)
    block, longest = settings.model.max_seq_len + 1, max(manifest.chunk_tokens)
    if longest < block:
        raise UserError(
            f"{place} has no {block} tokens in a chunk (the longest has {longest}), which "
            f"model.max_seq_len={settings.model.max_seq_len} needs; lower it or prepare more data"
        )
    return manifest


def verify_data(settings: Settings, *, training: bool) -> None:
    """Raises UserError for a changed chunk on this disk, of validation data or, if `training`, any.

    Chunks from S3 are verified as they are fetched. May take minutes, so it is the last check.
    """
    folders = [path for path in settings.data.val.values() if is_data_folder(path)]
    folders += [settings.data.path] if training else []
    for folder in dict.fromkeys(folders):
        if not is_remote(folder):
            verify_chunks(Path(folder), Manifest.read(folder), settings.data.verify)
