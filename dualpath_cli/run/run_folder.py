"""The run folder: names, checkpoints, and whether recipe and checkpoints fit. Torch-free.

runs/<recipe>/<name>/
    recipe.yaml      the resolved recipe
    versions.json    packages, git commit, time of the start, model, fingerprints of tokenizer and
                     data, which each checkpoint has in its manifest, too; versions-00002000.json
                     and recipe-00002000.yaml for the part from step 2000
    tokenizer.json   the tokenizer of the training data
    classes/         source of the model's custom classes, if any
    metrics.csv      a row per logged step; routing.csv and validation.csv beside it
    validation_average.csv  scores of the mean of checkpoints, until training goes on
    bad_steps.csv    a row per step that was left out, if any was
    went_wrong.txt   where the numbers ended it: the words that fit said
    ended_early.txt  where Lightning's EarlyStopping did: its name, the step, its reason
    wandb_id         the id of its W&B run, if it has one
    fit.lock         while a fit runs (`files.alone`)
    checkpoints/     step-00001000, ...; `last` points to the newest complete one
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.streams import is_first_rank
from dualpath_cli.base.system import read_json, read_text
from dualpath_cli.recipe.recipes import Recipe, merge, read
from dualpath_cli.recipe.settings import TrainerSettings, check_sections, settings_from
from dualpath_cli.run.checkpoint_files import facts_of, fault_of

RECIPE = "recipe.yaml"
VERSIONS = "versions.json"
TOKENIZER = "tokenizer.json"
CHECKPOINTS = "checkpoints"
VALIDATION = "validation.csv"
AVERAGES = "validation_average.csv"
TABLES = ("metrics.csv", VALIDATION, "routing.csv", "bad_steps.csv")
LAST = "last"
WENT_WRONG = "went_wrong.txt"
ENDED_EARLY = "ended_early.txt"
STEP = re.compile(r"step-[0-9]{1,18}")  # the name of a checkpoint

PUT_BACK = "put it back, or train the run anew under another name (fit --run.name NAME)"

_NUMBERS = ("model", "optim", "run", "data", "seed_everything")
# A continued run may change these: none of them decides the numbers.
_FREE_KEYS = {
    "run": {"dir", "name", "branch_from", "compile", "activation_checkpointing", "micro_batch",
            "log_every", "gates_every", "validate_every", "save_every", "keep", "keep_every",
            "tensorboard", "wandb", "peak_tflops", "rank_timeout", "max_bad_steps",
            "shard_size"},
    "data": {"path", "val", "val_tokens", "val_seed", "workers", "max_epochs", "verify"},
}  # fmt: skip


def without_numbers() -> set[str]:
    """Keys of a recipe that do not affect training, given its data: `run.log_every`."""
    keys = {f"{section}.{key}" for section, names in _FREE_KEYS.items() for key in names}
    trainer = {field.name for field in fields(TrainerSettings)}
    decisive = ("precision", "callbacks", "plugins")  # or may be
    return keys | {f"trainer.{key}" for key in trainer.difference(decisive)}


@dataclass(frozen=True)
class Run:
    """A RUN as the user gave it: its folder, and the checkpoint that is meant."""

    folder: Path  # holds recipe, versions and tokenizer, and by default what is made of it
    checkpoint: Path  # a folder inside of it; an exported folder is both
    step: int  # optimizer step at which the checkpoint was written
    average: tuple[Path, ...] = ()  # checkpoints whose mean weights are meant, oldest first

    @property
    def facts(self) -> dict[str, Any]:
        return facts_at(self.folder, self.checkpoint)


def step_of(checkpoint: Path) -> int:
    """The optimizer step in a checkpoint's name, or of the target of a link such as `last`."""
    path = checkpoint if STEP.fullmatch(checkpoint.name) else checkpoint.resolve()
    return int(path.name.removeprefix("step-"))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run folder, or None; says which damaged ones it passed over.

    Without `last`, in a copy that left symbolic links out, it is the one of the highest step. Sizes
    reveal damage here; hashes are compared as a checkpoint is loaded.
    """
    last = folder / CHECKPOINTS / LAST
    candidates = sorted(complete_checkpoints(folder), key=step_of, reverse=True)
    if last.exists() and last.resolve() in candidates:
        candidates.remove(last.resolve())
        candidates.insert(0, last.resolve())
    faults: list[str] = []
    for checkpoint in candidates:
        fault = fault_of(checkpoint)
        if fault is None:
            if faults and is_first_rank():
                print("\n".join(f"passed over {line}" for line in faults), file=sys.stderr)
            return checkpoint
        faults.append(f"{checkpoint}: {fault}")
    if faults:
        raise UserError(
            f"'{folder}' has no whole checkpoint: {faults[0]}; put one back, or remove the folder "
            "and train the run again"
        )
    return None


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run folder that have their names, in no order."""
    found = [p for p in (folder / CHECKPOINTS).glob("step-*") if STEP.fullmatch(p.name)]
    return [real if STEP.fullmatch((real := p.resolve()).name) else p for p in found]


def way_on(folder: Path) -> str:
    """What to say of a run that ended early."""
    newest = newest_checkpoint(folder)
    step = "the start" if newest is None else f"step {step_of(newest)}"
    return f"the same command continues from {step}"


