"""A run's folder: its names, checkpoints, recipe and recorded facts. Torch-free.

runs/<recipe>/<name>/
    recipe.yaml      the resolved recipe; recipe-00002000.yaml of the part from step
                     2000 on
    versions.json    facts: packages, git commit, start, model, fingerprints of
                     tokenizer and data; versions-00002000.json of the part from step
                     2000 on. A checkpoint's manifest repeats the facts of its part
    tokenizer.json   the tokenizer of the training data
    classes/         source of the model's custom classes, if any
    metrics.csv      a row per logged step; routing.csv and validation.csv beside it
    bad_steps.csv    a row per skipped step
    went_wrong.txt   the message of a run that ended because its numbers went wrong
    wandb_id         the id of the W&B run
    fit.lock         held while a fit runs (`locks.exclusive`)
    checkpoints/     step-00001000, ...; `last` points to the newest
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import PARTIAL, read_json, write_text
from dualpath_cli.base.folders import check_inside
from dualpath_cli.base.locks import FIT
from dualpath_cli.base.output import say
from dualpath_cli.base.processes import is_first_rank
from dualpath_cli.base.version import versions
from dualpath_cli.recipe.keys import free_keys
from dualpath_cli.recipe.recipes import Recipe, dump, merge, read_recipe_file
from dualpath_cli.recipe.settings import Settings, check_sections, settings_from
from dualpath_cli.run.checkpoint_files import facts_of, fault_of

if TYPE_CHECKING:
    from dualpath_cli.data.tokenizer import Tokenizer

RECIPE = "recipe.yaml"
VERSIONS = "versions.json"
TOKENIZER = "tokenizer.json"
CHECKPOINTS = "checkpoints"
LAST = "last"
WENT_WRONG = "went_wrong.txt"
BRANCHED = " at step "  # in the fact `branched_from`, between the trunk and its step
STEP = re.compile(r"step-[0-9]{1,18}")  # the name of a checkpoint

PUT_BACK = "put it back, or train the run anew under another name (fit --run.name NAME)"

DECISIVE = ("model", "optim", "run", "data", "seed_everything")
"""The parts of a recipe that decide a run's numbers, and stay when it is continued. Of
the section trainer precision, callbacks and plugins decide, too: the precision is a
fact of the run, and a continued run may have other classes."""


@dataclass(frozen=True)
class Run:
    """A RUN as the user gave it: its folder and a checkpoint, with their records."""

    # with recipe, versions and tokenizer; commands write their results here
    folder: Path
    checkpoint: Path  # a folder inside it; an exported folder is both
    step: int  # optimizer step of the checkpoint
    recipe: Recipe  # the resolved recipe of the folder
    facts: dict[str, Any]  # of the part of the run that wrote the checkpoint
    tokenizer: "Tokenizer"


# Checkpoints


def step_of(checkpoint: Path) -> int:
    """The optimizer step in a checkpoint's name, or of the target of a link such as
    `last`."""
    path = checkpoint if STEP.fullmatch(checkpoint.name) else checkpoint.resolve()
    return int(path.name.removeprefix("step-"))


def newest_checkpoint(folder: Path, name_faults: bool = True) -> Path | None:
    """The newest whole checkpoint of a run folder, or None; says which damaged ones it
    passes over, if `name_faults`.

    Damage is found by sizes here; hashes are compared when a checkpoint is loaded.
    """
    faults: list[str] = []
    for checkpoint in sorted(complete_checkpoints(folder), key=step_of, reverse=True):
        fault = fault_of(checkpoint)
        if fault is None:
            if faults and name_faults and is_first_rank():
                say("\n".join(f"passed over {line}" for line in faults))
            return checkpoint
        faults.append(f"{checkpoint}: {fault}")

    if faults:
        raise UserError(
            f"'{folder}' has no whole checkpoint: {faults[0]}; put one back, or remove "
            "the folder and train the run again"
        )
    return None


def complete_checkpoints(folder: Path) -> list[Path]:
    """The renamed checkpoints of a run folder, in no order."""
    found = (folder / CHECKPOINTS).resolve().glob("step-*")
    return [path for path in found if STEP.fullmatch(path.name)]


def way_on(folder: Path) -> str:
    """The end of the message of a run that ended early: the command that continues
    it, or why none does."""
    try:
        newest = newest_checkpoint(folder)
        if newest is None:
            return "the same command continues from the start"

        # Before its first save, a run that --ckpt-path took back would go back again.
        taken_back = facts_now(folder).get("taken_back")
        has_saved = facts_of(newest).get("taken_back") == taken_back
    except UserError as error:
        return str(error)

    command = "the same command" if has_saved else "the command without --ckpt-path"
    return f"{command} continues from step {step_of(newest)}"


# Recipes


def read_recipe(folder: Path) -> Recipe:
    path = folder / RECIPE
    if not path.is_file():
        raise UserError(f"run folder '{folder}' has no {RECIPE}; {PUT_BACK}")
    return _read_resolved(path)


def _read_resolved(path: Path) -> Recipe:
    """The recipe of a run, or of a part of it."""
    recipe = read_recipe_file(path)
    try:
        check_sections(recipe)
    except UserError as error:
        # The content of another file must not be quoted.
        why = "its link leads to no recipe" if path.is_symlink() else error
        raise UserError(f"{path}: {why}") from None

    trainer = recipe.get("trainer", {})
    if isinstance(trainer.get("strategy"), dict):  # a class, of an earlier version
        trainer["strategy"] = "auto"
    return recipe


def decisive_part(recipe: Recipe) -> Recipe:
    """The keys of a resolved recipe that decide the run's numbers, but for those of the
    section trainer."""
    part: Recipe = {}
    for section in DECISIVE:
        content = recipe[section]
        if isinstance(content, dict):
            free = free_keys(section)
            content = {key: value for key, value in content.items() if key not in free}
        part[section] = content
    return part


def check_same_recipe(
    folder: Path,
    before: Recipe,
    now: Recipe,
    sections: Sequence[str] = DECISIVE,
    free: Mapping[str, Set[str]] = {},
    way_out: str = "give this one a name (--run.name NAME)",
) -> None:
    """Refuses a recipe that gives other numbers than that of the run in a folder;
    `free` are further keys that may differ."""
    different = _first_difference(before, now, sections, free)
    if different:
        name, old, new = different
        raise UserError(
            f"{folder} holds a run with {name}={old}, this one has {new}; {way_out}"
        )


def read_run(folder: Path, checkpoint: Path, step: int) -> Run:
    """Reads the records of a run and of one of its checkpoints.

    Raises UserError for a checkpoint of another step, run, model or tokenizer than its
    folder's. In an exported folder, which is both, only model and tokenizer can differ.
    """
    # It imports numpy.
    from dualpath_cli.data.tokenizer import Tokenizer

    recipe = read_recipe(folder)
    is_exported = checkpoint == folder
    if is_exported:
        facts = read_json(folder / VERSIONS, PUT_BACK)
    else:
        facts = facts_of(checkpoint)
    for key in ("id", "step", "model", "tokenizer"):
        if key not in facts:
            raise UserError(
                f"the facts recorded for {checkpoint} have no '{key}'; {PUT_BACK}"
            )
    if not is_exported and facts["step"] != step:
        raise UserError(
            f"{checkpoint} was written at step {facts['step']}; put the checkpoint of "
            f"step {step} back, or remove it"
        )

    begun = read_json(folder / VERSIONS, PUT_BACK)
    if "id" not in begun:
        raise UserError(f"{folder / VERSIONS} has no 'id'; {PUT_BACK}")
    if facts["id"] != begun["id"]:
        raise UserError(
            f"{checkpoint} is of another run than {folder}; put its own back, or "
            "remove it"
        )

    different = other_model(facts["model"], recipe.get("model", {}))
    if different:
        name, old, new = different
        raise UserError(
            f"{folder / RECIPE} has {name}={new}, but {checkpoint} was trained with "
            f"{old}; put that back"
        )

    path = folder / TOKENIZER
    tokenizer = Tokenizer(read_json(path, PUT_BACK), str(path))
    if tokenizer.fingerprint != facts["tokenizer"]:
        raise UserError(
            f"{path} has the fingerprint {tokenizer.fingerprint:.12}, but {checkpoint} "
            f"was trained with that of {facts['tokenizer']!s:.12}; put the run's own "
            "back"
        )
    return Run(folder, checkpoint, step, recipe, facts, tokenizer)


def other_model(
    trained: Recipe, now: Recipe, free: Set[str] = frozenset()
) -> tuple[str, Any, Any] | None:
    """The first key of two sections `model` with two values, and these; None if there
    is none."""
    return _first_difference(
        {"model": trained}, {"model": now}, ("model",), {"model": free}
    )


def _first_difference(
    before: Recipe,
    now: Recipe,
    sections: Iterable[str],
    free: Mapping[str, Set[str]] = {},
) -> tuple[str, Any, Any] | None:
    """The first key with two values, and these; None if there is none.

    A setting that only the newer recipe has was at its default in the older one.
    """
    before = merge(_defaults(), before)
    now = merge(_defaults(), now)

    for section in sections:
        old = before.get(section)
        new = now.get(section)
        if not isinstance(old, dict) or not isinstance(new, dict):  # seed_everything
            old, new = {"": old}, {"": new}

        may_differ = free_keys(section) | free.get(section, set())
        keys = (old.keys() | new.keys()) - may_differ
        for key in sorted(keys):
            value = old.get(key)
            other = new.get(key)
            if value != other:
                name = f"{section}.{key}" if key else section
                return name, value, other
    return None


@cache
def _defaults() -> Recipe:
    """The default settings, as a resolved recipe writes them; a model's widths have
    none."""
    widths: Recipe = {"d_ffn": 2, "d_ffn_wide": 2}
    recipe = settings_from({"model": widths}).as_recipe()
    return merge(recipe, {"model": dict.fromkeys(widths)})


# Facts


def write_start(
    folder: Path, recipe: Recipe, facts: dict[str, Any], step: int | None = None
) -> None:
    """Writes the resolved recipe, the versions and `facts` into a run folder.

    A run continued from `step` keeps its first files, and gets further ones for the
    rest. Files of parts that began at `step` or later are removed.
    """
    for name in (RECIPE, VERSIONS):
        for begun, path in _parts(folder, name).items():
            if begun >= (step or 0):
                path.unlink()

    suffix = "" if step is None else f"-{step:08d}"
    started = datetime.now(UTC).isoformat(timespec="seconds")
    content = {**versions(), "started": started, **facts}

    # First, as this file marks the folder as a run's.
    write_text(
        (folder / VERSIONS).with_stem(f"versions{suffix}"),
        json.dumps(content, indent=2) + "\n",
    )
    write_text((folder / RECIPE).with_stem(f"recipe{suffix}"), dump(recipe))


def _parts(folder: Path, name: str) -> dict[int, Path]:
    """The files of that name of continued parts, by the parts' first steps."""
    stem = Path(name).stem
    suffix = Path(name).suffix

    parts = {}
    for path in folder.glob(f"{stem}-*{suffix}"):
        step = path.stem.removeprefix(f"{stem}-")
        if step.isdecimal():
            parts[int(step)] = path
    return parts


