"""Checks of a recipe against this machine, its data and its texts.

Each raises UserError for the first mistake. What a check had to read, a manifest or the
tokenizer, is handed on, so that nothing is read twice. Imports nothing slow.
"""

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.processes import cores
from dualpath_cli.data.documents import (
    SOURCE_FORMATS,
    Source,
    expand_glob,
    read_documents,
)
from dualpath_cli.data.manifest import Manifest, explaining_read_errors, is_data_folder
from dualpath_cli.data.rows import is_known
from dualpath_cli.data.storage import exists, is_remote
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.verification import verify_chunks
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.schedule import check_loops, micro_batches
from dualpath_cli.recipe.settings import Settings, ValidationSet

# By the machine


def check_size(settings: Settings) -> None:
    """Raises UserError unless the float32 weights fit into the machines that share
    them."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = 4 * parameters(settings.model)

    # The machines that share one set of weights, at most.
    trainer = settings.trainer
    machines = 1
    if trainer.strategy == "fsdp":
        machines = trainer.num_nodes
    elif trainer.strategy == "hsdp" and settings.run.shard_size is not None:
        # A node has at least one device, also where their number is not known yet.
        devices = trainer.devices_of_a_node or 1
        machines = min(ceil(settings.run.shard_size / devices), trainer.num_nodes)

    if size > memory * machines:
        raise UserError(
            f"the model's weights are {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory; lower model.n_layers, d_model or the "
            "FFN widths"
        )


def check_steps(settings: Settings) -> None:
    """Raises UserError unless the budget is enough for a step and the warm-up, a step
    is whole micro-batches on its devices, and the model can have each step's loops.

    If the number of devices is not known yet, one is assumed, and `fit` checks again
    with all.
    """
    run = settings.run
    if not run.steps:
        raise UserError(
            f"run.max_tokens={run.max_tokens} is less than "
            f"run.batch_tokens={run.batch_tokens}, one optimizer step; raise it"
        )

    warmup = settings.optim.warmup_steps
    if warmup >= run.steps:
        raise UserError(
            f"optim.warmup_steps={warmup} must be less than the run's {run.steps} "
            f"optimizer steps (run.max_tokens={run.max_tokens} / "
            f"run.batch_tokens={run.batch_tokens})"
        )

    known_devices = settings.trainer.devices_of_a_node
    devices = known_devices or 1
    most = 8 * cores()
    if settings.trainer.accelerator == "cpu" and devices > most:
        raise UserError(
            f"trainer.devices={devices} is too many for {cores()} cores; use {most}"
        )

    ranks = devices * settings.trainer.num_nodes
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1 and ranks == 1 and known_devices is not None:
        raise UserError(
            f"srun has started {tasks} tasks (SLURM_STEP_NUM_TASKS), but "
            "trainer.devices=1 needs one task; give srun --ntasks=1, or set devices to "
            "the number of tasks on a node"
        )

    micro_batches(run.batch_tokens, settings.model.max_seq_len, ranks, run.micro_batch)
    check_loops(run, settings.model)


# By the training data


def check_training_data(settings: Settings) -> tuple[Manifest, Tokenizer]:
    """Returns the manifest and the tokenizer of the data folder.

    Raises UserError unless the folder is whole and fits the model.
    """
    folder = settings.data.path
    model = settings.model
    manifest = _whole_manifest(folder, settings, f"data.path '{folder}'")
    tokenizer = manifest.check_tokenizer(folder)

    if manifest.vocab_size > model.vocab_size:
        raise UserError(
            f"data.path '{folder}' uses a tokenizer of {manifest.vocab_size} entries, "
            f"more than model.vocab_size={model.vocab_size}; raise it to "
            f"{manifest.vocab_size}"
        )
    start = model.document_start
    if start is not None and start != manifest.eot_id:
        raise UserError(
            f"model.document_start={start} is not the end-of-text token of data.path "
            f"'{folder}', which is {manifest.eot_id}; give {manifest.eot_id}, or null"
        )
    return manifest, tokenizer


def unused_rows(settings: Settings, manifest: Manifest) -> str:
    """A line if the embedding has many rows that no token uses; else empty."""
    rows = settings.model.vocab_size
    entries = manifest.vocab_size
    if rows <= 1.1 * entries:
        return ""
    return (
        f"model.vocab_size={rows:,} has rows for no token: the tokenizer has "
        f"{entries:,} entries"
    )


def epochs(settings: Settings, manifest: Manifest, since: int) -> float:
    """Passes over the blocks of the training data in the run's steps from step `since`
    on.

    A block has one token more than it trains; tokens left over at the end of a chunk
    are not used.
    """
    length = settings.model.max_seq_len
    blocks = sum(manifest.chunk_blocks(length + 1))
    trained = (settings.run.steps - since) * settings.run.batch_tokens
    return trained / (length * blocks)


def check_epochs(settings: Settings, manifest: Manifest, since: int) -> None:
    """Raises UserError if the budget from step `since` on takes more than
    `data.max_epochs`."""
    wanted = epochs(settings, manifest, since)
    most = settings.data.max_epochs
    if most is None or wanted <= most:
        return

    from_step = f" from step {since} on" if since else ""
    length = settings.model.max_seq_len
    sequences = sum(manifest.chunk_blocks(length + 1))
    raise UserError(
        f"run.max_tokens={settings.run.max_tokens} is{from_step} {wanted:.2f} epochs "
        f"of the {sequences} sequences of {length} tokens in '{settings.data.path}'; "
        f"raise data.max_epochs={most:g} to {ceil(100 * wanted) / 100}"
    )


# By the validation texts


def check_validation_sets(
    settings: Settings, tokenizer: Tokenizer
) -> dict[str, Manifest]:
    """Returns the manifests of the validation sets that are data folders, by path.

    Raises UserError unless every set exists, is readable and has the tokens of the
    run's `tokenizer`. The first document of a text on this disk is read, to find an
    empty or binary file at once.
    """
    manifests: dict[str, Manifest] = {}
    for name, of_set in settings.data.validation_sets.items():
        path = of_set.path
        place = f"data.val.{name}: '{path}'"
        with explaining_read_errors(place):
            if is_data_folder(path):
                manifests[path] = _folder_of_set(settings, of_set, tokenizer, place)
            else:
                _check_texts(name, of_set, place)
    return manifests


def _folder_of_set(
    settings: Settings, of_set: ValidationSet, tokenizer: Tokenizer, place: str
) -> Manifest:
    """The manifest of a validation set that is a prepared data folder."""
    if of_set.field != "text":
        raise UserError(
            f"{place} is a prepared data folder, whose tokens have no field "
            f"'{of_set.field}'; leave `field` out"
        )

    manifest = _whole_manifest(of_set.path, settings, place)
    if manifest.tokenizer != tokenizer.fingerprint:
        raise UserError(
            f"{place} was prepared with another tokenizer than the run's; give the "
            "text instead, or prepare the folder again"
        )
    return manifest


def _check_texts(name: str, of_set: ValidationSet, place: str) -> None:
    """Raises UserError unless a validation set is a text, or a glob of texts."""
    path = of_set.path
    remote = is_remote(path)
    if not exists(path) and (remote or not any(expand_glob(path))):
        raise UserError(
            f"{place}: no such file or prepared data folder; --data.val "
            "'{NAME: PATH}' replaces all sets, '{}' means none"
        )
    if remote:
        if not is_known(Path(path)):
            raise UserError(
                f"{place}: its name has no known ending; give {SOURCE_FORMATS}"
            )
        return

    documents = read_documents(Source(name, Path(path), of_set.field))
    if not any(documents):
        raise UserError(f"{place} holds no text to validate on")


# Data folders of both kinds


def _whole_manifest(folder: str, settings: Settings, place: str) -> Manifest:
    """The manifest of a data folder; UserError unless a chunk is as long as one
    block."""
    manifest = Manifest.read(folder)
    manifest.check_files(folder)

    block = settings.model.max_seq_len + 1
    longest = max(manifest.chunk_tokens)
    if longest < block:
        raise UserError(
            f"{place} has no {block} tokens in a chunk (the longest has {longest}), "
            f"which model.max_seq_len={settings.model.max_seq_len} needs; lower it or "
            "prepare more data"
        )
    return manifest


def verify_data(settings: Settings, manifests: Mapping[str, Manifest]) -> None:
    """Raises UserError for a changed chunk of a data folder on this disk, by path.

    Chunks from S3 are verified when fetched. The last check, as it may take minutes.
    """
    for folder, manifest in manifests.items():
        if not is_remote(folder):
            verify_chunks(Path(folder), manifest, settings.data.verify)
