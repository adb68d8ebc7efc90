"""Checks of a recipe against this machine, its data and its texts. Imports nothing slow."""

import os
from math import ceil
from operator import attrgetter
from pathlib import Path

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import cores
from dualpath_cli.data.documents import FORMATS, Source, found, read_documents
from dualpath_cli.data.manifest import Manifest, is_data_folder, readable
from dualpath_cli.data.rows import is_known
from dualpath_cli.data.storage import exists, is_remote, local_copy
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.verification import verify_chunks
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.schedule import check_loops, micro_batches
from dualpath_cli.recipe.settings import SECTIONS, Settings
from dualpath_cli.run.run_folder import TOKENIZER


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


def epochs(settings: Settings, manifest: Manifest, since: int = 0) -> float:
    """Passes over the blocks of the training data in the run's steps from step `since` on.

    A block has one token more than are trained on, and the last tokens of a chunk make none.
    """
    run, length = settings.run, settings.model.max_seq_len
    trained = (run.steps - since) * run.batch_tokens
    return trained / (length * sum(manifest.chunk_blocks(length + 1)))


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
            elif not exists(path) and (is_remote(path) or not any(found(path))):
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
