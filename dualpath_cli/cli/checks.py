"""Checks of a recipe against the world: data, validation sets, devices, memory. Torch-free."""

import glob
import os
from math import ceil
from operator import attrgetter
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.flops.count import parameters
from dualpath_cli.recipe.schedule import check_loops, epochs, micro_batches
from dualpath_cli.recipe.settings import SECTIONS, Settings, TrainerSettings
from dualpath_cli.run.run_folder import TOKENIZER
from dualpath_cli.system import cores, visible_gpus
from dualpath_cli.text.documents import FORMATS, Source, read_documents
from dualpath_cli.text.manifest import Manifest, is_data_folder, readable
from dualpath_cli.text.rows import is_known
from dualpath_cli.text.storage import exists, is_remote, local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.text.verification import verify_chunks

PROCESSES_PER_CORE = 8
"""Processes: more than one are slower, but serve to try out what several devices do."""

_OTHER_SETS = "--data.val '{NAME: PATH}' takes the place of all sets, '{}' leaves them out"

CLASSES = ("callbacks", "plugins", "profiler", "logger")
"""The keys of a trainer's section that name classes, whose code would run."""


def check_training_data(settings: Settings) -> Manifest:
    """Raises UserError unless the data folder is whole and fits the model; returns its manifest."""
    folder = settings.data.path
    manifest = _whole(folder, settings, f"data.path '{folder}'")
    if not exists(f"{folder}/{TOKENIZER}"):
        raise UserError(f"{folder}/{TOKENIZER} is missing; prepare the folder again")
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

    Where the number of devices is not known yet, `fit` finds out about the micro-batches.
    """
    run, warmup = settings.run, settings.optim.warmup_steps
    if run.steps == 0:
        raise UserError(
            f"run.max_tokens={run.max_tokens} is less than one batch of "
            f"run.batch_tokens={run.batch_tokens}; raise the one or lower the other"
        )
    if warmup >= run.steps:
        raise UserError(
            f"optim.warmup_steps={warmup} must be less than the run's {run.steps} optimizer steps "
            "(run.max_tokens / run.batch_tokens)"
        )
    if ranks := _ranks(settings.trainer):
        micro_batches(run.batch_tokens, settings.model.max_seq_len, ranks, run.micro_batch)
    check_loops(run, settings.model)


def _ranks(trainer: TrainerSettings) -> int:
    """Processes of a run, 0 where that cannot be told without torch."""
    return (trainer.devices_of_a_node or int(_is_on_cpu(trainer))) * trainer.num_nodes


def _is_on_cpu(trainer: TrainerSettings) -> bool:
    """Whether a run will be on the CPU, as far as can be told without torch."""
    return trainer.accelerator == "cpu" or (trainer.accelerator == "auto" and visible_gpus() == 0)


_HEEDED = {
    **dict.fromkeys(("optim.muon_lr", "optim.muon_momentum", "optim.muon_adjust"),
                    ("optim.name", "muon")),
    "optim.cooldown": ("optim.schedule", "wsd"),
    "run.shard_size": ("trainer.strategy", "hsdp"),
}  # fmt: skip
"""Settings that one value of another alone heeds."""


def check_effect(settings: Settings) -> None:
    """Raises UserError for a setting that was given and has no effect."""
    for key, (other, heeding) in _HEEDED.items():
        section, _, name = key.partition(".")
        value, found = attrgetter(key, other)(settings)
        given = value != getattr(SECTIONS[section], name)
        if given and isinstance(found, str) and found != heeding:  # no class of one's own
            raise UserError(
                f"{key}={value} has no effect under {other}={found}; leave it out, or choose "
                f"{other}={heeding}"
            )


def check_trainer(trainer: TrainerSettings) -> None:
    """Raises UserError for more processes than srun has started tasks for, or than the CPU can
    carry. All else Lightning finds.
    """
    tasks, ranks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)), _ranks(trainer)
    if tasks > 1 and ranks == 1:
        raise UserError(
            f"srun has started {tasks} tasks (SLURM_STEP_NUM_TASKS), but trainer.devices="
            f"{trainer.devices} is one for one task: each would do the same work; give srun "
            "--ntasks=1, or set trainer.num_nodes, and devices to the tasks of a node"
        )
    given, most = trainer.devices_of_a_node or 1, PROCESSES_PER_CORE * cores()
    if given > most and _is_on_cpu(trainer):
        raise UserError(
            f"trainer.devices={trainer.devices} on the CPU would be {given} processes on {cores()} "
            f"cores; use at most {most}"
        )


def check_size(settings: Settings) -> None:
    """Raises UserError unless the weights alone, in float32, fit into the memory of this machine,
    or of all that share them."""
    size = 4 * parameters(settings.model)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory * (settings.trainer.num_nodes if settings.trainer.is_sharded else 1):
        raise UserError(
            f"the model's weights are {size / 1e9:,.0f} GB, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory; lower model.n_layers, d_model, vocab_size or the "
            "FFN widths"
        )


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
                raise UserError(f"{place}: no such file or prepared data folder; {_OTHER_SETS}")
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
