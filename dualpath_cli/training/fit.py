"""`dualpath fit`: trains to the token budget, from the newest checkpoint if there is
one."""

import shlex
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.locks import FIT, exclusive
from dualpath_cli.base.version import device_name
from dualpath_cli.data import order
from dualpath_cli.data.storage import local_copy
from dualpath_cli.recipe.recipes import dump
from dualpath_cli.recipe.schedule import micro_batches
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.run_folder import (
    BRANCHED,
    TOKENIZER,
    WENT_WRONG,
    check_same_facts,
    newest_checkpoint,
    write_start,
)
from dualpath_cli.run.tables import read_tables
from dualpath_cli.spec.own_checks import hashes, keep_sources, option_of
from dualpath_cli.training import curve
from dualpath_cli.training.endings import ending_of
from dualpath_cli.training.graphs import why_no_graph
from dualpath_cli.training.launch import TrainingLaunch
from dualpath_cli.training.plan import plan_of
from dualpath_cli.training.session import Session, begin_wandb
from dualpath_cli.training.step import graph_of


def fit(session: Session[TrainingLaunch]) -> None:
    """Trains, writes the run folder meanwhile, and draws its curve at the end.

    Raises:
        RunFailed: if the numbers go wrong, or a loader process is lost.
    """
    launch = session.launch
    run = launch.settings.run
    trainer = session.trainer

    accumulate = micro_batches(
        run.batch_tokens,
        launch.settings.model.max_seq_len,
        trainer.world_size,
        run.micro_batch,
    )
    no_graph_because = why_no_graph(launch.settings, trainer)
    plan = plan_of(session, accumulate, no_graph_because)
    if launch.dry_run:
        session.say(f"{dump(launch.settings.as_recipe())}\n{plan}")
        return
    session.say(plan)
    if launch.starts_from is not None:
        facts = _fixed_facts(trainer)
        check_same_facts(launch.starts_from, facts, launch.way_to_new_run)

    way_out = "wait until it ends, or give this run a name (--run.name NAME)"
    lock = exclusive(launch.folder / FIT, launch.folder, way_out)
    with lock if trainer.is_global_zero else nullcontext():
        _check_untouched(launch)
        try:
            if launch.has_all_steps:
                _validate_last_step(session)
            else:
                if not no_graph_because:
                    session.module.graph = graph_of(session.module, parts=accumulate)
                _train(session)
        except BaseException as error:
            ending = ending_of(session, error)
            if ending is None:
                raise
            raise ending from error
        _conclude(session)


def _validate_last_step(session: Session[TrainingLaunch]) -> None:
    """Validates a run that has made all its steps, and lacks only this."""
    launch = session.launch
    if session.trainer.is_global_zero:
        begin_wandb(session.trainer, launch.folder)
    session.trainer.validate(
        session.module,
        datamodule=session.datamodule,
        ckpt_path=str(launch.checkpoint),
        verbose=False,
    )

    # Only now: until the sets are scored, the run has its earlier ones.
    _begin_folder(session)


def _train(session: Session[TrainingLaunch]) -> None:
    """Trains to the last step."""
    launch = session.launch
    trainer = session.trainer
    _begin_folder(session)

    # In steps. Without an interval only the last one is validated.
    trainer.val_check_interval = (
        launch.settings.run.validate_every or launch.settings.run.steps
    )
    trainer.check_val_every_n_epoch = None

    path = None if launch.checkpoint is None else str(launch.checkpoint)
    trainer.fit(session.module, datamodule=session.datamodule, ckpt_path=path)


def _check_untouched(launch: TrainingLaunch) -> None:
    """Raises UserError if another fit has begun this run, or gone on, since its folder
    was read."""
    checkpoint = launch.checkpoint
    was_removed = checkpoint is not None and not checkpoint.exists()

    # A branch has no checkpoint yet; a run that goes back has newer ones.
    own = checkpoint if launch.trunk is None else None
    is_newest = newest_checkpoint(launch.folder, name_faults=False) == own
    goes_back = launch.taken_back is not None and launch.step == launch.taken_back

    if was_removed or not (is_newest or goes_back):
        raise UserError(
            f"{launch.folder} was just written by another fit; run the command again"
        )