def read_recipe(folder: Path) -> Recipe:
    path = folder / RECIPE
    if not path.is_file():
        raise UserError(
            f"run folder '{folder}' has no {RECIPE}, which says what was trained; {PUT_BACK}"
        )
    recipe = read(path)
    try:
        check_sections(recipe)
    except UserError as error:
        why = "it links to what is no recipe" if path.is_symlink() else error  # not quoted
        raise UserError(f"{path}: {why}") from None
    return recipe


def decisive_part(recipe: Recipe) -> Recipe:
    """The keys of a resolved recipe that decide numbers: no places, ways of running, or trainer."""
    return {
        section: {k: v for k, v in recipe[section].items() if k not in _FREE_KEYS.get(section, ())}
        if isinstance(recipe[section], dict) else recipe[section]
        for section in _NUMBERS
    }  # fmt: skip


def check_same_recipe(
    folder: Path,
    recipe: Recipe,
    sections: Sequence[str] = _NUMBERS,
    free: Mapping[str, Set[str]] = {},
    way_out: str = "give this one a name (--run.name NAME)",
) -> None:
    """Refuses a recipe that gives other numbers; `free` are further keys that may differ."""
    if different := _first_difference(read_recipe(folder), recipe, sections, free):
        name, old, new = different
        raise UserError(f"{folder} holds a run with {name}={old}, this one has {new}; {way_out}")


def check_as_written(folder: Path, checkpoint: Path) -> None:
    """Refuses a checkpoint of another step, run, model or tokenizer than its place says.

    Of an exported folder, which is both, model and tokenizer.
    """
    from dualpath_cli.data.tokenizer import Tokenizer

    recipe, facts = read_recipe(folder), facts_at(folder, checkpoint)
    for key in ("id", "step", "model", "tokenizer"):
        if key not in facts:
            raise UserError(f"what is known of {checkpoint} lacks its {key}; {PUT_BACK}")
    if checkpoint != folder and facts["step"] != step_of(checkpoint):
        raise UserError(
            f"{checkpoint} was written at step {facts['step']}; put the checkpoint of step "
            f"{step_of(checkpoint)} back, or remove it"
        )
    begun = read_json(folder / VERSIONS, PUT_BACK)
    if "id" not in begun:
        raise UserError(f"{folder / VERSIONS} lacks the run's id; {PUT_BACK}")
    if facts["id"] != begun["id"]:
        raise UserError(
            f"{checkpoint} is of another run than {folder}; put its own back, or remove it"
        )
    trained = {"model": facts["model"]}
    if different := _first_difference(trained, recipe, trained):
        name, old, new = different
        raise UserError(
            f"{folder / RECIPE} has {name}={new}, but {checkpoint} was trained with "
            f"{old}; put that back"
        )
    path, fingerprint = folder / TOKENIZER, facts["tokenizer"]
    found = Tokenizer(read_json(path, PUT_BACK), str(path)).fingerprint
    if found != fingerprint:
        raise UserError(
            f"{path} has the fingerprint {found:.12}, but {checkpoint} was trained with "
            f"that of {fingerprint!s:.12}; put the run's own back"
        )


def _first_difference(
    before: Recipe, now: Recipe, sections: Iterable[str], free: Mapping[str, Set[str]] = {}
) -> tuple[str, Any, Any] | None:
    """The first key whose value is another, and its two values; None where there is none.

    A setting that one recipe does not have, because it is newer than that, had its default.
    """
    before, now = merge(_defaults(), before), merge(_defaults(), now)
    for section in sections:
        old, new = before.get(section), now.get(section)
        if not isinstance(old, dict) or not isinstance(new, dict):
            old, new = {"": old}, {"": new}
        may_differ = _FREE_KEYS.get(section, set()) | free.get(section, set())
        for key in sorted((old.keys() | new.keys()) - may_differ):
            if old.get(key) != new.get(key):
                return f"{section}.{key}".rstrip("."), old.get(key), new.get(key)
    return None


@cache
def _defaults() -> Recipe:
    """The default settings, as a resolved recipe writes them; a model's widths have none."""
    widths: Recipe = {"d_ffn": 1, "d_ffn_wide": 1}
    recipe = settings_from({"model": widths}).as_recipe()
    return merge(recipe, {"model": dict.fromkeys(widths)})


def facts_at(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """The facts that `start` recorded for the part of a run that wrote the checkpoint."""
    if checkpoint == folder:  # exported
        return read_json(folder / VERSIONS, PUT_BACK)
    return facts_of(checkpoint)


def check_free(folder: Path) -> None:
    """Refuses a folder for a new run that holds files of its names, and no versions.json of fit."""
    names = (VERSIONS, RECIPE, TOKENIZER, CHECKPOINTS, "classes", "curve.png", *TABLES, AVERAGES,
             WENT_WRONG, ENDED_EARLY)  # fmt: skip
    there, facts = [name for name in names if (folder / name).exists()], folder / VERSIONS
    if there and not (facts.exists() and '"dualpath":' in read_text(facts, PUT_BACK)):
        raise UserError(
            f"{folder} holds '{there[0]}', which would be replaced, and no {VERSIONS} of a run; "
            "give this run a name (--run.name NAME), or move it"
        )