def settings_of_parts(folder: Path, settings: Settings) -> dict[int, Settings]:
    """The settings of a run's parts by their first steps; those of the first part are
    given."""
    parts = {0: settings}
    for begun, path in sorted(_parts(folder, RECIPE).items()):
        parts[begun] = settings_from(_read_resolved(path))
    return parts


def branch_step(folder: Path) -> int:
    """The step of the trunk at which a branch began; 0 for any other run."""
    path = folder / VERSIONS
    facts = read_json(path, PUT_BACK) if path.exists() else {}
    step = str(facts.get("branched_from")).rpartition(BRANCHED)[2]
    return int(step) if step.isdecimal() else 0


def facts_now(folder: Path) -> dict[str, Any]:
    """The facts that `write_start` wrote last; empty if there are none."""
    parts = {-1: folder / VERSIONS, **_parts(folder, VERSIONS)}
    newest = parts[max(parts)]
    return read_json(newest, PUT_BACK) if newest.exists() else {}


def mapping_of(folder: Path, facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A fact that is a mapping; empty if it is absent. Raises UserError for another
    value."""
    value = facts.get(name) or {}
    if not isinstance(value, dict):
        raise UserError(
            f"the facts recorded in {folder} have '{name}': {value!r:.40}, not a "
            f"mapping; {PUT_BACK}"
        )
    return value


def check_same_facts(run: Run, facts: dict[str, Any], way_out: str) -> None:
    """Refuses the first of `facts` that had another value when a run's checkpoint was
    written."""
    for name, now in facts.items():
        before = run.facts.get(name)
        if before != now:
            raise UserError(
                f"{run.folder} was begun with {name} {before}, now it is {now}; "
                f"restore the former or {way_out}"
            )


def check_links(folder: Path) -> None:
    """Refuses a run folder with a link to a folder outside of it, which a fit would
    write into."""
    way_out = "move that folder here, or let the whole run folder be a link"
    for name in (f"{CHECKPOINTS}/manifests", "classes", "tensorboard", "wandb"):
        check_inside(folder, folder / name, way_out)


def check_free(folder: Path) -> None:
    """Refuses a folder for a new run that has files, and no versions.json of a run."""
    if not folder.is_dir():
        return

    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name != FIT and not name.endswith(PARTIAL)]
    if others and "packages" not in facts_now(folder):
        raise UserError(
            f"{folder} holds '{others[0]}' but no {VERSIONS} of a run; give this run "
            "a name (--run.name NAME), or move the file"
        )