def _begin_folder(session: Session[TrainingLaunch]) -> None:
    """On the first rank, writes the first files of the locked run folder."""
    if not session.trainer.is_global_zero:
        return

    launch = session.launch
    folder = launch.folder
    (folder / WENT_WRONG).unlink(missing_ok=True)
    source = local_copy(f"{launch.settings.data.path}/{TOKENIZER}")
    tokenizer = source.read_text(encoding="utf-8")

    recipe = launch.settings.as_recipe()
    facts = _facts(session, recipe["model"])
    step = None
    if launch.starts_from is not None and launch.trunk is None:
        facts["id"] = launch.starts_from.facts["id"]
        step = launch.starts_from.step
    write_start(folder, recipe, facts, step)
    keep_sources(folder, launch.settings.model)
    write_text(folder / TOKENIZER, tokenizer)
    if launch.trunk is not None:
        assert launch.step is not None
        _copy_tables(launch.trunk, folder, launch.step)
    begin_wandb(session.trainer, folder)


def _copy_tables(trunk: Path, branch: Path, step: int) -> None:
    """Copies the rows of the trunk's tables up to the step of the branching."""
    for name, rows in read_tables(trunk, step).items():
        if rows:
            write_text(branch / name, format_csv(rows))


def _facts(session: Session[TrainingLaunch], model: dict[str, Any]) -> dict[str, Any]:
    """The recorded facts of a run, or of its part from the step on that it continues
    from."""
    launch = session.launch
    manifest = launch.manifest
    val_fingerprints = {
        name: launch.validation_manifests[of_set.path].fingerprint
        for name, of_set in launch.settings.data.validation_sets.items()
        if of_set.path in launch.validation_manifests
    }
    trunk = launch.trunk
    facts = {
        **_fixed_facts(session.trainer),
        "id": uuid.uuid4().hex,
        "model": model,
        "tokenizer": manifest.tokenizer,
        "data_fingerprint": manifest.fingerprint,
        "data_sources": [source.public_name for source in manifest.sources],
        "data_since": launch.data_since,
        "taken_back": launch.taken_back,
        "branched_from": None if trunk is None else f"{trunk}{BRANCHED}{launch.step}",
        "devices": session.trainer.world_size,
        "micro_batch": launch.settings.run.micro_batch,
        "device": device_name(session.trainer.strategy.root_device),
    }

    optional = {
        "val_fingerprints": val_fingerprints,
        "classes": hashes(launch.settings.model),
        "init_from": launch.init_facts,
    }
    return facts | {name: value for name, value in optional.items() if value}


def _fixed_facts(trainer: Trainer) -> dict[str, Any]:
    """The facts that may not change while a run goes on."""
    return {"precision": str(trainer.precision), "data_order": order.NAME}


def _conclude(session: Session[TrainingLaunch]) -> None:
    """Prints the scores of the finished run, where it is, and draws its curve."""
    trainer = session.trainer
    folder = session.launch.folder
    session.show_validation()

    # A trainer that only validates counts no steps.
    step = max(trainer.global_step, session.launch.step or 0)
    if step < session.launch.settings.run.steps:
        why = "a callback"
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            reason = getattr(callback, "stopping_reason_message", None)
            if reason:
                why = f"{type(callback).__name__}: {reason}"
        session.say(f"ended at step {step} by {why}")

    if trainer.is_global_zero:
        try:
            session.say(f"curve: {curve.draw(folder)}")
        except UserError as error:
            # of a table that was damaged meanwhile: the run is whole
            session.say(f"no curve: {error}")

    classes = option_of(session.launch.settings.model)
    quoted = shlex.quote(str(folder))
    session.say(
        f"run folder: {folder}\nnext: dualpath validate --ckpt-path {quoted}{classes}"
    )
